"""Guards made of rules: each scans a `Reading` for candidates of bounded length, and tells what may yet become one.

Candidates may overlap; matches do not (`safegen.guards.candidates`).
What is undecided at the end of a text is told by the rules (`safegen.guards.pattern_rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.candidates import before_owner, pieces
from safegen.guards.following import Follower
from safegen.guards.pattern_follower import PatternFollower
from safegen.guards.pattern_rules import CONTEXT_LENGTH, MAX_INVISIBLE, SHORT_LENGTH, Rule
from safegen.guards.reading import MAX_SKIPPED, Reading, compiled, read, union


class PatternGuard(Guard):
    """A guard whose findings are those of `rules`, which a subclass sets before it calls `super().__init__`."""

    inline = True
    rules: tuple[Rule, ...] = ()

    def _use(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.max_match = max(rule.max_length for rule in rules) + MAX_INVISIBLE
        self.look_ahead = max(rule.look_ahead for rule in rules) * (MAX_SKIPPED + 1)
        self.look_behind = self.max_match + (CONTEXT_LENGTH + 1) * 2 + MAX_SKIPPED
        self._live = union(tuple(rule.live for rule in rules), r"\z")
        hints = tuple(rule.hint for rule in rules if rule.hint is not None)
        self._hint = union(hints, "") if hints else None
        self._gates = _gates(rules)
        self._any_gate = union(tuple(rule.gate for rule in rules), "")
        names = [name for rule in rules for name in (*rule.names, rule.name)]
        self.rank = {name: rank for rank, name in reversed([*enumerate(names)])}

    def find(self, view: GuardView) -> list[Match]:
        return self._find(view.text)

    def _find(self, text: str) -> list[Match]:
        return [piece for piece, _ in pieces(self._all_candidates(text), self.rank)]

    def _all_candidates(self, text: str) -> list[Match]:
        return self.candidates(read(text))

    def candidates(self, reading: Reading, first: int = 0) -> list[Match]:
        """All that begin at octet `first` or behind it, and some that do not, in no order and overlapping."""
        candidates: list[Match] = []
        if self._any_gate.search(reading.octets, first) is None:
            return candidates
        for gate, rules in self._gates:
            if gate.search(reading.octets, first) is None:
                continue
            for rule in rules:
                candidates += self._candidates(rule, reading)
        return candidates

    def _candidates(self, rule: Rule, reading: Reading) -> Iterable[Match]:
        for candidate in rule.scan(reading.octets):
            start, end = reading.start(candidate[0]), reading.end(candidate[1])
            if end - start <= rule.max_length + MAX_INVISIBLE:
                yield Match(start, end, candidate[3] if len(candidate) == 4 else rule.name, candidate[2])

    def frontier(self, text: str) -> int:
        if self.max_match is None or self.look_behind is None:
            return 0
        begin = max(0, len(text) - self.live_reach(text, len(text)))
        reading = read(text[begin:])
        live = self._live.search(reading.octets)
        if live is None or live.start() == len(reading.octets):
            return len(text)
        cut = begin + reading.start(live.start())
        first = max(0, cut - self.look_behind)
        return first + before_owner(self._all_candidates(text[first:]), cut - first, self.rank)

    def live_reach(self, text: str, num_open: int) -> int:
        """Characters at the end of `text` within which all that is undecided begins. num_open: those that are not known
        to be decided."""
        assert self.max_match is not None
        reach, short = self.max_match + self.look_ahead, SHORT_LENGTH + MAX_INVISIBLE + MAX_SKIPPED
        if self._hint is None or num_open <= short < reach:
            return reach
        return reach if self._hint.search(read(text[-reach:]).octets) is not None else min(reach, short)

    def follow(self) -> Follower | None:
        """See `safegen.guards.following`."""
        if self.max_match is None or self.look_behind is None:
            return None
        return PatternFollower((self,), self.look_behind - self.max_match)

    @property
    def hold_bound(self) -> int | None:
        return None if self.max_match is None else 2 * self.max_match + self.look_ahead


def _gates(rules: Sequence[Rule]) -> list[tuple[Any, list[Rule]]]:
    """Rules by their gate: those of one that does not occur are not asked."""
    by_gate: dict[str, list[Rule]] = {}
    for rule in rules:
        by_gate.setdefault(rule.gate, []).append(rule)
    return [(compiled(gate), sharing) for gate, sharing in by_gate.items()]
