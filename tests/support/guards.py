"""Small guards for tests, each with its own kind of bound, and a look at a text in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.running import Entry, run_guards
from safegen.guards.scopes import parse_scopes
from safegen.guards.stream import AnswerShape, GuardStream

_SSN = re.compile(r"(?<!\d)\d{3}-\d{2}-\d{4}(?!\d)")
_EMAIL = re.compile(r"(?<![a-z0-9.])[a-z0-9.]{1,12}@[a-z0-9]{1,12}\.[a-z]{2,5}(?![a-z])")


class Ssn(Guard):
    """Ten digits in three groups, and no digit around them."""

    inline = True
    max_match = 11
    look_ahead = 1
    look_behind = 1

    def find(self, view: GuardView) -> Sequence[Match]:
        return [Match(m.start(), m.end(), "ssn") for m in _SSN.finditer(view.text)]


class Email(Guard):
    """Short addresses in small letters."""

    inline = True
    max_match = 31
    look_ahead = 1
    look_behind = 13

    def find(self, view: GuardView) -> Sequence[Match]:
        return [Match(m.start(), m.end(), "email") for m in _EMAIL.finditer(view.text)]


class Word(Guard):
    """One word, wherever it stands; no bound when unbounded."""

    inline = True
    look_behind = 0

    def __init__(self, word: str = "secret", *, unbounded: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.word, self.unbounded = word, unbounded
        self.max_match = None if unbounded else len(word)

    def find(self, view: GuardView) -> Sequence[Match]:
        return [Match(m.start(), m.end(), self.word) for m in re.finditer(re.escape(self.word), view.text)]


class EarlyWord(Word):
    """A mutant: lets out one character that it may still claim."""

    def frontier(self, text: str) -> int:
        return min(len(text), super().frontier(text) + 1)


class Raising(Guard):
    def find(self, view: GuardView) -> Sequence[Match]:
        raise RuntimeError(f"the text was {view.text}")


def entries(*guards: Guard) -> list[Entry]:
    return [
        Entry(number, f"{guard.name}_{number}", guard, parse_scopes(guard.where)) for number, guard in enumerate(guards)
    ]


def stream(shape: AnswerShape, *guards: Guard) -> GuardStream:
    return GuardStream(entries(*guards), shape, lambda listed, view: run_guards(listed, view, 5.0))


def shown(shape: AnswerShape, guards: Sequence[Guard], pieces: Sequence[str]) -> tuple[list[str], GuardStream]:
    """What each piece let out, and the rest."""
    watched = stream(shape, *guards)
    return [*(watched.feed(piece) for piece in pieces), watched.finish()], watched
