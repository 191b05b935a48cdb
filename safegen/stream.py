"""`Stream` and `AsyncStream`: one request's events, as they come.

Use them with `with`: entering submits the request, leaving early cancels it. A stream that is dropped without leaving
the block cancels its request when it is collected. The last event is a FinalEvent with the validated Result.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from safegen.drive import AsyncInbox, feed_async
from safegen.engine.request import Event
from safegen.errors import EngineClosed, RequestError
from safegen.events import FinalEvent, StreamEvent
from safegen.prompt import Prompt
from safegen.result import Result
from safegen.run import Run
from safegen.runtime import CallOptions, Runtime

T = TypeVar("T")


class Stream(Iterator[StreamEvent], Generic[T]):
    """Events of one request. A context manager and an iterator; used by one thread."""

    def __init__(self, runtime: Runtime, run: Run) -> None:
        self._runtime = runtime
        self._run = run
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._ready: deque[StreamEvent] = deque()
        self._cancel: weakref.finalize[..., Any] | None = None
        self._process_id = 0

    def __enter__(self) -> Stream[T]:
        if self._cancel is not None:
            raise RequestError("a stream can be entered once; call stream(...) again")
        if self._run.done:  # a guard stopped the prompt
            self._ready.append(FinalEvent(self._run.result))
        else:
            self._runtime.submit_stream(self._run, self._inbox.put)
        self._process_id = os.getpid()
        self._cancel = weakref.finalize(self, _abandon_unless_done, self._runtime, self._run, os.getpid())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cancel is not None:
            self._cancel()

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> StreamEvent:
        if self._cancel is None:
            raise RequestError("a stream is used in a with block: `with llm.stream(...) as events: ...`")
        while not self._ready:
            if self._run.done or not self._cancel.alive:
                raise StopIteration
            if self._process_id != os.getpid():
                raise EngineClosed("this process was forked from the stream's, which goes on there alone")
            self._ready.extend(self._run.feed(self._inbox.get()))
            if self._run.is_stopped and not self._run.done:  # by guards, so that the rest is of no use
                self._runtime.cancel(self._run)
        return self._ready.popleft()

    def result(self) -> Result[T]:
        """Read on to the end, without yielding; the Result. Raises RequestError after the block was left early."""
        for _ in self:
            pass
        if not self._run.done:
            raise RequestError("the stream was left before its end, so there is no result")
        return self._run.result


class AsyncStream(AsyncIterator[StreamEvent], Generic[T]):
    """Events of one request. An async context manager and iterator; used by one task."""

    def __init__(self, runtime: Runtime, prompt: Prompt, spec: Any, options: CallOptions) -> None:
        self._runtime = runtime
        self._call = (prompt, spec, options)
        self._run: Run | None = None
        self._inbox: AsyncInbox | None = None
        self._ready: deque[StreamEvent] = deque()
        self._cancel: weakref.finalize[..., Any] | None = None

    async def __aenter__(self) -> AsyncStream[T]:
        if self._run is not None:
            raise RequestError("a stream can be entered once; call stream(...) again")
        self._run = await asyncio.to_thread(self._runtime.stream, *self._call)
        self._inbox = AsyncInbox(asyncio.get_running_loop())
        if self._run.done:  # a guard stopped the prompt
            self._ready.append(FinalEvent(self._run.result))
        else:
            self._runtime.submit_stream(self._run, self._inbox.put)
        self._cancel = weakref.finalize(self, _abandon_unless_done, self._runtime, self._run, os.getpid())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cancel is not None:
            self._cancel()

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._run is None or self._inbox is None or self._cancel is None:
            raise RequestError("a stream is used in an async with block: `async with llm.stream(...) as events: ...`")
        while not self._ready:
            if self._run.done or not self._cancel.alive:
                raise StopAsyncIteration
            self._ready.extend(await feed_async(self._run, await self._inbox.get()))
            if self._run.is_stopped and not self._run.done:  # by guards, so that the rest is of no use
                self._runtime.cancel(self._run)
        return self._ready.popleft()

    async def result(self) -> Result[T]:
        """Read on to the end, without yielding; the Result. Raises RequestError after the block was left early."""
        async for _ in self:
            pass
        if self._run is None or not self._run.done:
            raise RequestError("the stream was left before its end, so there is no result")
        return self._run.result


def _abandon_unless_done(runtime: Runtime, run: Run, process_id: int) -> None:
    if not run.done:
        runtime.abandon(run)
        if process_id == os.getpid():  # a fork has no part in it
            run.leave()
