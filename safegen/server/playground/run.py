"""One run of the playground: a chat request's answer as server-sent events that tell how it came about.

    {"type": "type", "kind", "compile_ms", "findings"}                 once, when the output type is ready
    {"type": "delta", "text", "spans": [[characters, origin, is_rest]], "at_ms"}
    {"type": "guard", "guard", "kind", "stage", "path", "action", "rule", "milliseconds"}      what guards decided
    {"type": "final", "status", "finish_reason", "message", "error", "usage", "timings", "at_ms"}    once, the last

then `[DONE]`. `origin` is "forced", "drafted", "sampled", or null where it is not told. The deltas, joined, are what a
stream of the same request shows. What went wrong before the first event is a status, as everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from safegen.errors import GuardBlocked, SafegenError, Truncated
from safegen.events import DeltaEvent
from safegen.guards.audit import AuditRecord
from safegen.output_type import OutputType
from safegen.result import Result
from safegen.server.admission import Lease
from safegen.server.answers import Answers
from safegen.server.choices import Choice, fold
from safegen.server.completions import call_id
from safegen.server.errors import Params, api_error
from safegen.server.playground.places import telling_places
from safegen.server.replies import Reply
from safegen.server.shapes import encoded, new_id
from safegen.server.tool_deltas import Delta
from safegen.server.translate import Call

_MAX_FINDINGS = 200
_QUIET = ("allow", "log")  # a guard that only watches is not given away


class TracedAnswer:
    """call: of one choice, with `token_origins`."""

    def __init__(self, answers: Answers, call: Call, lease: Lease) -> None:
        self._answers = answers
        self._call = call
        self._lease = lease
        self._started_s = time.perf_counter()
        self._choice = Choice(call.tool_form, call_id(new_id("run-"), 0))
        self._deltas: list[Delta] = []

    async def send(self, reply: Reply) -> None:
        self._lease.grow(1)
        call = self._call
        with telling_places():
            output_type = await self._answers.compiled_type(call, self._lease)
        try:
            stream = self._answers.events(call.prompts[0], self._answers.held(call, output_type), call, is_stream=True)
            async with contextlib.aclosing(stream) as events:
                await reply.open()
                await reply.event(encoded(_type_event(output_type)))
                async for event in events:
                    if isinstance(event, DeltaEvent):
                        await reply.event(encoded(self._delta(event)))
                        continue
                    for told in (*guard_events(event.result.audit), self._final(event.result)):
                        await reply.event(encoded(told))
        except SafegenError as error:
            raise api_error(error, call.params) from error
        await reply.done()

    def _delta(self, event: DeltaEvent) -> dict[str, Any]:
        self._deltas += self._choice.feed(event.text)
        spans = [[span.num_chars, span.origin, span.is_rest] for span in event.spans]
        return {
            "type": "delta", "text": event.text, "spans": spans or [[len(event.text), None, False]],
            "at_ms": self._at_ms(),
        }  # fmt: skip

    def _final(self, result: Result[Any]) -> dict[str, Any]:
        self._deltas += self._choice.finish(result)
        return {
            "type": "final",
            "status": result.status,
            "finish_reason": self._choice.finish_reason(result) if result.status in ("ok", "truncated") else None,
            "message": fold(self._deltas),
            "error": None if result.error is None else message_of(result.error, self._call.params),
            "usage": dataclasses.asdict(result.usage),
            "timings": dataclasses.asdict(result.timings),
            "at_ms": self._at_ms(),
        }

    def _at_ms(self) -> float:
        return round((time.perf_counter() - self._started_s) * 1e3, 2)


def message_of(error: Exception, params: Params) -> str:
    """Why an answer is not ok, without a word of it. What a guard or the token limit says names no text."""
    return str(error) if isinstance(error, GuardBlocked | Truncated) else api_error(error, params).message


def _type_event(output_type: OutputType[Any] | None) -> dict[str, Any]:
    if output_type is None:
        return {"type": "type", "kind": "text", "compile_ms": 0.0, "findings": []}
    findings = [each._asdict() for each in output_type.findings[:_MAX_FINDINGS]]
    return {
        "type": "type", "kind": output_type.kind, "compile_ms": round(output_type.compile_ms, 2), "findings": findings,
    }  # fmt: skip


def guard_events(records: Sequence[AuditRecord]) -> list[dict[str, Any]]:
    """What the answer's reader may know of decisions: which guard, where in the value, by which rule; not which
    characters, nor their number or digest. Guards that let all pass come last, in an order that tells nothing."""
    acted = [record for record in records if record.action not in _QUIET]
    known = {(record.guard, "output" if record.stage == "decoding" else record.stage) for record in acted}
    silent = [record for record in records if record.action in _QUIET and (record.guard, record.stage) not in known]
    quiet = {(record.stage, record.guard): record for record in silent}
    return [
        *(_guard_event(record, record.action, record.path, record.rule) for record in acted),
        *(_guard_event(quiet[name], "allow", "$", None) for name in sorted(quiet)),
    ]


def _guard_event(record: AuditRecord, action: str, path: str, rule: str | None) -> dict[str, Any]:
    return {
        "type": "guard", "guard": record.guard, "kind": record.type, "stage": record.stage, "path": path,
        "action": action, "rule": rule, "milliseconds": round(record.milliseconds, 3),
    }  # fmt: skip
