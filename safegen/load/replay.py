"""Sends requests to an `AsyncLLM` as its users would, each streamed by a task of its own, and notes their times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from safegen.errors import SafegenError
from safegen.load.trace import Arrival, Served


@dataclass(frozen=True, slots=True)
class Asked:
    """One entry of a workload. type: None is free text. options: further keyword arguments of the call."""

    prompt: Any
    type: Any = None
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


Salt = Callable[[Arrival], str]  # of the prefix cache: requests of one salt share what they have in common


async def serve_one(llm: Any, asked: Asked, arrival: Arrival, start_s: float, salt: str) -> Served:
    """One request, sent when it is time. What raises is an answer that is not ok."""
    options: dict[str, Any] = {
        "max_tokens": asked.max_tokens, "show_schema": False, "cache_salt": salt, **asked.options,
    }  # fmt: skip
    await asyncio.sleep(max(0.0, start_s + arrival.at_s - time.perf_counter()))
    sent_s, first_s = time.perf_counter() - start_s, None
    try:
        async with llm.stream(asked.prompt, asked.type, **options) as events:
            async for event in events:
                if first_s is None and event.type == "delta":
                    first_s = time.perf_counter() - start_s
            result = await events.result()
    except SafegenError:
        return Served(arrival, sent_s, first_s, time.perf_counter() - start_s, 0, ok=False)
    wanted = ("ok",) if asked.type is not None else ("ok", "truncated")
    last_s, usage = time.perf_counter() - start_s, result.usage
    return Served(
        arrival, sent_s, first_s, last_s, usage.completion_tokens, result.status in wanted, usage.prompt_tokens
    )


async def replay(llm: Any, workload: Sequence[Asked], trace: Sequence[Arrival], salt: str | Salt) -> list[Served]:
    """An open loop. Of a salt that is a string, all requests share what they have in common, as users' requests do, but
    find nothing that another replay of the same prompts left behind."""
    start_s = time.perf_counter()
    tasks = [serve_one(llm, workload[arrival.place], arrival, start_s, _salt(salt, arrival)) for arrival in trace]
    return list(await asyncio.gather(*tasks))


async def in_turns(
    llm: Any, workload: Sequence[Asked], places: Sequence[int], concurrency: int, salt: str | Salt
) -> list[Served]:
    """A closed loop: so many requests in flight until all places have been asked for."""
    start_s, left = time.perf_counter(), iter(places)

    async def user() -> list[Served]:
        return [served async for served in _one_after_the_other(llm, workload, left, start_s, salt)]

    return [served for each in await asyncio.gather(*(user() for _ in range(concurrency))) for served in each]


async def _one_after_the_other(
    llm: Any, workload: Sequence[Asked], left: Iterator[int], start_s: float, salt: str | Salt
) -> Any:
    for place in left:
        arrival = Arrival(time.perf_counter() - start_s, place)
        yield await serve_one(llm, workload[place], arrival, start_s, _salt(salt, arrival))


def _salt(salt: str | Salt, arrival: Arrival) -> str:
    return salt if isinstance(salt, str) else salt(arrival)


__all__ = ["Asked", "in_turns", "replay", "serve_one"]
