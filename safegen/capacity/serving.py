"""From the time of a step to what users see: tokens a second, TTFT and TPOT at a number of requests in flight.

B requests are in flight all the time, each with P prompt tokens to compute and D tokens to answer. While a request
decodes its D tokens, D steps pass, and each of the B requests is computed as a prompt once. Prompts are cut to what
the budget of a step leaves beside the B decoded rows, so that makes, of the D steps,

    n = min(D, B * ceil(P / (budget - B)))   steps with B + B * P / n rows, and D - n steps with B rows.

    T = (D - n) * t(B) + n * t(B + B * P / n)      the time of the D steps
    tokens a second = B * D / T
    TPOT = (T - own) / (D - n / B),  own = n / B * t(B + B * P / n)      without the steps of its own prompt
    TTFT = t(B) / 2 + chunks * t(B + P / chunks) * (1 + u / 2)

An arriving prompt waits for half a step, and for its own; u, the share of time in steps with prompts, is how likely
another prompt is being computed already, half done on average. Tokens that a forward yields beside one (speculation)
divide the number of steps: they are told, not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from safegen.capacity.steps import Bound, Load, StepCost, StepTimes


@dataclass(frozen=True, slots=True)
class Traffic:
    """A request: tokens of its prompt that are computed (those found in the prefix cache left out), of its prompt, and
    of its answer. tokens_per_forward: more than one with speculation."""

    computed_prompt_tokens: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_forward: float = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """At a number of requests in flight. bound: what of an average step takes longest."""

    tokens_per_s: float
    requests_per_s: float
    ttft_s: float
    tpot_s: float
    bound: Bound


def serve(steps: StepTimes, traffic: Traffic, concurrency: int, max_num_batched_tokens: int) -> Served:
    num_steps = max(1.0, traffic.output_tokens / traffic.tokens_per_forward)
    prompt = traffic.computed_prompt_tokens
    chunks = max(1, -(-prompt // max(1, max_num_batched_tokens - concurrency)))
    context = concurrency * (traffic.prompt_tokens + traffic.output_tokens / 2)

    def cost(prompt_rows: float) -> StepCost:
        share = prompt_rows / prompt
        pairs = share * (prompt * traffic.prompt_tokens - prompt * prompt / 2)
        return steps.cost(Load(concurrency + prompt_rows, concurrency, context, pairs))

    num_with_prompts = min(num_steps, concurrency * chunks)
    plain_s = cost(0.0).total_s
    mixed_s = cost(concurrency * prompt / num_with_prompts).total_s
    seconds = (num_steps - num_with_prompts) * plain_s + num_with_prompts * mixed_s
    busy = num_with_prompts * mixed_s / seconds
    own_steps = num_with_prompts / concurrency
    later_steps = num_steps - own_steps
    tpot_s = plain_s if later_steps <= 0 else (seconds - own_steps * mixed_s) / later_steps
    ttft_s = chunks * cost(prompt / chunks).total_s
    if concurrency > 1:
        ttft_s = plain_s / 2 + ttft_s * (1 + busy / 2)
    return Served(
        tokens_per_s=concurrency * traffic.output_tokens / seconds,
        requests_per_s=concurrency / seconds,
        ttft_s=ttft_s,
        tpot_s=tpot_s / traffic.tokens_per_forward,
        bound=cost(concurrency * prompt / num_steps).bound,
    )


def roofline_batch(steps: StepTimes, most: int = 1 << 16) -> int:
    """The smallest number of decoded rows whose products take as long as reading the weights, contexts left out."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        found = steps.cost(Load(middle, middle))
        low, high = (low, middle) if found.compute_s >= found.weights_s else (middle + 1, high)
    return low


__all__ = ["Served", "Traffic", "roofline_batch", "serve"]
