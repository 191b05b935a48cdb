"""A compiled `Think` type's two halves: where reasoning ends and the answer begins, in a text and in a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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


class ThinkStream:
    """Splits a text that comes piece by piece where `ThinkType.split` would."""

    def __init__(self, think: ThinkType) -> None:
        self._start, self._end = think.start, think.end
        self._at_start = True
        self._tail = ""  # of the reasoning, where a marker may have begun
        self._ended = False

    def feed(self, text: str) -> tuple[str, str]:
        """The parts of `text` before and after the end of the reasoning. The markers belong to the former."""
        if self._ended:
            return "", text
        self._tail += text
        if self._at_start:
            if len(self._tail) < len(self._start) and self._start.startswith(self._tail):
                return text, ""
            self._tail = self._tail.removeprefix(self._start)
            self._at_start = False
        place = self._tail.find(self._end)
        if place < 0:
            self._tail = self._tail[max(0, len(self._tail) - len(self._end) + 1) :]
            return text, ""
        self._ended = True
        answer = self._tail[place + len(self._end) :]
        return text.removesuffix(answer), answer
