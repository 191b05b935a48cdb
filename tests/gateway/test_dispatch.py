"""Hedges at instants that sockets seldom meet: nothing that has begun is left open, and no answer is thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from safegen.gateway.attempts import AttemptFailed, Attempts, Stream, Whole
from safegen.gateway.budget import RetryBudget
from safegen.gateway.calls import Call
from safegen.gateway.config import Retries
from safegen.gateway.dispatch import Dispatch
from safegen.gateway.upstream import Place
from tests.gateway.test_routing import call, router, upstream


class OpenStream(Stream):
    """One that holds its place until it is closed."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def aclose(self) -> None:
        self._place.close()


class Scripted:
    """Attempts whose outcomes are those of scripts, one a try."""

    def __init__(self, *scripts: Callable[[Place], Awaitable[Whole | Stream]]) -> None:
        self._scripts = list(scripts)

    async def make(self, place: Place, wanted: Call, may_move: Callable[[], bool]) -> Whole | Stream:
        return await self._scripts.pop(0)(place)


class Scene:
    """Two upstreams and a dispatch that hedges after 10 ms."""

    def __init__(self, *scripts: Callable[[Place], Awaitable[Whole | Stream]], reserve: int = 9) -> None:
        self.upstreams = [upstream("a"), upstream("b")]
        attempts = cast(Attempts, Scripted(*scripts))
        self.budget = RetryBudget(Retries(share=0, per_second=0, reserve=reserve))
        self.dispatch = Dispatch(router(*self.upstreams), attempts, self.budget, max_attempts=1, hedge_after_s=0.01)

    @property
    def outstanding(self) -> int:
        return sum(each.outstanding for each in self.upstreams)


def run(body: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 20))


def test_of_two_that_end_at_once_the_one_that_has_begun_is_taken() -> None:
    for failing in (0, 1):

        async def body(failing: int = failing) -> None:
            both = asyncio.Event()
            started = 0

            async def script(place: Place) -> Whole | Stream:
                nonlocal started
                mine, started = started, started + 1
                if started == 2:
                    both.set()
                await both.wait()
                if mine == failing:
                    raise AttemptFailed("fails")
                return OpenStream(place)

            scene = Scene(script, script)
            answer = await scene.dispatch.answer(call())
            assert isinstance(answer, OpenStream) and scene.outstanding == 1
            await answer.aclose()
            assert scene.outstanding == 0

        run(body)


def test_of_two_that_have_begun_at_once_one_is_closed() -> None:
    async def body() -> None:
        both, started = asyncio.Event(), 0

        async def script(place: Place) -> Whole | Stream:
            nonlocal started
            started += 1
            if started == 2:
                both.set()
            await both.wait()
            return OpenStream(place)

        scene = Scene(script, script)
        answer = await scene.dispatch.answer(call())
        assert isinstance(answer, OpenStream) and scene.outstanding == 1
        await answer.aclose()
        assert scene.outstanding == 0

    run(body)


def test_a_client_that_leaves_while_the_loser_is_cancelled_leaves_nothing_open() -> None:
    async def body() -> None:
        cancelling = asyncio.Event()

        async def loser(place: Place) -> Whole | Stream:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelling.set()
                await asyncio.sleep(0.05)
                raise
            raise AssertionError

        async def winner(place: Place) -> Whole | Stream:
            return OpenStream(place)

        scene = Scene(loser, winner)
        asked = asyncio.create_task(scene.dispatch.answer(call()))
        await cancelling.wait()
        assert scene.outstanding == 2
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert scene.outstanding == 0

    run(body)


def test_a_client_that_leaves_before_a_try_has_run_takes_no_place() -> None:
    async def body() -> None:
        async def script(place: Place) -> Whole | Stream:
            raise AssertionError("it has run")

        scene = Scene(script)
        asked = asyncio.create_task(scene.dispatch.answer(call()))
        asyncio.get_running_loop().call_soon(asked.cancel)  # after its first step, before that of the try
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert scene.outstanding == 0

    run(body)


def test_a_hedge_without_budget_is_no_attempt() -> None:
    async def body() -> None:
        async def script(place: Place) -> Whole | Stream:
            await asyncio.sleep(0.03)
            place.close()
            return Whole(200, b"{}")

        scene = Scene(script, reserve=0)
        assert await scene.dispatch.answer(call()) == Whole(200, b"{}")
        assert scene.dispatch.counts["hedge"] == 0 and scene.budget.num_refused == 1
        assert sum(sum(each.counts.values()) for each in scene.upstreams) == 1

    run(body)
