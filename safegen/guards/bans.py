"""Bans on edited text: what a redaction makes of a text that held no ban must hold none either.

Decoding keeps a model out of what `Never` forbids, and the text in front of a reader is the model's until a guard of
the output stage edits it. From then on a ban may stand in it all the same: in the placeholder itself, or where the two
ends of what was taken out meet. `EditedText` follows one unit: it picks a placeholder that no ban is found with, and
says when text has come together that is banned; nothing of that is released.

Only matches that touch an edit count: what lies between edits is the model's, and was held to the bans token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

from safegen.guards.base import GuardView, Match
from safegen.guards.never import Never
from safegen.guards.placeholders import candidates
from safegen.guards.running import Entry


def banning(entries: Sequence[Entry]) -> list[Entry]:
    """Those that decoding is held to."""
    return [entry for entry in entries if isinstance(entry.guard, Never) and entry.guard.automaton("$") is not None]


class EditedText:
    """Decoded text of one unit as it goes out. entries: of `banning`, those whose scope covers the unit."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._text = ""
        self._edits: list[tuple[int, int]] = []

    def keep(self, text: str) -> None:
        self._text += text

    def replace(self, rule: str, placeholder: str) -> str:
        """The placeholder, or the first other one that makes no ban with what stands before it."""
        start = len(self._text)
        for text in candidates(rule, placeholder):
            here = [(start, start + len(text))]
            if not any(self._touching(entry, self._text + text, here) for entry in self.entries):
                placeholder = text
                break
        self._text += placeholder
        self._edits.append((start, len(self._text)))
        return placeholder

    def found(self) -> tuple[Entry, str, str] | None:
        """(guard, rule, text) of the first ban that an edit has brought about."""
        if not self._edits:
            return None
        for entry in self.entries:
            for match in self._touching(entry, self._text, self._edits):
                return entry, match.rule, self._text[match.start : match.end]
        return None

    @staticmethod
    def _touching(entry: Entry, text: str, edits: Sequence[tuple[int, int]]) -> list[Match]:
        guard = entry.guard
        if not isinstance(guard, Never) or not guard.may_hold(text):
            return []
        found = sorted(guard.find(GuardView(text)))
        return [match for match in found if any(match.start <= end and start <= match.end for start, end in edits)]
