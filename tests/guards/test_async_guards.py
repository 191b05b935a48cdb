"""Guards behind AsyncLLM: the same results, and an event loop that no guard holds up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from safegen.async_llm import AsyncLLM
from safegen.events import DeltaEvent
from safegen.guards.base import GuardView, Match
from tests.support.guards import Email, Ssn, Word
from tests.support.sdk_fakes import ScriptedBackend, make_runtime


def run(text: str, body: Callable[[AsyncLLM], Awaitable[None]], guards: Any = ()) -> None:
    async def main() -> None:
        async with AsyncLLM.from_runtime(make_runtime(ScriptedBackend(text), guards=guards)) as llm:
            await body(llm)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_calls_batches_and_streams_are_guarded() -> None:
    async def body(llm: AsyncLLM) -> None:
        assert (await llm.generate("go")).value == "mail [EMAIL]"
        assert (await llm.generate("123-45-6789")).status == "blocked"
        rows = await llm.batch(["go", "123-45-6789"])
        assert [row.status for row in rows] == ["ok", "blocked"]
        async with llm.stream("go") as events:
            shown = [event.text async for event in events if isinstance(event, DeltaEvent)]
            assert "".join(shown) == (await events.result()).text == "mail [EMAIL]"
        async with llm.stream("123-45-6789") as events:
            assert (await events.result()).status == "blocked"

    run("mail a@b.co", body, [Email(on_fail="redact", stages=["output"]), Ssn()])


def test_a_stopped_stream_ends_and_frees_the_engine() -> None:
    async def body(llm: AsyncLLM) -> None:
        async with llm.stream("go", guards=Word(stages=["output"]), max_tokens=700) as events:
            result = await events.result()
        assert (result.status, result.text) == ("blocked", "a ")
        assert result.usage.completion_tokens < 400

    run("a secret " + "x" * 600, body)


def test_a_guard_that_waits_does_not_hold_up_the_event_loop() -> None:
    class Slow(Word):
        inline = False

        def find(self, view: GuardView) -> Sequence[Match]:
            time.sleep(0.05)
            return super().find(view)

    async def body(llm: AsyncLLM) -> None:
        gaps: list[float] = []

        async def tick() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                gaps.append(time.perf_counter() - before)

        ticker = asyncio.create_task(tick())
        async with llm.stream("go", guards=Slow(on_fail="redact", stages=["output"])) as events:
            assert (await events.result()).text == "[SECRET] x"
        ticker.cancel()
        assert len(gaps) > 20
        assert sorted(gaps)[len(gaps) // 2] < 0.03

    run("secret x", body)
