"""Units: the decoded texts that guards look at, and the raw text between them; those of JSON in particular.

A unit is the free text before tool calls, the reasoning of a Think type, one string, number or property name of JSON,
or a whole answer of a kind without inner structure (`safegen.guards.answer_reader` finds them all). Each decoded
character knows the raw text that spells it, so that an edit of the decoded text is an edit of the raw text and the rest
keeps its spelling. Text that is not JSON where JSON should be becomes one unit at its parent's place: nothing is ever
left out of sight.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from safegen.guards.scopes import Place, Step

UnitKind = Literal["text", "string", "key", "number"]

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE_AND_MARKS = " \t\r\n,:[]{}"
_END_OF_BARE = ' \t\r\n,]}:[{"'
_PLAIN = re.compile(r'[^"\\]+')


@dataclass(frozen=True, slots=True)
class Opened:
    """A unit begins."""

    place: Place
    kind: UnitKind


@dataclass(frozen=True, slots=True)
class Char:
    """One decoded character of the open unit, several that spell themselves (decoded == raw), or (decoded == "") raw
    text outside of any unit."""

    decoded: str
    raw: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The open unit has ended."""


Piece = Opened | Char | Closed


def spelled(text: str, kind: UnitKind) -> str:
    """Decoded text as it is written inside a unit."""
    return json.dumps(text, ensure_ascii=False)[1:-1] if kind in ("string", "key") else text


def char_starts(piece: Char, start: int) -> Sequence[int]:
    """The byte offset of each decoded character of a piece that begins at byte `start`."""
    if len(piece.decoded) <= 1:
        return (start,)
    if piece.raw.isascii():
        return range(start, start + len(piece.raw))
    lengths = [len(char.encode("utf-8", "surrogatepass")) for char in piece.raw[:-1]]
    return list(itertools.accumulate(lengths, initial=start))


class JsonReader:
    """Units of one JSON value. `done` once the value has closed: further text is not its own. prefix: its place.
    arguments_key: a name at the top that places call "arguments"."""

    def __init__(self, prefix: tuple[Step, ...] = (), arguments_key: str | None = None) -> None:
        self._arguments_key = arguments_key
        self._steps: list[Step] = list(prefix)
        self._depth: list[Literal["object", "array"]] = []
        self._state: Literal["value", "key", "between", "string", "number"] = "value"
        self._is_key = False
        self._key: list[str] = []
        self._escape = ""
        self.done = False

    def copy(self) -> JsonReader:
        twin = copy.copy(self)
        twin._steps, twin._depth, twin._key = list(self._steps), list(self._depth), list(self._key)
        return twin

    def feed(self, char: str) -> Iterator[Piece]:
        if self._state == "string":
            yield from self._in_string(char)
        elif self._state == "number" and char not in _END_OF_BARE:
            yield Char(char, char)
        else:
            if self._state == "number":
                yield Closed()
                self._value_ended()
            yield from self._structure(char)

    def plain_end(self, text: str, at: int) -> int:
        """The end of the characters from `at` that stand for themselves in the open string; take them with `skip`."""
        if self._state != "string" or self._escape:
            return at
        found = _PLAIN.match(text, at)
        return at if found is None else found.end()

    def skip(self, plain: str) -> None:
        """Characters of the open string that were read by the caller."""
        if self._is_key:
            self._key.append(plain)

    def finish(self) -> Iterator[Piece]:
        """The text has ended, perhaps in the middle."""
        if self._escape:
            yield Char(self._escape, self._escape)
        if self._state in ("string", "number"):
            yield Closed()

    def _structure(self, char: str) -> Iterator[Piece]:
        if char == '"':
            self._is_key = self._state == "key"
            self._state, self._key = "string", []
            yield Char("", char)
            if not self._is_key:
                yield Opened(self._place(), "string")
            else:
                yield Opened(Place((*self._steps, "*"), True), "key")
        elif char in _SPACE_AND_MARKS:
            yield Char("", char)
            self._mark(char)
        else:
            self._state = "number"
            yield Opened(self._place(), "number")
            yield Char(char, char)

    def _mark(self, char: str) -> None:
        if char == "{":
            self._depth.append("object")
            self._state = "key"
        elif char == "[":
            self._depth.append("array")
            self._steps.append(0)
            self._state = "value"
        elif char in "}]" and self._depth:
            if self._depth.pop() == "array":
                self._steps.pop()
            elif self._state == "value" and self._steps:
                self._steps.pop()  # a name without a value: no JSON
            self._value_ended()
        elif char == "," and self._depth:
            if self._depth[-1] == "array":
                last = self._steps[-1]
                self._steps[-1] = last + 1 if isinstance(last, int) else last
                self._state = "value"
            else:
                self._state = "key"

    def _value_ended(self) -> None:
        self._state = "between"
        if not self._depth:
            self.done = True
        elif self._depth[-1] == "object" and self._steps:
            self._steps.pop()

    def _place(self) -> Place:
        return Place(tuple(self._steps))

    def _in_string(self, char: str) -> Iterator[Piece]:
        if self._escape:
            self._escape += char
            yield from self._escaped()
        elif char == "\\":
            self._escape = char
        elif char == '"':
            yield from self._string_closed(char)
        else:
            yield from self._decoded(char, char)

    def _escaped(self) -> Iterator[Piece]:
        """Waits until the escape is whole: a high surrogate is one only with the low one after it."""
        text = self._escape
        if text[1] != "u":
            self._escape = ""
            yield from self._decoded(_ESCAPES.get(text[1], text[1]), text)
            return
        if len(text) < 6:
            return
        first = _unit(text[2:6])
        if not 0xD800 <= first < 0xDC00:
            self._escape = ""
            yield from self._decoded(chr(first), text)
        elif len(text) == 6:
            return
        elif text[6:8] in ("\\", "\\u"):
            if len(text) == 12:
                self._escape = ""
                yield from self._pair(first, text)
        else:  # a lone surrogate, and the character after it
            self._escape = ""
            yield from self._decoded(chr(first), text[:6])
            for char in text[6:]:
                yield from self._in_string(char)

    def _pair(self, first: int, text: str) -> Iterator[Piece]:
        second = _unit(text[8:12])
        if 0xDC00 <= second < 0xE000:
            yield from self._decoded(chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), text)
            return
        yield from self._decoded(chr(first), text[:6])
        for char in text[6:]:
            yield from self._in_string(char)

    def _decoded(self, decoded: str, raw: str) -> Iterator[Piece]:
        if self._is_key:
            self._key.append(decoded)
        yield Char(decoded, raw)

    def _string_closed(self, char: str) -> Iterator[Piece]:
        yield Closed()
        yield Char("", char)
        if self._is_key:
            name = "".join(self._key)
            is_arguments = len(self._depth) == 1 and name == self._arguments_key
            self._steps.append("arguments" if is_arguments else name)
            self._state = "value"
        else:
            self._value_ended()


def _unit(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:  # no escape at all; the text is no JSON and nothing reads it as such
        return 0xFFFD
