"""A request's tries: the first, further ones where it failed before its answer began, and a hedge where that is slow.

Another upstream is asked at once; one that has been asked before, after a short and growing wait. A hedge is a second
try beside the first: the one whose answer begins first is taken, the other is cancelled, and its upstream sees its
client leave. Each try beyond the first takes from the one retry budget.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from safegen.gateway.attempts import AttemptFailed, Attempts, Stream, Whole
from safegen.gateway.budget import RetryBudget
from safegen.gateway.calls import Call
from safegen.gateway.router import Router
from safegen.gateway.upstream import Place, Upstream

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
Try = asyncio.Task[Whole | Stream]


class Dispatch:
    """hedge_after_s: None never hedges. counts: of retries and hedges."""

    def __init__(
        self, router: Router, attempts: Attempts, budget: RetryBudget, max_attempts: int, hedge_after_s: float | None
    ) -> None:
        self._router = router
        self._attempts = attempts
        self._budget = budget
        self._max_attempts = max_attempts
        self._hedge_after_s = hedge_after_s
        self.counts: Counter[str] = Counter()

    async def answer(self, call: Call) -> Whole | Stream:
        """An answer that has begun; the caller closes a stream. Raises ApiError."""
        self._budget.deposit()
        tried: list[Upstream] = []
        for number in range(1, self._max_attempts + 1):
            place = await self._router.place(call, tried)
            tried.append(place.upstream)
            is_last = number == self._max_attempts
            try:
                return await self._tried(call, place, tried, partial(self._may_move, is_last))
            except AttemptFailed as failure:
                if is_last or not (failure.is_paid or self._budget.withdraw()):
                    return failure.told()
            self.counts["retry"] += 1
            if len(set(tried)) >= self._router.num_upstreams(call.model):
                await asyncio.sleep(random.uniform(0.5, 1) * min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S))
        raise AssertionError("max_attempts is at least one")

    def _may_move(self, is_last: bool) -> bool:
        return not is_last and self._budget.withdraw()

    async def _tried(
        self, call: Call, place: Place, tried: list[Upstream], may_move: Callable[[], bool]
    ) -> Whole | Stream:
        if self._hedge_after_s is None:
            return await self._attempts.make(place, call, may_move)
        first = self._started(place, call, may_move)
        tries = [first]
        try:
            await asyncio.wait(tries, timeout=self._hedge_after_s)
            if not first.done() and (other := self._hedge_place(call, tried)) is not None:
                tried.append(other.upstream)
                tries.append(self._started(other, call, lambda: False))
            taken = await _first_begun(tries)
            self.counts["hedge_won"] += taken is not first
            await _cancel([each for each in tries if each is not taken])
        except BaseException:  # all have failed, or the client has left, and wants nothing that has begun
            await _cancel(tries)
            raise
        return taken.result()

    def _hedge_place(self, call: Call, tried: list[Upstream]) -> Place | None:
        """At an upstream that has room now, or none."""
        if not self._router.has_room(call, tried) or not self._budget.withdraw():
            return None
        self.counts["hedge"] += 1
        return self._router.try_place(call, tried)

    def _started(self, place: Place, call: Call, may_move: Callable[[], bool]) -> Try:
        """A task that is cancelled before it runs gives nothing back by itself."""
        task = asyncio.create_task(self._attempts.make(place, call, may_move))
        task.add_done_callback(lambda done: None if _has_stream(done) else place.close())
        return task


async def _first_begun(tries: list[Try]) -> Try:
    """The first that has an answer. Raises AttemptFailed, of the last, when all have failed."""
    pending = set(tries)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        failures = {task: task.exception() for task in done}
        for task, failure in failures.items():
            if failure is None:
                return task
        for failure in failures.values():
            if failure is not None and not (pending and isinstance(failure, AttemptFailed)):
                raise failure


async def _cancel(tries: list[Try]) -> None:
    begun = [task.result() for task in tries if task.done() and _has_stream(task)]
    for task in tries:
        task.cancel()
    closing = [outcome.aclose() for outcome in begun if isinstance(outcome, Stream)]
    await asyncio.gather(*tries, *closing, return_exceptions=True)


def _has_stream(task: Try) -> bool:
    return not task.cancelled() and task.exception() is None and isinstance(task.result(), Stream)
