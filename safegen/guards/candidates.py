"""Candidates of one guard that overlap, made into disjoint matches.

Every character that a candidate covers is reported, once: it belongs to the longest candidate over it (then to the rule
that comes first, the one that starts first, the surest), and a match is a run of characters of one owner. So nothing of
two overlapping findings stays in clear, a finding within another one vanishes, and matches are bounded and disjoint.
The owner of a character depends on the candidates over it alone, which keeps `find` local.
"""

from __future__ import annotations

from collections.abc import Sequence

from safegen.guards.base import Match


def pieces(candidates: Sequence[Match], rank: dict[str, int]) -> list[tuple[Match, Match]]:
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


def before_owner(candidates: Sequence[Match], cut: int, rank: dict[str, int]) -> int:
    """The start of the match over the character before `cut`, if the candidate that owns it goes on behind; `cut` where
    it does not."""
    if any(each.start < cut < each.end for each in candidates):
        for piece, owner in pieces(candidates, rank):
            if piece.start < cut <= piece.end and owner.end > cut:
                return piece.start
    return cut
