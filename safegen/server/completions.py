"""The work of /v1/chat/completions and /v1/completions: events in, chunks or one document out.

Both endpoints share everything but how a choice is spelled (`Spelling`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from safegen.errors import SafegenError
from safegen.events import DeltaEvent, FinalEvent
from safegen.result import Result
from safegen.server.admission import Lease
from safegen.server.answers import Answers, merged
from safegen.server.choices import Choice, failure_of, fold
from safegen.server.errors import api_error
from safegen.server.replies import Reply
from safegen.server.shapes import ChunkWriter, Heading, LogprobShapes, encoded, new_id, usage_of
from safegen.server.tool_deltas import Delta
from safegen.server.translate import Call


class Spelling(Protocol):
    """How an endpoint writes a choice."""

    document_kind: str
    chunk_kind: str
    id_prefix: str

    def whole(self, index: int, deltas: list[Delta], reason: str, result: Result[Any]) -> dict[str, Any]: ...
    def piece(self, index: int, delta: Delta, *, is_first: bool) -> dict[str, Any]: ...
    def end(self, index: int, reason: str, result: Result[Any], *, is_first: bool) -> dict[str, Any]: ...


class ChatSpelling:
    document_kind, chunk_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, logprobs: LogprobShapes) -> None:
        self._logprobs = logprobs

    def whole(self, index: int, deltas: list[Delta], reason: str, result: Result[Any]) -> dict[str, Any]:
        logprobs = self._logprobs.chat(result.logprobs)
        return {"index": index, "message": fold(deltas), "logprobs": logprobs, "finish_reason": reason}

    def piece(self, index: int, delta: Delta, *, is_first: bool) -> dict[str, Any]:
        shown = {"role": "assistant", **delta} if is_first else delta
        return {"index": index, "delta": shown, "logprobs": None, "finish_reason": None}

    def end(self, index: int, reason: str, result: Result[Any], *, is_first: bool) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""} if is_first else {}
        logprobs = self._logprobs.chat(result.logprobs)
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


class TextSpelling:
    document_kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, logprobs: LogprobShapes) -> None:
        self._logprobs = logprobs

    def whole(self, index: int, deltas: list[Delta], reason: str, result: Result[Any]) -> dict[str, Any]:
        text = "".join(self._text(delta) for delta in deltas)
        return self._choice(index, text, reason, self._logprobs.plain(result.logprobs))

    def piece(self, index: int, delta: Delta, *, is_first: bool) -> dict[str, Any]:
        return self._choice(index, self._text(delta), None, None)

    def end(self, index: int, reason: str, result: Result[Any], *, is_first: bool) -> dict[str, Any]:
        return self._choice(index, "", reason, self._logprobs.plain(result.logprobs))

    def _choice(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _text(self, delta: Delta) -> str:
        """A refusal is the text of an endpoint that has no place for one."""
        return "".join(delta.get(name) or "" for name in ("content", "refusal"))


def document_of(call: Call, result: Result[Any], spelling: Spelling, model: str, fingerprint: str) -> dict[str, Any]:
    """The document of an answer that is there already, as of a batch. Raises ApiError where there is none."""
    failure = failure_of(result, call.params)
    if failure is not None:
        raise failure
    identity, shown = new_id(spelling.id_prefix), []
    for index, sample in enumerate((result, *result.alternatives)):
        choice = Choice(call.tool_form, call_id(identity, index))
        deltas = [*choice.feed(sample.text), *choice.finish(sample)]
        shown.append(spelling.whole(index, deltas, choice.finish_reason(sample), sample))
    return Heading(identity, spelling.document_kind, model, fingerprint).document(shown, usage_of([result]))


def call_id(identity: str, index: int) -> str:
    """The beginning of the ids of a choice's tool calls."""
    return f"call_{identity.rpartition('-')[2]}_{index}_"


@dataclass(frozen=True, slots=True)
class Part:
    """Of an answer: a delta of a choice, or its end."""

    index: int
    delta: Delta | None = None
    result: Result[Any] | None = None
    reason: str = ""


class Answer:
    """One request on its way. names: its id, and how choices are written."""

    def __init__(
        self, answers: Answers, call: Call, lease: Lease, spelling: Spelling, model: str, fingerprint: str
    ) -> None:
        self._answers = answers
        self._call = call
        self._lease = lease
        self._spelling = spelling
        self._id = new_id(spelling.id_prefix)
        self._names = (model, fingerprint)
        self._results: list[Result[Any]] = []

    async def send(self, reply: Reply) -> None:
        self._lease.grow(self._call.n * len(self._call.prompts))
        if self._call.is_stream:
            await self._send_stream(reply)
        else:
            await reply.json(await self.document())

    async def document(self) -> dict[str, Any]:
        """The answer as a whole. Raises ApiError."""
        deltas: dict[int, list[Delta]] = {}
        choices: list[dict[str, Any]] = []
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if part.delta is not None:
                    deltas.setdefault(part.index, []).append(part.delta)
                elif part.result is not None:
                    found = deltas.get(part.index, [])
                    choices.append(self._spelling.whole(part.index, found, part.reason, part.result))
        choices.sort(key=lambda choice: choice["index"])
        return self._heading(self._spelling.document_kind).document(choices, usage_of(self._results))

    async def _send_stream(self, reply: Reply) -> None:
        heading = self._heading(self._spelling.chunk_kind)
        chunks = ChunkWriter(heading, with_usage=self._call.wants_usage)
        begun: set[int] = set()
        async with contextlib.aclosing(self._parts()) as parts:
            async for part in parts:
                if not reply.is_begun:
                    await reply.open()
                is_first = part.index not in begun
                begun.add(part.index)
                if part.delta is not None:
                    choice = self._spelling.piece(part.index, part.delta, is_first=is_first)
                else:
                    assert part.result is not None
                    choice = self._spelling.end(part.index, part.reason, part.result, is_first=is_first)
                await reply.event(chunks.chunk(choice))
        if self._call.wants_usage:
            await reply.event(encoded(heading.document([], usage_of(self._results))))
        await reply.done()

    def _heading(self, kind: str) -> Heading:
        return Heading(self._id, kind, *self._names)

    async def _parts(self) -> AsyncGenerator[Part, None]:
        """Raises ApiError for a request that has no answer; what was shown before is no answer then."""
        call, n = self._call, self._call.n
        spec = await self._answers.compiled(call, self._lease)
        sources = [self._answers.events(prompt, spec, call, is_stream=call.is_stream) for prompt in call.prompts]
        count = n * len(sources)
        choices = [Choice(call.tool_form, call_id(self._id, index)) for index in range(count)]
        try:
            async with contextlib.aclosing(merged(sources)) as events:
                async for number, event in events:
                    if isinstance(event, DeltaEvent):
                        index = number * n + event.index
                        for delta in choices[index].feed(event.text):
                            yield Part(index, delta)
                        continue
                    for part in self._ends(number * n, event, choices):
                        yield part
        except SafegenError as error:
            raise api_error(error, call.params) from error

    def _ends(self, first: int, event: FinalEvent[Any], choices: list[Choice]) -> Iterator[Part]:
        result = event.result
        failure = failure_of(result, self._call.params)
        if failure is not None:
            raise failure
        self._results.append(result)
        for offset, sample in enumerate((result, *result.alternatives)):
            choice = choices[first + offset]
            for delta in choice.finish(sample):
                yield Part(first + offset, delta)
            yield Part(first + offset, result=sample, reason=choice.finish_reason(sample))
