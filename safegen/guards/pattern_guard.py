"""Guards made of rules: each scans a `Reading` for candidates of bounded length, and tells what may yet become one.

**Overlaps.** Every character that a candidate covers is reported, once: it belongs to the longest candidate over it
(then to the rule that comes first, the one that starts first, the surest), and a match is a run of characters of one
owner. So nothing of two overlapping findings stays in clear, a finding within another one vanishes, and matches are
bounded and disjoint. The owner of a character depends on the candidates over it alone, which keeps `find` local.

**Streams.** `Rule.live` is a pattern of everything that is not decided at the end of a text: each proper beginning of a
candidate with the characters behind it that decide it. The frontier is where the first of these begins, or the start of
a match that lies across it. In prose that is the beginning of the last word, not the static bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.reading import MAX_SKIPPED, Reading, compiled, read

Candidate = tuple[int, int, float] | tuple[int, int, float, str]
Scan = Callable[[bytes], Iterable[Candidate]]

# Invisible characters that a candidate may hold beside its visible ones; with more of them it is not matched.
MAX_INVISIBLE = 64
# Visible characters before a candidate that a rule may look at, boundary included.
CONTEXT_LENGTH = 64
# Octets within which a rule without a hint is decided: frontiers look no further back for these.
SHORT_LENGTH = 320


@dataclass(frozen=True, slots=True)
class Rule:
    """name: what matches are called, unless a candidate brings one of `names`. max_length: of a candidate, in octets.
    scan: all candidates (start, end, score), in any order, each decided by CONTEXT_LENGTH octets before it and
    `look_ahead` behind it. live: RE2 pattern of what is undecided at the end. gate: RE2 pattern that occurs in every
    candidate. hint: RE2 pattern that occurs in all that is undecided and longer than SHORT_LENGTH octets."""

    name: str
    max_length: int
    scan: Scan
    live: str
    gate: str = "[0-9]"
    look_ahead: int = 1
    names: tuple[str, ...] = ()
    hint: str | None = None


@lru_cache(maxsize=64)
def _union(patterns: tuple[str, ...], tail: str) -> Any:
    return compiled(f"(?:{'|'.join(dict.fromkeys(patterns))}){tail}")


class PatternGuard(Guard):
    """A guard whose findings are those of `rules`, which a subclass sets before it calls `super().__init__`."""

    inline = True
    rules: tuple[Rule, ...] = ()

    def _use(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.max_match = max(rule.max_length for rule in rules) + MAX_INVISIBLE
        self.look_ahead = max(rule.look_ahead for rule in rules) * (MAX_SKIPPED + 1)
        self.look_behind = self.max_match + (CONTEXT_LENGTH + 1) * 2 + MAX_SKIPPED
        self._live = _union(tuple(rule.live for rule in rules), r"\z")
        hints = tuple(rule.hint for rule in rules if rule.hint is not None)
        self._hint = _union(hints, "") if hints else None
        self._gates = [(compiled(rule.gate), [r for r in rules if r.gate == rule.gate]) for rule in _by_gate(rules)]
        names = [name for rule in rules for name in (*rule.names, rule.name)]
        self._rank = {name: rank for rank, name in reversed([*enumerate(names)])}

    def find(self, view: GuardView) -> list[Match]:
        return self._find(view.text)

    def _find(self, text: str) -> list[Match]:
        return [piece for piece, _ in pieces(self._all_candidates(text), self._rank)]

    def _all_candidates(self, text: str) -> list[Match]:
        reading = read(text)
        candidates: list[Match] = []
        for gate, rules in self._gates:
            if gate.search(reading.octets) is None:
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
        reach = self.max_match + self.look_ahead
        if self._hint is not None and self._hint.search(read(text[-reach:]).octets) is None:
            reach = min(reach, SHORT_LENGTH + MAX_INVISIBLE + MAX_SKIPPED)
        begin = max(0, len(text) - reach)
        reading = read(text[begin:])
        live = self._live.search(reading.octets)
        if live is None or live.start() == len(reading.octets):
            return len(text)
        cut = begin + reading.start(live.start())
        return self._before_straddling(text, cut)

    def _before_straddling(self, text: str, cut: int) -> int:
        """The start of the match over the character before `cut`, if the candidate that owns it goes on behind."""
        assert self.look_behind is not None
        first = max(0, cut - self.look_behind)
        for piece, owner in pieces(self._all_candidates(text[first:]), self._rank):
            if piece.start + first < cut <= piece.end + first and owner.end + first > cut:
                return piece.start + first
        return cut

    @property
    def hold_bound(self) -> int | None:
        return None if self.max_match is None else 2 * self.max_match + self.look_ahead


def _by_gate(rules: Sequence[Rule]) -> Iterable[Rule]:
    return {rule.gate: rule for rule in rules}.values()


def pieces(candidates: list[Match], rank: dict[str, int]) -> list[tuple[Match, Match]]:
    """Disjoint matches that cover just what the candidates cover, each with the candidate that owns it; see above."""
    ordered = sorted(candidates, key=lambda m: (m.start, -m.end, rank[m.rule], -m.score))
    found: list[tuple[Match, Match]] = []
    group: list[Match] = []
    reach = -1
    for candidate in ordered:
        if candidate.start >= reach and group:
            found += _resolve(group, rank)
            group = []
        group.append(candidate)
        reach = max(reach, candidate.end)
    return found + _resolve(group, rank) if group else found


def _resolve(group: list[Match], rank: dict[str, int]) -> list[tuple[Match, Match]]:
    if len(group) == 1:
        return [(group[0], group[0])]
    borders = sorted({border for match in group for border in (match.start, match.end)})
    resolved: list[tuple[Match, Match]] = []
    active: list[Match] = []
    upcoming = iter(group)
    candidate = next(upcoming, None)
    for left, right in zip(borders, borders[1:]):
        active = [match for match in active if match.end > left]
        while candidate is not None and candidate.start <= left:
            active.append(candidate)
            candidate = next(upcoming, None)
        owner = min(active, key=lambda m: (m.start - m.end, rank[m.rule], m.start, -m.score))
        start = left
        if resolved and resolved[-1][1] == owner:
            start = resolved.pop()[0].start
        resolved.append((Match(start, right, owner.rule, owner.score), owner))
    return resolved
