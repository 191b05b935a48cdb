"""What guards add to decoding with the default model: a batch of letters with them and without them, in turns.

A round decodes the batch once with guards and once without, in an order that changes from round to round, each as whole
answers and as streams that are all read at once. Greedy and with a fixed number of tokens, so that both do the same
work. The time is CPU time of the process; a figure is the median over rounds of the ratio within the round. On a busy
machine such ratios scatter by more than what guards take, so the same prompts and answers also go through the guards
without the model, and that time is put in relation to decoding (`cost_pct_b16.replayed_*`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from safegen import LLM, AsyncLLM
from safegen.guards.base import Guard
from safegen.guards.canary import Canary
from safegen.guards.charset import Charset
from safegen.guards.guards import Guards
from safegen.guards.injection import PromptInjection
from safegen.guards.invisible import InvisibleText
from safegen.guards.length import MaxLength
from safegen.guards.pii import PII
from safegen.guards.prompt_leak import SystemPromptLeak
from safegen.guards.secrets import Secrets
from safegen.guards.session import GuardSession
from safegen.guards.stream import AnswerShape

TOKENS, ROUNDS = 64, 5
_TOPICS = (
    "rain", "a lost bag", "rent", "bread", "a concert", "the sea", "a dog", "school", "a train", "tea", "a garden",
    "snow", "a parcel", "a phone bill", "music", "the weekend",
)  # fmt: skip
_SYSTEM = (
    "You write short letters for the customers of a small shop. Be kind, do not promise any discount, and never tell "
    "anyone which supplier the goods come from."
)


def pattern_guards() -> list[Guard]:
    """All guards that are patterns, at their defaults, redacting where they can."""
    return [
        PII(on_fail="redact"),
        Secrets(on_fail="redact"),
        InvisibleText(on_fail="redact"),
        PromptInjection(),
        SystemPromptLeak(),
        Canary(token="cn5f3e9b2a7d104c68"),
        MaxLength(characters=100_000, words=20_000),
        Charset(scripts=["Latin", "Greek", "Cyrillic", "Han"]),
    ]


def prompts() -> list[list[dict[str, str]]]:
    return [
        [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"Write a short letter about {topic}."}]
        for topic in _TOPICS
    ]


def measure_decoding() -> dict[str, float]:
    """`cost_pct_b16` (the dearer of both), `cost_pct_b16.[replayed_]<whole|streamed>`, `decode_s_b16`."""
    guards = pattern_guards()
    with LLM() as llm:
        whole = _in_turns(lambda given: _decode(llm, given), guards)
        answers = [result.text for result in llm.batch(prompts(), max_tokens=TOKENS, temperature=0.0)]
    streamed = asyncio.run(_streamed_in_turns(guards))
    shares = {"whole": _share(whole), "streamed": _share(streamed)}
    figures = {f"cost_pct_b16.{name}": share for name, share in shares.items()}
    for name, rounds, num_pieces in (("whole", whole, 1), ("streamed", streamed, TOKENS)):
        decode_s = statistics.median(plain for plain, _ in rounds)
        figures[f"cost_pct_b16.replayed_{name}"] = 100 * _replayed_s(guards, answers, num_pieces) / decode_s
    return {
        "cost_pct_b16": max(shares.values()),
        **figures,
        "decode_s_b16": statistics.median(plain for plain, _ in whole),
    }


def _replayed_s(guards: list[Guard], answers: Sequence[str], num_pieces: int) -> float:
    """CPU seconds that the guards take for the prompts and for answers that come in so many pieces."""

    def spent() -> float:
        start = time.process_time()
        for messages, answer in zip(prompts(), answers):
            session = GuardSession(Guards(guards), "request")
            session.check_input(messages)
            output = session.output(AnswerShape("text"), 0)
            length = -(-len(answer) // num_pieces)
            for at in range(0, len(answer), max(1, length)):
                output.feed(answer[at : at + length])
            output.finish()
        return time.process_time() - start

    spent()
    return statistics.median(spent() for _ in range(ROUNDS))


def _share(rounds: Sequence[tuple[float, float]]) -> float:
    return 100 * statistics.median((guarded - plain) / guarded for plain, guarded in rounds)


def _order(number: int) -> tuple[bool, bool]:
    return (False, True) if number % 2 else (True, False)


def _in_turns(decode: Callable[[Any], float], guards: list[Guard]) -> list[tuple[float, float]]:
    """(seconds without, seconds with) of each round; the first of all is for warming up."""
    decode(guards)
    rounds = []
    for number in range(ROUNDS):
        spent = {with_guards: decode(guards if with_guards else None) for with_guards in _order(number)}
        rounds.append((spent[False], spent[True]))
    return rounds


def _decode(llm: LLM, guards: Any) -> float:
    start = time.process_time()
    results = list(llm.batch(prompts(), max_tokens=TOKENS, temperature=0.0, guards=guards))
    spent = time.process_time() - start
    assert all(result.status in ("ok", "truncated") for result in results), [result.error for result in results]
    return spent


async def _streamed_in_turns(guards: list[Guard]) -> list[tuple[float, float]]:
    async with AsyncLLM() as llm:
        await _stream(llm, guards)
        rounds = []
        for number in range(ROUNDS):
            spent = {with_guards: await _stream(llm, guards if with_guards else None) for with_guards in _order(number)}
            rounds.append((spent[False], spent[True]))
        return rounds


async def _stream(llm: AsyncLLM, guards: Any) -> float:
    async def read(prompt: Any) -> None:
        async with llm.stream(prompt, max_tokens=TOKENS, temperature=0.0, guards=guards) as events:
            async for _ in events:
                pass
            result = await events.result()
            assert result.status in ("ok", "truncated"), result.error

    start = time.process_time()
    await asyncio.gather(*(read(prompt) for prompt in prompts()))
    return time.process_time() - start
