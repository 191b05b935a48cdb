"""The follower of guards that are made of rules (`safegen.guards.pattern_guard`), one for all of them in a set.

What it keeps: the place before which nothing is undecided (`live`, where the last search for beginnings of candidates
ended), and the candidates that begin before it and may still cover text that is not decided. Both are final. What comes
is then searched from that place on alone: one pattern says where the first undecided candidate of any guard begins now,
one whether any rule can have a candidate at all, and only then are the rules asked, over the new stretch with the
context that they may look at. In prose that is two short searches a token, for however many guards.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from safegen.guards.base import Match
from safegen.guards.candidates import before_owner
from safegen.guards.following import Follower
from safegen.guards.pattern_rules import SHORT_LENGTH
from safegen.guards.reading import read, read_on, union

if TYPE_CHECKING:
    from safegen.guards.pattern_guard import PatternGuard

_MAX_KEPT = 64  # characters kept behind those that are needed, so that the window is not cut at every token


@lru_cache(maxsize=64)
def _patterns(guards: tuple[PatternGuard, ...]) -> tuple[Any, Any]:
    """What is undecided at the end of a text, and what every candidate holds, of all rules."""
    rules = [rule for guard in guards for rule in guard.rules]
    return union(tuple(rule.live for rule in rules), r"\z"), union(tuple(rule.gate for rule in rules), "")


class PatternFollower:
    """guards: at least one. margin: characters before a candidate that its rules may look at."""

    def __init__(self, guards: Sequence[PatternGuard], margin: int) -> None:
        self._guards, self._margin = tuple(guards), margin
        self._undecided, self._gate = _patterns(self._guards)
        self._window = ""
        self._reading = read("")
        self._base = 0  # offset of the window in the text
        self._live = 0
        self._frontier = 0
        self._candidates: tuple[tuple[Match, ...], ...] = ((),) * len(guards)
        self._has_candidates = False

    def joined(self, other: Follower) -> Follower | None:
        if not isinstance(other, PatternFollower):
            return None
        return PatternFollower((*self._guards, *other._guards), max(self._margin, other._margin))

    def feed(self, text: str, num_decided: int) -> int:
        self._window += text
        reading = self._reading = read_on(self._reading, self._window, text)
        octets, base, known = reading.octets, self._base, self._live
        end = base + len(self._window)
        first = known
        if end - known > SHORT_LENGTH:
            first = max(known, end - max(guard.live_reach(self._window, end - known) for guard in self._guards))
        live = self._undecided.search(octets, reading.octet(first - base))
        cut = end if live is None or live.start() == len(octets) else base + reading.start(live.start())
        may_hold = self._gate.search(octets, reading.octet(known - base)) is not None
        self._live = frontier = cut
        if may_hold or self._has_candidates:
            self._keep(num_decided, known, may_hold)
            for guard, found in zip(self._guards, self._candidates):
                frontier = min(frontier, before_owner(found, cut, guard.rank))
        self._frontier = max(self._frontier, frontier)
        if cut - base > self._margin + _MAX_KEPT:
            self._trim(cut - base - self._margin)
        return self._frontier

    def _keep(self, num_decided: int, known: int, may_hold: bool) -> None:
        """Of the candidates those that are final and over text that is not decided, and all that are new."""
        self._candidates = tuple(
            (
                *(each for each in kept if each.start < known and each.end > num_decided),
                *(self._new(guard, known) if may_hold else ()),
            )
            for guard, kept in zip(self._guards, self._candidates)
        )
        self._has_candidates = any(self._candidates)

    def _new(self, guard: PatternGuard, known: int) -> list[Match]:
        """Candidates that begin where nothing was certain before."""
        base = self._base
        return [
            Match(each.start + base, each.end + base, each.rule, each.score)
            for each in guard.candidates(self._reading, self._reading.octet(known - base))
            if each.start + base >= known
        ]

    def is_quiet(self, start: int, end: int) -> bool:
        return not self._has_candidates or not any(
            each.start < end and each.end > start for found in self._candidates for each in found
        )

    def copy(self) -> Self:
        return copy.copy(self)

    def _trim(self, unneeded: int) -> None:
        self._window = self._window[unneeded:]
        self._base += unneeded
        self._reading = read(self._window)
