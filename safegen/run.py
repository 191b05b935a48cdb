"""One engine request on its way: takes the engine's events, gives stream events, ends as a Result.

A plain state machine without threads or waiting, so that plain, streamed, batched and async calls share it. It also
is the one place where a status is decided: `ok` only after the output type's independent `read`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from safegen.engine.request import Event, FinishedEvent, Request, Timings, TokenLogprobs, TokensEvent, Usage
from safegen.errors import Cancelled, EngineClosed, EngineError, InvalidOutput, Truncated
from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent, StreamEvent
from safegen.origins import OriginTrack, TokenSpan
from safegen.output_type import OutputType
from safegen.result import Result, Status
from safegen.text_stream import TextStream
from safegen.think import ThinkStream

if TYPE_CHECKING:
    from safegen.guards.sample import SampleGuard
    from safegen.guards.session import GuardSession

_log = logging.getLogger(__name__)
OnEnd = Callable[[Result[Any]], None]


class Run:
    """A request and what has come back. Fed by one thread at a time. `result` is there once `done`."""

    def __init__(
        self,
        request: Request,
        output_type: OutputType[Any],
        token_bytes: Sequence[bytes | None],
        *,
        snapshots: bool = False,
        guards: Sequence[SampleGuard] = (),
        session: GuardSession | None = None,
    ) -> None:
        """guards: one a sample, or none. session: what the Result is concluded by at the end, if this run is all."""
        self.request = request
        self._samples = [
            _Sample(request, output_type, token_bytes, snapshots, guards[number] if guards else None)
            for number in range(request.params.n)
        ]
        self._session = session
        self._result: Result[Any] | None = None
        self._on_end: OnEnd | None = None

    def when_ended(self, on_end: OnEnd | None) -> bool:
        """Whom to tell the Result, once; at once if there is one. None: nobody; True if somebody would have been."""
        waited, self._on_end = self._on_end is not None, on_end
        if self._result is not None:
            self._tell(self._result)
        return waited

    def _tell(self, result: Result[Any]) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(result)

    @property
    def done(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> Result[Any]:
        assert self._result is not None, "the run has not ended"
        return self._result

    @property
    def is_stopped(self) -> bool:
        """Guards have stopped every sample that still runs, so the engine need not go on."""
        return all(each.finished or each.is_stopped for each in self._samples)

    @property
    def may_wait(self) -> bool:
        """Feeding it may take time: guards with a thread of their own look at the text."""
        return any(each.guard is not None and each.is_streamed and not each.guard.is_inline for each in self._samples)

    @property
    def retry_hint(self) -> str | None:
        """What to tell the model when a guard wants the answer asked for again."""
        guard = self._samples[0].guard if len(self._samples) == 1 else None
        stopped = None if guard is None else guard.stopped
        return stopped.hint if stopped is not None and stopped.outcome == "retry" else None

    def feed(self, event: Event) -> list[StreamEvent]:
        """Take the next event of the engine. The last one of the last sequence judges the answers."""
        sample = self._samples[event.index]
        shown: list[StreamEvent] = []
        reasoning, answer = sample.take(event)
        if reasoning:
            shown.append(DeltaEvent(reasoning, event.index, thinking=True, spans=sample.spans_of(reasoning)))
        if answer:
            shown.append(DeltaEvent(answer, event.index, spans=sample.spans_of(answer)))
        if sample.partial is not None and answer and sample.partial.feed(answer):
            shown.append(SnapshotEvent(sample.partial.snapshot(), event.index))
        if isinstance(event, FinishedEvent) and all(each.finished for each in self._samples):
            first, *others = [each.judge() for each in self._samples]
            result = dataclasses.replace(first, alternatives=tuple(others)) if others else first
            self._result = result if self._session is None else self._session.conclude(result)
            shown.append(FinalEvent(self._result))
            self._log_end(self._result)
            self._tell(self._result)
        return shown

    def leave(self) -> None:
        """Nobody reads on: guards record what they have decided."""
        if self._session is None or self._result is not None:
            return
        for sample in self._samples:
            if sample.guard is not None:
                sample.guard.leave()
        self._session.leave()

    def _log_end(self, result: Result[Any]) -> None:
        """Never the answer, nor an error's message, which may quote it."""
        if _log.isEnabledFor(logging.DEBUG):
            usage, timings, error = result.usage, result.timings, result.error
            _log.debug(
                "request %s ended: %s (%s), %d tokens, first after %.1f ms, all after %.1f ms, masks %.1f ms%s",
                self.request.request_id, result.status, result.finish_reason, usage.completion_tokens,
                timings.first_token_ms, timings.total_ms, timings.mask_ms,
                "" if error is None else f", {type(error).__name__}",
            )  # fmt: skip


class _Sample:
    """One of a request's n sequences."""

    def __init__(
        self,
        request: Request,
        output_type: OutputType[Any],
        token_bytes: Sequence[bytes | None],
        snapshots: bool,
        guard: SampleGuard | None = None,
    ) -> None:
        self._output_type = output_type
        self.guard = guard
        self.is_streamed = snapshots
        self._unguarded: list[str] = []  # text that waits for its end, where nobody watches it come
        self._wants_logprobs = request.params.logprobs is not None
        self._text_stream = TextStream(token_bytes, request.params.stop)
        self._text: list[str] = []
        self._origins = OriginTrack(token_bytes) if request.wants_origins else None
        self._logprobs: list[TokenLogprobs] = []
        self.partial = output_type.partial() if snapshots and output_type.partial is not None else None
        self._think_stream = ThinkStream(output_type.think) if output_type.think is not None else None
        self.finished: FinishedEvent | None = None

    def take(self, event: Event) -> tuple[str, str]:
        """The text that the event makes certain: of the reasoning, and of the answer."""
        if isinstance(event, TokensEvent):
            text = self._text_stream.feed(event.token_ids)
            self._logprobs.extend(event.logprobs)
            if self._origins is not None:
                self._origins.feed(event.token_ids, event.origins)
        else:
            text = self._text_stream.finish(event.text_bytes)
            self.finished = event
        if self.guard is not None:
            text = self._guarded(text, self.guard)
        self._text.append(text)
        return ("", text) if self._think_stream is None else self._think_stream.feed(text)

    def spans_of(self, shown: str) -> tuple[TokenSpan, ...]:
        """Of text that `take` gave, in its order."""
        if self._origins is None:
            return ()
        return self._origins.take(shown, is_edited=self.guard is not None and self.guard.is_edited)

    @property
    def is_stopped(self) -> bool:
        return self.guard is not None and self.guard.stopped is not None

    def _guarded(self, text: str, guard: SampleGuard) -> str:
        """What the guards let out. An answer that nobody watches is looked at once, as a whole."""
        if self.is_streamed:
            text = guard.feed(text)
            return text + guard.finish() if self.finished is not None else text
        self._unguarded.append(text)
        if self.finished is None:
            return ""
        return guard.feed("".join(self._unguarded)) + guard.finish()

    def judge(self) -> Result[Any]:
        assert self.finished is not None
        text = "".join(self._text)
        status, value, error = self._verdict(text, self.finished)
        if self.guard is not None and (self.guard.changed or status == "blocked"):
            self._wants_logprobs = False  # they name the tokens of what was taken out
        if status == "blocked" and not self.is_streamed:
            text = ""
        return Result(
            value=value,
            text=text,
            status=status,
            finish_reason=self.finished.finish_reason,
            usage=self.finished.usage,
            timings=self.finished.timings,
            logprobs=tuple(self._logprobs) if self._wants_logprobs else None,
            thinking=None if self._output_type.think is None else self._output_type.think.split(text)[0],
            error=error,
        )

    def _verdict(self, text: str, finished: FinishedEvent) -> tuple[Status, Any, Exception | None]:
        guard = self.guard
        if guard is None:
            return _verdict(self._output_type, text, finished)
        blocked = guard.blocked() or guard.unreplaced(finished.error)
        if blocked is not None:
            return "blocked", None, blocked
        status, value, error = _verdict(self._output_type, text, finished)
        if status == "invalid" and guard.changed and finished.finish_reason != "error":
            return "blocked", None, guard.blame()
        return status, value, error


def _verdict(output_type: OutputType[Any], text: str, finished: FinishedEvent) -> tuple[Status, Any, Exception | None]:
    """(status, value, why not ok) of a finished sequence."""
    if finished.finish_reason == "cancelled" or isinstance(finished.error, EngineClosed):
        return "cancelled", None, finished.error or Cancelled("the request was cancelled")
    if finished.finish_reason == "error":
        status: Status = "invalid" if isinstance(finished.error, InvalidOutput) else "error"
        return status, None, finished.error or EngineError("the engine gave no reason")
    limit = f"the answer was cut at {finished.usage.completion_tokens} tokens; raise max_tokens"
    if finished.finish_reason == "length" and not finished.forced_close:
        return "truncated", text if output_type.kind == "text" else None, Truncated(limit)
    try:
        value = output_type.read(text)
    except InvalidOutput as error:
        return "invalid", None, error
    except Exception as error:  # a validator that fails has not validated
        return "error", None, error
    if finished.forced_close:
        return "truncated", value, Truncated(f"{limit}. It was closed in the shortest legal way")
    return "ok", value, None


class EndedRun(Run):
    """A run that is over before it began, such as one whose prompt a guard has stopped."""

    def __init__(self, result: Result[Any]) -> None:
        self._samples = []
        self._session = None
        self._result = result
        self._on_end = None


def closed_event(request: Request, index: int, error: Exception) -> FinishedEvent:
    """What a request comes to whose engine is gone."""
    usage, timings = Usage(len(request.prompt_ids), 0), Timings(0.0, 0.0, 0.0)
    return FinishedEvent(request.request_id, index, "cancelled", usage, timings, text_bytes=0, error=error)
