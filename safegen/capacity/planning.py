"""`plan`: what a model needs on a device, what it gives there, what limits it, and which knob to turn.

The arithmetic is published (docs/capacity.md works it through): bytes of the cache and blocks as the engine itself
counts them (engine/capacity.py), step times by the roofline or by measurement (steps.py), what users see of them
(serving.py). Nothing is loaded: a model is read as far as its header, so a plan costs seconds at most.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safegen.capacity.devices import PUBLISHED, Device
from safegen.capacity.serving import Traffic, roofline_batch, serve
from safegen.capacity.steps import Bound, MeasuredSteps, RooflineSteps, StepTimes
from safegen.capacity.target import Options, Target
from safegen.errors import ModelLoadError, RequestError

if TYPE_CHECKING:
    from safegen.capacity.memory import Fit
    from safegen.engine.model_size import ModelSize
    from safegen.engine.slice_times import SliceTimes

Limit = Literal["memory", "context", "kv cache", "memory bandwidth", "compute"]
DEVICES = ("cpu", *PUBLISHED)
_ENOUGH = 0.9  # of the most tokens a second: where more requests at once only make each one wait
_MOST_CONCURRENCY = 1024
_COMPUTE_KNOB = (
    "products are the limit: a smaller model, more cores or a faster device; prompts that begin alike are computed "
    "once (cached_tokens); more requests at once only wait longer"
)
_CACHE_READ_KNOB = "reading the cached contexts is the limit: kv_cache_dtype='int8', or shorter prompts"
_WEIGHTS_KNOB = (
    "reading the weights is the limit: smaller weights (quantization='int8' or 'int4', a GGUF of fewer bits), or "
    "speculation, which gives more tokens a read (tokens_per_forward)"
)


@dataclass(frozen=True, slots=True)
class Point:
    """At `concurrency` requests in flight. bound: what an average step takes longest for. cost_per_million_tokens: of
    output, where the hour's cost is known. meets:
    the target's ttft_ms and tpot_ms hold."""

    concurrency: int
    tokens_per_s: float
    requests_per_s: float
    ttft_ms: float
    tpot_ms: float
    bound: Bound
    meets: bool
    cost_per_million_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What `safegen.plan` returns.

    parameters, weight_bytes: of the model; weight_kinds: share of the bytes by kind. kv_bytes_per_token, block_bytes,
    num_blocks, kv_cache_bytes: of the cache. blocks_per_request: of one of `target.context` tokens. max_concurrency:
    such requests that the cache holds at once. roofline_batch: decoded rows at which products take as long as
    reading the weights. points: by concurrency. chosen: the target's concurrency, or else the least that
    gives nearly the most tokens a second within the targets; None where nothing fits. limit: what keeps it from more.
    knob: what to turn. problems: what of the target cannot be had; none means that the plan fits. settings: arguments
    for `LLM(...)`.
    """

    model: str
    device: Device
    target: Target
    parameters: int
    weight_bytes: int
    weight_kinds: dict[str, float]
    kv_bytes_per_token: int
    block_size: int
    block_bytes: int
    num_blocks: int
    kv_cache_bytes: int
    activation_bytes: int
    blocks_per_request: int
    max_concurrency: int
    roofline_batch: int
    points: tuple[Point, ...]
    chosen: Point | None
    limit: Limit
    knob: str
    problems: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return not self.problems

    def table(self) -> str:
        """For people to read."""
        from safegen.capacity.report import table

        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        from safegen.capacity.report import to_dict

        return to_dict(self)


def plan(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str = "cpu",
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    context: int | None = None,
    cached_tokens: int = 0,
    concurrency: int | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    cost_per_hour: float | None = None,
    tokens_per_forward: float = 1.0,
    quantization: Literal["int8", "int4"] | None = None,
    kv_cache_dtype: Literal["auto", "float16", "float32", "int8"] = "auto",
    kv_cache_memory: int | None = None,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
) -> Plan:
    """Plan for a model, which is named as for `LLM`; a folder with a config.json alone will do.

    device: "cpu" is this machine, measured now on a slice of the model (some seconds); "a100", "h100", "h200", "l4" and
    "rtx4090" are published figures. The target: see Target; all later arguments are those of `LLM`. Raises
    ModelLoadError and RequestError.
    """
    from safegen.engine.model_size import measure_model
    from safegen.engine.slice_times import measure_slice

    target = Target(
        prompt_tokens, output_tokens, context, cached_tokens, concurrency, ttft_ms, tpot_ms, cost_per_hour,
        tokens_per_forward,
    )  # fmt: skip
    if device not in DEVICES:
        raise RequestError(f"device={device!r} is unknown; choose {', '.join(DEVICES)}", field="device", value=device)
    options = Options(quantization, kv_cache_dtype, kv_cache_memory, block_size, max_num_batched_tokens)
    path = _locate(model)
    size = measure_model(path, quantization, packed=device == "cpu")
    times = measure_slice(path, quantization, kv_cache_dtype) if device == "cpu" else None
    return plan_of(size, target, options, device=device, times=times)


def _locate(model: str | os.PathLike[str] | None) -> Path:
    from safegen.engine.locate import locate_model

    try:
        return locate_model(None if model is None else os.fspath(model))
    except ModelLoadError:
        if model is None or not (Path(model) / "config.json").is_file():
            raise
        return Path(model)  # its weights are not needed


def plan_of(
    size: ModelSize, target: Target, options: Options, *, device: str = "cpu", times: SliceTimes | None = None
) -> Plan:
    """`plan` for a model whose size, and times on this machine, are known."""
    from safegen.capacity.memory import fit

    found = fit(size, target, options, device, times)
    steps: StepTimes = (
        RooflineSteps(found.device, size, found.kv_bytes_per_token) if times is None else MeasuredSteps(times)
    )
    points = _points(steps, target, options, found.max_concurrency)
    problems = list(found.problems)
    chosen = _chosen(points, target, found.max_concurrency)
    if chosen is not None:
        problems += _misses(chosen, target)
    limit, knob = _limit(points, chosen, target, found, problems)
    return Plan(
        model=size.name,
        device=found.device,
        target=target,
        parameters=size.num_parameters,
        weight_bytes=size.weight_bytes,
        weight_kinds=dict(size.kinds),
        kv_bytes_per_token=found.kv_bytes_per_token,
        block_size=options.block_size,
        block_bytes=found.block_bytes,
        num_blocks=found.num_blocks,
        kv_cache_bytes=found.num_blocks * found.block_bytes,
        activation_bytes=found.activation_bytes,
        blocks_per_request=found.blocks_per_request,
        max_concurrency=found.max_concurrency,
        roofline_batch=roofline_batch(steps),
        points=points,
        chosen=chosen,
        limit=limit,
        knob=knob,
        problems=tuple(problems),
        settings=_settings(chosen, options, found.blocks_per_request * found.block_bytes),
    )


def _points(steps: StepTimes, target: Target, options: Options, max_concurrency: int) -> tuple[Point, ...]:
    most = min(max_concurrency, max(_MOST_CONCURRENCY, target.concurrency or 0))
    counts = {1 << power for power in range(11) if 1 << power <= most} | ({most} if most > 0 else set())
    if target.concurrency is not None and target.concurrency <= most:
        counts.add(target.concurrency)
    computed = target.prompt_tokens - target.cached_tokens
    traffic = Traffic(computed, target.prompt_tokens, target.output_tokens, target.tokens_per_forward)
    points = []
    for count in sorted(counts):
        served = serve(steps, traffic, count, options.max_num_batched_tokens)
        ttft_ms, tpot_ms = served.ttft_s * 1e3, served.tpot_s * 1e3
        meets = (target.ttft_ms is None or ttft_ms <= target.ttft_ms) and (
            target.tpot_ms is None or tpot_ms <= target.tpot_ms
        )
        cost = None if target.cost_per_hour is None else target.cost_per_hour / (served.tokens_per_s * 3600) * 1e6
        points.append(
            Point(count, served.tokens_per_s, served.requests_per_s, ttft_ms, tpot_ms, served.bound, meets, cost)
        )
    return tuple(points)


def _chosen(points: tuple[Point, ...], target: Target, max_concurrency: int) -> Point | None:
    if not points:
        return None
    if target.concurrency is not None:
        wanted = min(target.concurrency, max_concurrency)
        return max((point for point in points if point.concurrency <= wanted), key=lambda point: point.concurrency)
    fine = [point for point in points if point.meets] or [points[0]]
    most = max(point.tokens_per_s for point in fine)
    return next(point for point in fine if point.tokens_per_s >= _ENOUGH * most)


def _misses(chosen: Point, target: Target) -> list[str]:
    return [
        f"{name.upper()} is {value:.0f} ms at {chosen.concurrency} requests in flight, the target is {wanted:g} ms"
        for name, value, wanted in (
            ("ttft", chosen.ttft_ms, target.ttft_ms), ("tpot", chosen.tpot_ms, target.tpot_ms),
        )
        if wanted is not None and value > wanted
    ]  # fmt: skip


def _limit(
    points: tuple[Point, ...], chosen: Point | None, target: Target, found: Fit, problems: list[str]
) -> tuple[Limit, str]:
    """What keeps the plan from more, and the knob."""
    if found.limit is not None:
        return found.limit, found.knob
    assert chosen is not None
    asked = target.concurrency
    is_last = chosen.concurrency == points[-1].concurrency == found.max_concurrency
    if (asked is not None and asked > found.max_concurrency) or (asked is None and is_last):
        return "kv cache", found.cache_knob
    fewer = "; for the latency targets, fewer requests at once" if problems else ""
    if chosen.bound == "products":
        return "compute", _COMPUTE_KNOB + fewer
    if chosen.bound == "cache":
        return "memory bandwidth", _CACHE_READ_KNOB + fewer
    more = "" if problems else "; more requests at once (max_num_seqs) share each read, where the targets allow them"
    return "memory bandwidth", _WEIGHTS_KNOB + more


def _settings(chosen: Point | None, options: Options, request_bytes: int) -> dict[str, Any]:
    if chosen is None:
        return {}
    settings: dict[str, Any] = {
        "max_num_seqs": chosen.concurrency,
        "max_num_batched_tokens": max(options.max_num_batched_tokens, chosen.concurrency),
        "kv_cache_memory": chosen.concurrency * request_bytes,
        "block_size": options.block_size,
        "kv_cache_dtype": options.kv_cache_dtype,
    }
    return settings if options.quantization is None else {**settings, "quantization": options.quantization}


__all__ = ["DEVICES", "Limit", "Plan", "Point", "plan", "plan_of"]
