"""`AnswerReader`: the units of a whole answer, reasoning and tool calls included.

It is fed raw text in pieces of any size and gives the same units for every cut. A marker that may have begun is held
back until it is one or is not.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from typing import Literal

from safegen.grammars.tool_formats import ToolFormat
from safegen.guards.scopes import THINKING, Place, Step
from safegen.guards.units import Char, Closed, JsonReader, Opened, Piece

AnswerKind = Literal["text", "json", "tools"]


class AnswerReader:
    """Pieces of a whole answer. kind: how its text is built. think: (start, end) markers of the reasoning before it.
    form: of tool calls."""

    def __init__(
        self, kind: AnswerKind, *, think: tuple[str, str] | None = None, form: ToolFormat | None = None
    ) -> None:
        self._kind, self._form = kind, form
        self._think = think
        self._held = ""  # raw text that may be the beginning of a marker
        self._json: JsonReader | None = None
        self._num_calls = 0
        self._stage: Literal["start", "thinking", "answer", "text", "lead", "call", "after"] = (
            "answer" if think is None else "start"
        )

    def copy(self) -> AnswerReader:
        twin = copy.copy(self)
        twin._json = None if self._json is None else self._json.copy()
        return twin

    def feed(self, text: str) -> Iterator[Piece]:
        at = 0
        while at < len(text):
            end = self._plain_end(text, at)
            if end > at:
                plain = text[at:end]
                if self._stage == "call" and self._json is not None:
                    self._json.skip(plain)
                yield Char(plain, plain)
                at = end
            else:
                yield from self._feed(text[at])
                at += 1

    def _plain_end(self, text: str, at: int) -> int:
        """The end of the characters from `at` that stand for themselves in the open unit, whatever comes then."""
        if self._stage == "call" and self._json is not None:
            return self._json.plain_end(text, at)
        if self._held or self._stage not in ("text", "thinking"):
            return at
        marker = (self._form.begin if self._form is not None else "") if self._stage == "text" else self._end_of_think
        found = text.find(marker[0], at) if marker else -1
        return len(text) if found < 0 else found

    @property
    def _end_of_think(self) -> str:
        assert self._think is not None
        return self._think[1]

    def finish(self) -> Iterator[Piece]:
        """The answer has ended here."""
        if self._stage in ("start", "answer") and self._held:
            yield Opened(Place(root=THINKING) if self._stage == "start" else Place(), "text")
            yield from (Char(char, char) for char in self._held)
            yield Closed()
        elif self._stage in ("thinking", "text"):
            yield from (Char(char, char) for char in self._held)
            yield Closed()
        elif self._held:
            yield Char("", self._held)
        self._held = ""
        if self._json is not None:
            yield from self._json.finish()

    def _feed(self, char: str) -> Iterator[Piece]:
        if self._stage == "answer":
            yield from self._begin_answer()
        if self._stage == "start":
            yield from self._in_start(char)
        elif self._stage == "thinking":
            if (yield from self._until(char, self._end_of_think)):
                self._stage = "answer"
        elif self._stage == "text":
            end = self._form.begin if self._form is not None else ""
            if (yield from self._until(char, end)):
                self._stage = "lead"
                yield from self._lead("")
        elif self._stage == "lead":
            yield from self._lead(char)
        else:
            yield from self._in_json(char)

    def _begin_answer(self) -> Iterator[Piece]:
        if self._kind == "json":
            self._stage, self._json = "call", JsonReader()
        else:
            self._stage = "text"
            steps: tuple[Step, ...] = ("text",) if self._kind == "tools" else ()
            yield Opened(Place(steps), "text")

    def _in_start(self, char: str) -> Iterator[Piece]:
        """The start marker stands first, or does not stand at all (the prompt had it)."""
        assert self._think is not None
        start = self._think[0]
        self._held += char
        if start.startswith(self._held) and self._held != start:
            return
        held, self._held = self._held, ""
        self._stage = "thinking"
        if held == start:
            yield Char("", held)
            yield Opened(Place(root=THINKING), "text")
            return
        yield Opened(Place(root=THINKING), "text")
        for each in held:
            yield from self._feed(each)

    def _until(self, char: str, end: str) -> Generator[Piece, None, bool]:
        """Text of the open unit up to a marker, which closes it. Returns True once it has come."""
        if not end:
            yield Char(char, char)
            return False
        self._held += char
        if self._held == end:
            self._held = ""
            yield Closed()
            yield Char("", end)
            return True
        while self._held and not end.startswith(self._held):
            yield Char(self._held[0], self._held[0])
            self._held = self._held[1:]
        return False

    def _lead(self, char: str) -> Iterator[Piece]:
        """Between the marker of calls and the first call."""
        assert self._form is not None
        self._held += char
        if not self._form.lead.startswith(self._held):
            for each in self._held:  # not as the format has it: JSON from here on, so that all of it is looked at
                yield from self._start_call(each)
            self._held = ""
        elif self._held == self._form.lead:
            if self._held:
                yield Char("", self._held)
            self._held = ""
            self._stage, self._json = "call", self._call_reader()

    def _start_call(self, char: str) -> Iterator[Piece]:
        if self._json is None:
            self._stage, self._json = "call", self._call_reader()
        yield from self._in_json(char)

    def _call_reader(self) -> JsonReader:
        assert self._form is not None
        self._num_calls += 1
        return JsonReader(("calls", self._num_calls - 1), self._form.arguments_key)

    def _in_json(self, char: str) -> Iterator[Piece]:
        assert self._json is not None
        if self._json.done and self._kind == "tools":
            if char != "{":  # the format's own text between calls
                yield Char("", char)
                return
            self._json = self._call_reader()
        yield from self._json.feed(char)
