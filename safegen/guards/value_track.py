"""Reading along: where committed bytes stand, and the value that is open there, watched by the guards that redact.

`Track` turns the bytes of tokens, which may be cut inside a code point, into the units of an answer; `ValueWatch` is
the open string or number with the byte offset of each decoded character, so that a match in the decoded text is a place
in the output. Both can be copied cheaply: drafts and samples fork the constraint that owns them.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from safegen.grammars.vocabulary import Vocabulary
from safegen.guards.running import Entry
from safegen.guards.scopes import Place
from safegen.guards.stream import AnswerShape, Claims
from safegen.guards.units import Char, Opened, char_starts
from safegen.guards.watch import Decision, Look, UnitWatch


@dataclass(frozen=True, slots=True)
class Redaction:
    """What the constraints of one request's samples share. entries: inline guards that redact. schema_text: for its
    defaults."""

    entries: Sequence[Entry]
    shape: AnswerShape
    look: Look
    vocabulary: Vocabulary
    claims: Claims
    schema_text: str | None = None

    def covering(self, place: Place) -> list[Entry]:
        return [entry for entry in self.entries if entry.looks_at(place, "output")]


class ValueWatch(UnitWatch):
    """The open string or number. begin: byte offset of its first character, of a string that of the quote before it.
    starts: byte offset of each decoded character. exempt: byte spans of placeholders."""

    def __init__(
        self,
        entries: Sequence[Entry],
        place: Place,
        look: Look,
        is_string: bool,
        begin: int,
        exempt: list[tuple[int, int]],
    ) -> None:
        super().__init__(entries, place, "string", look, is_exempt=_is_exempt)
        self.is_string, self.begin, self.exempt = is_string, begin, exempt
        self.starts: list[int] = []
        self.num_bytes = begin + is_string  # offset behind the last character

    def copy(self) -> ValueWatch:
        twin = copy.copy(self)
        twin.copy_lists()
        twin.starts = list(self.starts)
        return twin

    def byte_of(self, character: int) -> int:
        return self.starts[character] if character < len(self.starts) else self.num_bytes

    def take(self, char: Char, at: int) -> None:
        self.starts += char_starts(char, at)
        self.num_bytes = at + len(char.raw.encode("utf-8", "surrogatepass"))
        self.add(char.decoded, char.raw)

    def found(self, *, closed: bool) -> Decision | None:
        """The first match that has to be replaced, once it is certain. A plain call looks as often as a stream, or else
        max_tokens would cut the one where the other has been taken back."""
        if not closed and not self.is_string:
            return None
        self.release(final=closed)
        return next((each for each in self.decisions if each.outcome == "redact"), None)

    @property
    def frontier_byte(self) -> int:
        """Bytes before it stay, whatever follows."""
        if not self.num_decided:
            return self.begin
        return self.byte_of(self.num_decided)


def _is_exempt(unit: UnitWatch, start: int, end: int) -> bool:
    """Whether decoded characters start..end lie in a placeholder that was forced."""
    if not isinstance(unit, ValueWatch) or not unit.exempt or start >= len(unit.starts):
        return False
    first, last = unit.byte_of(start), unit.byte_of(end)
    return any(begin <= first and last <= stop for begin, stop in unit.exempt)


class Track:
    """Where the committed bytes stand: decoder, reader, open value."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._reader = redaction.shape.reader()
        self._num_bytes = 0
        self.value: ValueWatch | None = None
        self.exempt: list[tuple[int, int]] = []

    def copy(self) -> Track:
        twin = copy.copy(self)
        twin._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        twin._decoder.setstate(self._decoder.getstate())
        twin._reader = self._reader.copy()
        twin.value = None if self.value is None else self.value.copy()
        return twin

    def feed(self, piece: bytes) -> Iterator[tuple[ValueWatch, bool]]:
        """Read on; yields each value that closes (with True), and in the end the one that is open (with False)."""
        for found in self._reader.feed(self._decoder.decode(piece)):
            if isinstance(found, Opened):
                self._open(found)
            elif isinstance(found, Char):
                if self.value is not None and found.decoded:
                    self.value.take(found, self._num_bytes)
                self._num_bytes += len(found.raw.encode("utf-8", "surrogatepass"))
            elif self.value is not None:
                closed, self.value = self.value, None
                yield closed, True
        if self.value is not None:
            yield self.value, False

    def _open(self, opened: Opened) -> None:
        entries = self._redaction.covering(opened.place) if opened.kind in ("string", "number") else []
        if entries:
            is_string = opened.kind == "string"
            begin = self._num_bytes - is_string
            self.value = ValueWatch(entries, opened.place, self._redaction.look, is_string, begin, self.exempt)
