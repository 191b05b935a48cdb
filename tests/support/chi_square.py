"""Pearson's test of counts against a law, without tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

_SIGMAS = 4.0  # one right law in 30,000 is refused
_LEAST_EXPECTED = 5.0

T = TypeVar("T", bound=Hashable)


def fits(counts: Counter[T], law: Mapping[T, float]) -> bool:
    """Whether counts may well have come from the law. What is rare is taken together; what cannot be, must not be."""
    total = sum(counts.values())
    if any(not law.get(value) for value in counts):
        return False
    cells = [(counts[value], total * chance) for value, chance in law.items() if total * chance >= _LEAST_EXPECTED]
    rest = (total - sum(seen for seen, _ in cells), total - sum(expected for _, expected in cells))
    if rest[1] >= _LEAST_EXPECTED:
        cells.append(rest)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return statistic <= highest(len(cells) - 1)


def highest(degrees: int) -> float:
    """The statistic at so many sigmas (Wilson and Hilferty, 1931)."""
    if degrees < 1:
        return 0.0
    return float(degrees * (1 - 2 / (9 * degrees) + _SIGMAS * (2 / (9 * degrees)) ** 0.5) ** 3)
