"""Bans on edited text: what a redaction makes of a text that held no ban must hold none either.

Decoding keeps a model out of what `Never` forbids, and the text in front of a reader is the model's until a guard of
the output stage edits it. From then on a ban may stand in it all the same: in the placeholder itself, or where the two
ends of what was taken out meet. `EditedText` follows one unit: it picks a placeholder that no ban is found with, and
says when text has come together that is banned; nothing of that is released.

Only matches that touch an edit count: what lies between edits is the model's, and was held to the bans token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from safegen.guards.base import GuardView, Match
from safegen.guards.never import Never
from safegen.guards.placeholders import candidates
from safegen.guards.running import Entry


def banning(entries: Sequence[Entry]) -> list[Entry]:
    """Those that decoding is held to."""
    return [entry for entry in entries if isinstance(entry.guard, Never) and entry.guard.automaton("$") is not None]


@dataclass(frozen=True, slots=True)
class _Edited:
    """A span of edited text. source: what it took the place of, in the text as it was."""

    start: int
    end: int
    source: tuple[int, int]

    def touches(self, match: Match) -> bool:
        return match.start <= self.end and self.start <= match.end


@dataclass(frozen=True, slots=True)
class Banned:
    """A ban that an edit has brought about. end: its offset in the edited text. source: the edit's span in the text as
    it was. is_open: a letter that follows would make it a part of a longer word, which is none."""

    entry: Entry
    rule: str
    text: str
    end: int
    source: tuple[int, int]
    is_open: bool


class EditedText:
    """Decoded text of one unit as it goes out. entries: of `banning`, those whose scope covers the unit."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._pieces: list[str] = []
        self._edits: list[_Edited] = []  # that what follows may still make a ban with
        self._num_forgotten = 0  # characters before the first piece
        self._found: Banned | None = None
        reaches = [entry.guard.reach for entry in self.entries if isinstance(entry.guard, Never)]
        known = [reach for reach in reaches if reach is not None]
        self._window = 4 * max(known) if known and len(known) == len(reaches) else None

    def keep(self, text: str) -> None:
        self._pieces.append(text)

    def replace(self, rule: str, placeholder: str, source: tuple[int, int] = (0, 0)) -> str:
        """The placeholder, or the first other one that makes no ban with what stands before it. source: the span that
        it takes the place of."""
        self.found()  # and forget what it has been asked about
        before = self._joined()
        start = len(before)
        for text in candidates(rule, placeholder):
            here = [_Edited(start, start + len(text), source)]
            if not any(self._touching(entry, before + text, here) for entry in self.entries):
                placeholder = text
                break
        self._pieces.append(placeholder)
        self._edits.append(_Edited(start, start + len(placeholder), source))
        return placeholder

    def found(self) -> Banned | None:
        """The ban that an edit has brought about, of several the one that ends first."""
        if self._found is not None or not self._edits:
            return self._found
        text = self._joined()
        touching = [(entry, match) for entry in self.entries for match in self._touching(entry, text, self._edits)]
        if touching:
            entry, match = min(touching, key=lambda found: found[1].end)
            source = next(edit.source for edit in self._edits if edit.touches(match))
            is_open = match.end == len(text) and isinstance(entry.guard, Never) and entry.guard.word
            end = self._num_forgotten + match.end
            banned = Banned(entry, match.rule, text[match.start : match.end], end, source, is_open)
            self._found = None if is_open else banned
            return banned
        if all(_is_beyond(entry, text[self._edits[-1].end :]) for entry in self.entries):
            self._edits.clear()
        self._forget(text)
        return None

    def _forget(self, text: str) -> None:
        """Text that no match holds together with what may still come, and edits in it."""
        cut = len(text) - (self._window or len(text))
        if cut <= len(text) // 2 or not all(_is_beyond(entry, text[cut:]) for entry in self.entries):
            return
        self._pieces, self._num_forgotten = [text[cut:]], self._num_forgotten + cut
        self._edits = [replace(edit, start=edit.start - cut, end=edit.end - cut) for edit in self._edits]
        self._edits = [edit for edit in self._edits if edit.end >= 0]

    def _joined(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @staticmethod
    def _touching(entry: Entry, text: str, edits: Sequence[_Edited]) -> list[Match]:
        guard = entry.guard
        if not isinstance(guard, Never) or not guard.may_hold(text):
            return []
        found = sorted(guard.find(GuardView(text)))
        return [match for match in found if any(edit.touches(match) for edit in edits)]


def _is_beyond(entry: Entry, text: str) -> bool:
    """Whether no match that touches an edit can reach past the text behind it."""
    guard = entry.guard
    if not isinstance(guard, Never) or guard.reach is None:
        return False
    return len(guard.folded(text)) > guard.reach
