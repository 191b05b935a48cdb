from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from safegen.async_llm import AsyncLLM
from safegen.drive import AsyncInbox
from safegen.engine.request import TokensEvent
from safegen.errors import EngineClosed, RequestError, SchemaError
from safegen.events import DeltaEvent, FinalEvent
from safegen.types import Choice, JsonSchema, Regex
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_runtime


def run(body: Callable[[AsyncLLM], Awaitable[None]], *, step_seconds: float = 0.0, **settings: Any) -> None:
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.on_forward = lambda batch: time.sleep(step_seconds)

    async def main() -> None:
        async with AsyncLLM.from_runtime(make_runtime(backend, **settings)) as llm:
            await body(llm)

    asyncio.run(asyncio.wait_for(main(), 60))


async def idle(llm: AsyncLLM, seconds: float = 3.0) -> bool:
    engine: Any = llm._runtime._engine
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stats = engine.stats()
        if stats.running == 0 and stats.waiting == 0:
            return True
        await asyncio.sleep(0.01)
    return False


def test_fifty_concurrent_calls_are_each_as_they_are_alone() -> None:
    async def body(llm: AsyncLLM) -> None:
        calls = [(f"call {number}", [bool, Regex("[a-d]{6}"), list[bool]][number % 3]) for number in range(50)]
        options: dict[str, Any] = {"temperature": 1.0, "seed": 2, "max_tokens": 40}
        together = await asyncio.gather(*(llm.generate(*call, **options) for call in calls))
        alone = [await llm.generate(*call, **options) for call in calls]
        assert [result.text for result in together] == [result.text for result in alone]
        assert {result.status for result in together} <= {"ok", "truncated"}

    run(body)


def test_cancelling_a_task_cancels_its_request() -> None:
    async def body(llm: AsyncLLM) -> None:
        task = asyncio.create_task(llm.generate("go", max_tokens=400, temperature=1.0, seed=1))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await idle(llm)

    run(body, step_seconds=0.02)


def test_timeout_cancels_a_batch() -> None:
    async def body(llm: AsyncLLM) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(llm.batch(["go"] * 40, max_tokens=400, temperature=1.0, seed=1), 0.3)
        assert await idle(llm)

    run(body, step_seconds=0.02)


def test_batch_keeps_order_and_rows_apart() -> None:
    async def body(llm: AsyncLLM) -> None:
        results = await llm.batch([("go", bool), "", ("go", Choice(["x"]))])
        assert [result.status for result in results] == ["ok", "refused", "ok"]
        assert results[2].value == "x"

    run(body)


def test_stream_gives_the_events_of_the_same_call() -> None:
    async def body(llm: AsyncLLM) -> None:
        options: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 40}
        async with llm.stream("go", list[bool], **options) as stream:
            events = [event async for event in stream]
        text = "".join(event.text for event in events if isinstance(event, DeltaEvent))
        assert isinstance(events[-1], FinalEvent)
        assert text == events[-1].result.text == (await llm.generate("go", list[bool], **options)).text

    run(body)


def test_leaving_a_stream_early_cancels_its_request() -> None:
    async def body(llm: AsyncLLM) -> None:
        async with llm.stream("go", max_tokens=400, temperature=1.0, seed=1) as stream:
            await anext(stream)
        assert await idle(llm)

    run(body, step_seconds=0.02)


def test_wrong_calls_raise_what_the_plain_ones_raise() -> None:
    async def body(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError):
            await llm.generate("")
        with pytest.raises(RequestError):
            await llm.generate("go", max_tokns=3)
        with pytest.raises(SchemaError):
            async with llm.stream("go", JsonSchema({"type": 5})):
                pass
        with pytest.raises(RequestError):
            await anext(llm.stream("go"))

    run(body)


def test_closed_llm_raises_engine_closed() -> None:
    async def body(llm: AsyncLLM) -> None:
        await llm.close()
        with pytest.raises(EngineClosed):
            await llm.generate("go")

    run(body)


def test_closing_ends_what_is_in_flight_as_cancelled() -> None:
    async def body(llm: AsyncLLM) -> None:
        tasks = [asyncio.create_task(llm.generate("go", max_tokens=400, temperature=1.0, seed=1)) for _ in range(5)]
        await asyncio.sleep(0.2)
        await llm.close()
        assert {result.status for result in await asyncio.gather(*tasks)} == {"cancelled"}

    run(body, step_seconds=0.02)


def test_event_loop_is_not_blocked_while_tokens_are_made() -> None:
    async def body(llm: AsyncLLM) -> None:
        task = asyncio.create_task(llm.generate("go", Regex("x{30}")))
        longest = 0.0
        while not task.done():
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
        assert (await task).status == "ok"
        assert longest < 0.5

    run(body, step_seconds=0.02)


def test_events_that_come_while_a_loop_is_busy_wake_it_once_and_keep_their_order() -> None:
    async def main() -> tuple[int, list[str], list[str]]:
        loop, num_wakes = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> asyncio.Handle:
            nonlocal num_wakes
            num_wakes += 1
            return wake(*arguments)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        inboxes = {"a": AsyncInbox(loop), "b": AsyncInbox(loop)}
        for number in range(6):
            for name, inbox in inboxes.items():
                inbox.put(TokensEvent(f"{name}{number}", 0, (number,), ()))
        got = {name: [(await inbox.get()).request_id for _ in range(6)] for name, inbox in inboxes.items()}
        inboxes["a"].put(TokensEvent("later", 0, (1,), ()))
        assert (await inboxes["a"].get()).request_id == "later"
        return num_wakes, got["a"], got["b"]

    num_wakes, first, second = asyncio.run(main())
    assert num_wakes == 2
    assert first == [f"a{number}" for number in range(6)] and second == [f"b{number}" for number in range(6)]


def test_an_event_for_a_loop_that_was_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    inbox = AsyncInbox(loop)
    loop.close()
    inbox.put(TokensEvent("a", 0, (1,), ()))
