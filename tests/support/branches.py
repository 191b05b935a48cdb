"""Every way in which a random process can go, each with its probability: exact laws of small processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class Branch:
    """One way: choices come from a script first, then the first possible one is taken and the others are noted."""

    def __init__(self, script: list[int], todo: list[list[int]]) -> None:
        self._script = script
        self._todo = todo
        self._place = 0
        self.probability = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """An index with positive weight; the weights are probabilities."""
        if self._place == len(self._script):
            first, *others = [number for number, weight in enumerate(weights) if weight > 0.0]
            self._todo.extend([*self._script, other] for other in others)
            self._script.append(first)
        chosen = self._script[self._place]
        self._place += 1
        self.probability *= weights[chosen]
        return chosen


def law_of(process: Callable[[Branch], T]) -> Counter[T]:
    """Probability of each outcome of a process that takes all its randomness from the branch."""
    found: Counter[T] = Counter()
    todo: list[list[int]] = [[]]
    while todo:
        branch = Branch(todo.pop(), todo)
        outcome = process(branch)
        found[outcome] += branch.probability  # type: ignore[assignment]
    return found
