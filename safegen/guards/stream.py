"""`GuardStream`: the text of one answer on its way out, held back as far as a guard may still claim it.

The raw text is cut into units (`safegen.guards.answer_reader`); each unit is watched by the guards whose scope covers
its place; what stands between units follows as soon as the unit before it has been released. One implementation serves
streams and whole answers: an answer that is not streamed is a stream of one piece. So a stream cannot differ.

Guards that put something back (Deanonymize) work last, on text that all others have passed, in a second stream.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from safegen.grammars.tool_formats import ToolFormat
from safegen.guards.answer_reader import AnswerKind, AnswerReader
from safegen.guards.bans import EditedText
from safegen.guards.running import Entry
from safegen.guards.scopes import Place
from safegen.guards.units import Char, Closed, Opened, Piece, char_starts
from safegen.guards.watch import Decision, Look, UnitWatch


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How an answer's text is built; see AnswerReader."""

    kind: AnswerKind = "text"
    think: tuple[str, str] | None = None
    form: ToolFormat | None = None

    def reader(self) -> AnswerReader:
        return AnswerReader(self.kind, think=self.think, form=self.form)


@dataclass(frozen=True, slots=True)
class Forced:
    """A text that decoding put in the place of a match. is_reserved: it is a placeholder, which guards let pass."""

    decision: Decision
    is_reserved: bool


@dataclass(slots=True)
class Claims:
    """What decoding has forced, by byte offset and raw text. Shared by a request's samples: one of them may have
    forced what another has not, so each looks whether the text stands there."""

    forced: dict[tuple[int, str], Forced] = field(default_factory=dict)


class GuardStream:
    """entries: guards of the output stage. protected: texts that must not be repeated. claims: forced placeholders.
    deadline_s: see UnitWatch. banning: guards of the decoding stage, which edits must not undo. before: the stream
    whose output this one reads, where placeholders are forced: their offsets are those of what that one has read, and
    this one tells of them.

    `stopped` is the decision that ended the answer; from then on nothing is released.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        shape: AnswerShape,
        look: Look,
        protected: Sequence[str] = (),
        claims: Claims | None = None,
        deadline_s: float = 5.0,
        banning: Sequence[Entry] = (),
        before: GuardStream | None = None,
    ) -> None:
        self._shifts: list[tuple[int, int]] | None = None  # while one behind reads on: see _shifted
        self._num_released = 0
        self._is_open = False  # while it is asked about a unit that goes on
        self._before = before if claims is not None else None
        if self._before is not None:
            self._before._shifts = []
        self._entries = entries
        self._deadline_s = deadline_s
        self._banning = banning
        self._reader = shape.reader()
        self._look = look
        self._protected = protected
        self._claims = claims
        self._unit: UnitWatch | None = None
        self._num_bytes = self._shift = 0
        self._starts: list[int] = []  # byte offset of each character of the open unit, while placeholders are forced
        self.decisions: list[Decision] = []
        self._ends: list[int] = []  # how many decisions there were when each unit had ended
        self.milliseconds: dict[int, float] = {}  # that guards took beside their looks, by the number of their entry
        self.stopped: Decision | None = None

    def feed(self, text: str) -> str:
        """Take raw text; returns the raw text, edited, that is certain now."""
        return self._pass(self._reader.feed(text))

    def finish(self) -> str:
        """The answer has ended; returns what is left of it."""
        return self._pass(self._reader.finish())

    def leave(self) -> None:
        """No more will be asked for; what was decided about the open unit counts."""
        if self._unit is not None and self.stopped is None:
            self._close(self._unit)

    def decided_before(self, later: GuardStream) -> list[Decision]:
        """Decisions up to where a stream that reads what this one releases has stopped."""
        assert later.stopped is not None
        unit, at = len(later._ends) - 1, later.stopped.start
        first, last = ([0, *self._ends][min(number, len(self._ends))] for number in (unit, unit + 1))
        return self.decisions[:first] + [each for each in self.decisions[first:last] if each.at <= at]

    @property
    def has_edited(self) -> bool:
        """It has replaced something itself; what decoding has replaced does not count."""
        open_ones = [] if self._unit is None else self._unit.decisions
        return any(each.outcome == "redact" and not each.during_decoding for each in (*self.decisions, *open_ones))

    def _pass(self, pieces: Iterable[Piece]) -> str:
        released: list[str] = []
        for piece in pieces:
            if self.stopped is not None:
                return "".join(released)
            released.append(self._take(piece))
            if self._shifts is not None:
                self._note(released[-1], isinstance(piece, Closed), self._shifts)
        if self._unit is not None and self.stopped is None:
            released.append(self._release(self._unit, final=False))
            if self._shifts is not None:
                self._note(released[-1], False, self._shifts)
        return "".join(released)

    def _note(self, released: str, is_unit_over: bool, shifts: list[tuple[int, int]]) -> None:
        """Where a unit has ended: bytes that were released, and how many more were read."""
        self._num_released += _num_bytes(released)
        if is_unit_over:
            shifts.append((self._num_released, self._num_bytes - self._num_released))

    def _shifted(self) -> int:
        """The offset of the next byte in what the stream before this one has read; at the beginning of a unit."""
        shifts = None if self._before is None else self._before._shifts
        place = bisect_right(shifts, self._num_bytes, key=_first) if shifts else 0
        return self._num_bytes + (shifts[place - 1][1] if shifts and place else 0)

    def _take(self, piece: Piece) -> str:
        if isinstance(piece, Opened):
            self._open(piece)
            return ""
        if isinstance(piece, Char):
            start = self._num_bytes
            self._num_bytes += _num_bytes(piece.raw)
            if self._unit is None:
                return piece.raw
            if self._claims is not None:
                self._starts += char_starts(piece, self._shift + start)
            self._unit.add(piece.decoded, piece.raw)
            return ""
        assert self._unit is not None
        unit = self._unit
        if unit.kind == "key":
            unit.place = Place((*unit.place.steps[:-1], unit.text), True)
            unit.entries = self._covering(unit.place)
            unit.bans = self._bans(unit.place)
        released = self._release(unit, final=True)
        self._unit = None
        return released

    def _open(self, opened: Opened) -> None:
        self._starts = []
        self._shift = self._shifted() - self._num_bytes
        self._unit = UnitWatch(
            self._covering(opened.place), opened.place, opened.kind, self._look, self._protected, self._is_exempt,
            self._deadline_s, self._bans(opened.place),
        )  # fmt: skip

    def _bans(self, place: Place) -> EditedText | None:
        covering = [entry for entry in self._banning if entry.scopes.covers(place)]
        return EditedText(covering) if covering else None

    def _covering(self, place: Place) -> list[Entry]:
        return [entry for entry in self._entries if entry.looks_at(place, "output")]

    def _release(self, unit: UnitWatch, *, final: bool) -> str:
        self._is_open = not final
        released = unit.release(final=final)
        self._is_open = False
        self.stopped = unit.stopped
        if final or self.stopped is not None:
            self._close(unit)
        return released

    def _close(self, unit: UnitWatch) -> None:
        if self._shifts is None:
            self.decisions += [forced.decision for _, _, forced in self._forced_spans(unit)]
        self.decisions += unit.decisions
        self._ends.append(len(self.decisions))
        for number, spent in unit.spent().items():
            self.milliseconds[number] = self.milliseconds.get(number, 0.0) + spent

    def _is_exempt(self, unit: UnitWatch, start: int, end: int) -> bool:
        spans = self._forced_spans(unit)
        return any(forced.is_reserved and first <= start and end <= last for first, last, forced in spans)

    def _forced_spans(self, unit: UnitWatch) -> list[tuple[int, int, Forced]]:
        """Placeholders that stand where they were forced, or of which all stands there that has come, as spans of the
        unit's decoded characters."""
        if self._claims is None or not self._starts:
            return []
        spans: list[tuple[int, int, Forced]] = []
        for (at, raw), forced in sorted(self._claims.forced.items(), key=lambda item: item[0]):
            first = bisect_left(self._starts, at)
            last = bisect_left(self._starts, at + len(raw.encode()))
            if first >= last or self._starts[first] != at:
                continue
            found = unit.raw(first, last)
            if found == raw or (self._is_open and last == len(self._starts) and raw.startswith(found)):
                spans.append((first, last, forced))
        return spans


def _num_bytes(raw: str) -> int:
    return len(raw.encode("utf-8", "surrogatepass"))


def _first(pair: tuple[int, int]) -> int:
    return pair[0]
