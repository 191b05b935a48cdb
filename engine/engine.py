"""The engine's thread: it alone touches the core, and calls every `on_event`.

What a caller may count on:
- `submit` refuses in the caller's thread (bad request, full queue, closed) and otherwise returns at once.
- Each index 0..n-1 of a submitted request gets exactly one FinishedEvent: on a normal end, on cancel, on a fault, and
on
  close too, whatever was in flight.
- `on_event` runs on the engine's thread, must not block, and should only hand the event over. If it raises, its own
  request is cancelled, with that exception as the error; the others go on.
- In a forked child the thread is not there: `submit` raises EngineClosed, `cancel` and `close` do nothing.
- `close` stops the thread after the step that runs; so do the end of the interpreter and the collection of an engine
  that nobody refers to any more. (The loop therefore lives in an object of its own, without a reference to `Engine`.)
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType

from safegen.engine import faults
from safegen.engine.backend import Backend
from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.request import Event, FinishedEvent, Request, Timings, Usage
from safegen.engine.speculate.speculator import Speculator
from safegen.engine.stats import EngineStats
from safegen.errors import EngineClosed, EngineError, QueueFull, RequestError

_log = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 10.0

OnEvent = Callable[[Event], None]


class _State(Enum):
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass(slots=True)
class _Client:
    """A request in flight. num_open: sequences without their FinishedEvent. fault: what its on_event raised."""

    request: Request
    on_event: OnEvent
    submitted_s: float
    num_open: int
    admitted: bool = False
    cancelled: bool = False
    fault: BaseException | None = None


class _Loop:
    """State shared by callers and the thread, under one lock, and the thread's function.

    A KeyboardInterrupt may come in a caller at any call. `with` on the lock itself lets none in between taking it and
    being bound to give it back (`with` on a Condition does, in Condition.__enter__, and then the thread waits for
    ever); the thread is told first and the state changed last, in one call, so that what is cut off never began.
    """

    def __init__(self, core: EngineCore, max_queue: int, on_end: Callable[[], None] | None) -> None:
        self.core = core
        self._max_queue = max_queue
        self._on_end = on_end
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # `with` takes the lock itself: see below
        self._state = _State.OPEN
        self._inbox: deque[_Client] = deque()
        self._clients: dict[str, _Client] = {}

    # --- any thread -----------------------------------------------------------------------------------------------

    def submit(self, request: Request, on_event: OnEvent) -> None:
        self.core.door.check(request)
        client = _Client(request, on_event, time.monotonic(), request.params.n)
        with self._lock:
            if self._state is not _State.OPEN:
                raise EngineClosed("the engine has been closed; start a new one")
            if request.request_id in self._clients:
                raise RequestError(
                    f"request_id {request.request_id!r} is in flight already",
                    field="request_id",
                    value=request.request_id,
                )
            if self.num_waiting >= self._max_queue:
                raise QueueFull(
                    f"the queue is full: {self.num_waiting} wait, max_queue={self._max_queue}. "
                    f"Fix: submit more slowly, or raise max_queue."
                )
            self._changed.notify()
            self._clients[request.request_id] = client
            self._inbox.append(client)

    def cancel(self, request_id: str) -> None:
        with self._lock:
            client = self._clients.get(request_id)
            if client is None:
                return
            self._changed.notify()
            if client.admitted:
                self.core.cancel(request_id)
            else:
                client.cancelled = True

    def stop(self, *, drain: bool) -> None:
        with self._lock:
            self._changed.notify()
            if not drain:
                self._state = _State.CLOSED
            elif self._state is _State.OPEN:
                self._state = _State.DRAINING

    @property
    def num_waiting(self) -> int:
        return len(self._inbox) + self.core.num_waiting

    # --- the engine's thread --------------------------------------------------------------------------------------

    def run(self) -> None:
        fault: BaseException | None = None
        try:
            while self._wait_for_work():
                self._deliver(self._step())
        except BaseException as exc:
            fault = exc
            raise
        finally:
            self._answer_the_rest(fault)
            if self._on_end is not None:
                self._on_end()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do, hand new requests to the core; False when the thread is to end."""
        refused: list[Event] = []
        with self._lock:
            while self._state is _State.OPEN and self._is_idle:
                self._changed.wait()
            if self._state is _State.CLOSED or self._is_idle:
                return False
            self._hand_over(refused)
        self._deliver(refused)
        return True

    @property
    def _is_idle(self) -> bool:
        return not self._inbox and not self.core.has_work

    def _hand_over(self, refused: list[Event]) -> None:
        while self._inbox:
            client = self._inbox.popleft()
            request = client.request
            try:
                self.core.add(request, submitted_s=client.submitted_s)
            except Exception as exc:
                refused += [_refusal(request, index, exc) for index in range(request.params.n)]
                continue
            client.admitted = True
            if client.cancelled:
                self.core.cancel(request.request_id)

    def _step(self) -> list[Event]:
        try:
            return self.core.step()
        except Exception as exc:
            _log.error("fault in the engine's step; all requests in flight end with an error: %s", faults.told(exc))
            cause = exc
            return self.core.end_all("error", lambda: _wrapped("fault in the engine's step", cause))

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            client = self._clients[event.request_id]
            if isinstance(event, FinishedEvent):
                self._count_finished(client)
            elif client.fault is not None:
                continue
            try:
                client.on_event(event)
            except BaseException as exc:
                self._blame(client, exc)

    def _count_finished(self, client: _Client) -> None:
        client.num_open -= 1
        if client.num_open == 0:
            with self._lock:
                del self._clients[client.request.request_id]

    def _blame(self, client: _Client, exc: BaseException) -> None:
        if client.fault is None:
            client.fault = exc
            error = exc if isinstance(exc, Exception) else _wrapped("on_event raised", exc)
            self.core.cancel(client.request.request_id, error)

    def _answer_the_rest(self, fault: BaseException | None) -> None:
        refused: list[Event] = []
        with self._lock:
            self._state = _State.CLOSED
            self._hand_over(refused)
        if fault is None:
            events = self.core.end_all("cancelled", lambda: EngineClosed("the engine was closed"))
        else:
            events = self.core.end_all("error", lambda: _wrapped("the engine's thread died", fault))
        self._deliver(refused + events)


class Engine:
    """A thread that serves requests over a backend. See the module's docstring for what callers may count on."""

    def __init__(
        self,
        backend: Backend,
        token_bytes: Ids[bytes | None],
        config: EngineConfig | None = None,
        speculator: Speculator | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """token_bytes: bytes of every token id, None for those that stand for no text; ids past its end are never
        sampled. speculator: this engine's own, None is no speculation. on_end: called on the thread as the last
        thing it does, such as to give back what the backend holds. Raises RequestError for settings that do not fit
        the backend, CapacityError for too little memory."""
        self.config = EngineConfig() if config is None else config
        self._process_id = os.getpid()
        core = EngineCore(backend, token_bytes, self.config, speculator=speculator)
        self._loop = _Loop(core, self.config.max_queue, on_end)
        self._thread = threading.Thread(target=self._loop.run, name="safegen-engine", daemon=True)
        self._finalizer = weakref.finalize(self, _stop_quietly, self._loop, self._thread, self._process_id)
        self._thread.start()

    def submit(self, request: Request, on_event: OnEvent) -> None:
        """Queue a request. on_event is called on the engine's thread, possibly before this returns.

        Raises RequestError (empty prompt, ids out of range, prompt longer than the context, request_id in use),
        CapacityError (can never fit the KV cache), QueueFull (too many wait), EngineClosed.
        """
        if self._is_forked:
            raise EngineClosed("this process was forked from the engine's; start a new engine (LLM) in it")
        self._loop.submit(request, on_event)

    def cancel(self, request_id: str) -> None:
        """End a request's sequences as "cancelled", after the step that runs. Ids not in flight are ignored."""
        if not self._is_forked:
            self._loop.cancel(request_id)

    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        """Stop. Sequences in flight end as "cancelled" with EngineClosed as their error; with drain they are finished
        first, as far as timeout_s allows. Idempotent. Called from on_event it does not wait for the thread.

        Raises EngineError if the thread still runs after timeout_s (a forward that hangs).
        """
        if self._is_forked:
            return
        self._loop.stop(drain=drain)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and drain:
            self._loop.stop(drain=False)
            self._thread.join(_EXIT_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineError(f"the engine's thread did not stop within timeout_s={timeout_s}: a forward still runs")
        self._finalizer.detach()

    @property
    def _is_forked(self) -> bool:
        """In a child the loop's lock may be held by the thread that was left behind, so it must not be asked for."""
        return os.getpid() != self._process_id

    def stats(self) -> EngineStats:
        """Counts of this moment; any thread."""
        return replace(self._loop.core.stats(), waiting=self._loop.num_waiting)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stop_quietly(loop: _Loop, thread: threading.Thread, process_id: int) -> None:
    if os.getpid() != process_id:
        return
    loop.stop(drain=False)
    if threading.current_thread() is not thread:
        thread.join(_EXIT_TIMEOUT_S)


def _wrapped(what: str, exc: BaseException) -> EngineError:
    error = EngineError(f"{what}: {exc!r}")
    error.__cause__ = exc
    return error


def _refusal(request: Request, index: int, exc: Exception) -> FinishedEvent:
    usage = Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=0)
    return FinishedEvent(request.request_id, index, "error", usage, Timings(0.0, 0.0, 0.0), text_bytes=0, error=exc)
