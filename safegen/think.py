"""A compiled `Think` type's two halves: where reasoning ends and the answer begins, in a text and in a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from safegen.grammars.think import ThinkProgram


class Partial(Protocol):
    """A reader of an answer's text that grows. What a snapshot shows never changes, it is only added to."""

    def feed(self, text: str) -> bool:
        """Read on. True when the value grew."""
        ...

    def snapshot(self) -> Any:
        """The value so far, as plain Python."""
        ...


@dataclass(frozen=True, slots=True)
class ThinkType:
    """program: for the decoder. start, end: the markers."""

    program: ThinkProgram
    start: str
    end: str

    def split(self, text: str) -> tuple[str, str | None]:
        """(reasoning, answer) of a text that may be cut anywhere; no answer before the end marker is complete."""
        reasoning, found, answer = text.removeprefix(self.start).partition(self.end)
        return reasoning, answer if found else None


class PartialThink:
    """Feeds a reader of the answer with what comes after the end marker."""

    def __init__(self, end: str, answer: Partial) -> None:
        self._end = end
        self._answer = answer
        self._tail: str | None = ""  # of the reasoning, where a marker may have begun; None once it has ended

    def feed(self, text: str) -> bool:
        if self._tail is None:
            return self._answer.feed(text)
        _, found, answer = (self._tail + text).partition(self._end)
        if not found:
            self._tail = (self._tail + text)[-len(self._end) :]
            return False
        self._tail = None
        return self._answer.feed(answer)

    def snapshot(self) -> Any:
        return self._answer.snapshot()
