"""Waiting for works to end: by a thread (`drive`), or in an event loop (`drive_async`).

A work yields runs, is resumed when all of them are done, and returns its Result (see `safegen.runtime`). Nothing about
answers is decided here. Whatever way a driver is left, runs that are still going are cancelled.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from safegen.engine.request import Event, FinishedEvent, TokensEvent
from safegen.errors import Cancelled, QueueFull, RequestError
from safegen.result import Result
from safegen.run import Run
from safegen.runtime import CallOptions, Runtime, Work
from safegen.sampling import check_options, merge_sampling

_QUEUE_FULL_PAUSE_S = 0.005
_WINDOW_PER_SEQUENCE = 2  # so that the engine always has the next row waiting


class Stop:
    """Lets another thread end a `drive`: it raises Cancelled where it waits."""

    def __init__(self) -> None:
        self.requested = False
        self.inbox: SimpleQueue[Event | None] = SimpleQueue()

    def request(self) -> None:
        self.requested = True
        self.inbox.put(None)


def advance(work: Work, error: Exception | None = None) -> tuple[Run, ...] | Result[Any]:
    """Resume a work: the runs it wants next, or its Result. error: raised inside it, at the place where it waits."""
    try:
        return work.throw(error) if error is not None else next(work)
    except StopIteration as ended:
        result: Result[Any] = ended.value
        return result


class Sink(Protocol):
    """Takes results as they come, of works whose number may be without end. All calls are of the thread that drives."""

    def take(self, number: int, result: Result[Any]) -> None: ...
    def has_room(self) -> bool:
        """Whether a further work may be begun; asked while others run."""
        ...

    def idle(self) -> None:
        """Nothing has come; the driver is about to wait."""
        ...


def drive_each(runtime: Runtime, works: Iterable[Work], sink: Sink, *, window: int, stop: Stop | None = None) -> None:
    """Run works to their Results, at most `window` at a time, which the sink takes in the order in which they end."""
    _Drive(runtime, stop or Stop(), True, sink).to_end(works, window)


def drive(
    runtime: Runtime, works: Iterable[Work], *, window: int = 1, wait_for_queue: bool = False, stop: Stop | None = None
) -> list[Result[Any]]:
    """Run works to their Results, in order, at most `window` at a time. Raises what a work raises.

    wait_for_queue: a full engine queue is waited for instead of raised.
    """
    results: dict[int, Result[Any]] = {}
    _Drive(runtime, stop or Stop(), wait_for_queue, _Kept(results)).to_end(works, window)
    return [results[number] for number in range(len(results))]


def drive_batch(
    runtime: Runtime, rows: Sequence[Any], spec: Any, options: CallOptions, stop: Stop | None = None
) -> list[Result[Any]]:
    """One Result a row, in order; rows never raise. Raises RequestError or EngineClosed for the call as a whole."""
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise RequestError(
            f"batch takes a list of prompts or of (prompt, type) pairs, got {type(rows).__name__}", field="rows"
        )
    runtime.check_open()
    check_options(options.guards, options.speculation)
    merge_sampling(options.params, options.sampling)
    works = (runtime.row(row, spec, options) for row in rows)
    return drive(runtime, works, window=_WINDOW_PER_SEQUENCE * runtime.max_num_seqs, wait_for_queue=True, stop=stop)


class _Joined:
    """Brings the tokens of a run, which nobody watches come, as one event before its end: each event wakes the thread
    that waits, which then competes with the engine's for the interpreter."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        self._put = put
        self._tokens: dict[int, list[TokensEvent]] = {}  # by the sample's index

    def __call__(self, event: Event) -> None:
        if isinstance(event, TokensEvent):
            self._tokens.setdefault(event.index, []).append(event)
            return
        if events := self._tokens.pop(event.index, None):
            ids = tuple(token_id for each in events for token_id in each.token_ids)
            logprobs = tuple(entry for each in events for entry in each.logprobs)
            origins = tuple(origin for each in events for origin in each.origins)
            self._put(TokensEvent(event.request_id, event.index, ids, logprobs, origins))
        self._put(event)


class _Kept:
    """The sink of a batch."""

    def __init__(self, results: dict[int, Result[Any]]) -> None:
        self.take = results.__setitem__

    def has_room(self) -> bool:
        return True

    def idle(self) -> None:
        pass


class _Drive:
    def __init__(self, runtime: Runtime, stop: Stop, wait_for_queue: bool, sink: Sink) -> None:
        self._runtime = runtime
        self._stop = stop
        self._wait_for_queue = wait_for_queue
        self._sink = sink
        self._works: dict[int, tuple[Work, set[str]]] = {}  # number -> work, ids of its runs that are not done
        self._runs: dict[str, tuple[int, Run]] = {}
        self._unsent: deque[tuple[int, Run]] = deque()

    def to_end(self, works: Iterable[Work], window: int) -> None:
        numbered = enumerate(works)
        more = True
        try:
            while True:
                while more and len(self._works) < window and not self._unsent:
                    self._check_stop()
                    if self._works and not self._sink.has_room():
                        break
                    number, work = next(numbered, (-1, None))
                    if work is None:
                        more = False
                    else:
                        self._works[number] = (work, set())
                        self._resume(number)
                if not self._works:
                    return
                self._send()
                self._take()
        finally:
            for _, run in self._runs.values():
                self._runtime.cancel(run)

    def _resume(self, number: int, error: Exception | None = None) -> None:
        work, waiting = self._works[number]
        step = advance(work, error)
        if isinstance(step, Result):
            del self._works[number]
            self._sink.take(number, step)
            return
        waiting.update(run.request.request_id for run in step)
        self._unsent.extend((number, run) for run in step)
        self._send()

    def _send(self) -> None:
        while self._unsent:
            number, run = self._unsent[0]
            self._runs[run.request.request_id] = (number, run)  # first: an interrupt may come as soon as it is sent
            try:
                self._runtime.submit(run, _Joined(self._stop.inbox.put))
            except Exception as error:
                del self._runs[run.request.request_id]
                if self._wait_for_queue and isinstance(error, QueueFull):
                    return
                self._refuse(number, error)
            else:
                self._unsent.popleft()

    def _refuse(self, number: int, error: Exception) -> None:
        """The engine refused a run: its work hears of it, and the work's other runs are of no use."""
        self._unsent = deque(entry for entry in self._unsent if entry[0] != number)
        for request_id in [name for name, (owner, _) in self._runs.items() if owner == number]:
            self._runtime.cancel(self._runs.pop(request_id)[1])
        self._works[number][1].clear()
        self._resume(number, error)

    def _check_stop(self) -> None:
        if self._stop.requested:
            raise Cancelled("the batch was cancelled")

    def _take(self) -> None:
        self._check_stop()
        if not self._runs:
            if self._unsent:
                time.sleep(_QUEUE_FULL_PAUSE_S)
            return
        if self._stop.inbox.empty():
            self._sink.idle()
        event = self._stop.inbox.get()
        if event is None or event.request_id not in self._runs:
            return
        number, run = self._runs[event.request_id]
        run.feed(event)
        if run.done:
            del self._runs[event.request_id]
            waiting = self._works[number][1]
            waiting.discard(event.request_id)
            if not waiting:
                self._resume(number)


async def drive_async(runtime: Runtime, work: Work) -> Result[Any]:
    """Run one work to its Result without blocking the event loop. Cancelling the task cancels its runs."""
    step = await asyncio.to_thread(advance, work)
    while not isinstance(step, Result):
        inbox = AsyncInbox(asyncio.get_running_loop())
        runs = {run.request.request_id: run for run in step}
        try:
            for run in step:
                runtime.submit(run, _Joined(inbox.put))
            while not all(run.done for run in step):
                event = await inbox.get()
                await feed_async(runs[event.request_id], event)
        finally:
            for run in step:
                if not run.done:
                    runtime.cancel(run)
        step = await asyncio.to_thread(advance, work)
    return step


async def feed_async(run: Run, event: Event) -> list[Any]:
    """Feed a run; on a worker thread at its end, where answers are validated, and where guards may wait."""
    if isinstance(event, FinishedEvent) or run.may_wait:
        return list(await asyncio.to_thread(run.feed, event))
    return list(run.feed(event))


class AsyncInbox:
    """Engine events of one caller, brought into its event loop. `put` is called on the engine's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._mail = _Mail.to(loop)
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        self._mail.put(self._events.put_nowait, event)

    async def get(self) -> Event:
        return await self._events.get()


class _Mail:
    """All events for one event loop. Waking a loop is a system call, so that those of a step share a wake-up."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Mail]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._letters: deque[tuple[Callable[[Event], None], Event]] = deque()
        self._is_under_way = False

    @classmethod
    def to(cls, loop: asyncio.AbstractEventLoop) -> _Mail:
        """Called in the loop's thread."""
        mail = cls._of_loops.get(loop)
        if mail is None:
            mail = cls._of_loops[loop] = cls(loop)
        return mail

    def put(self, take: Callable[[Event], None], event: Event) -> None:
        """Any thread. take: called in the loop."""
        self._letters.append((take, event))
        if self._is_under_way:  # `_deliver` has not begun to take letters, so that it takes this one
            return
        loop = self._loop()
        if loop is None or loop.is_closed():  # nobody is left to hear
            self._letters.clear()
            return
        self._is_under_way = True
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # closed meanwhile
            self._is_under_way = False
            self._letters.clear()

    def _deliver(self) -> None:
        self._is_under_way = False
        for _ in range(len(self._letters)):
            take, event = self._letters.popleft()
            take(event)
