"""Trees of terminal regexes, with the order of preference that Python's `re` gives them, and plain facts about them."""

from __future__ import annotations

from dataclasses import dataclass

from safegen.grammars import unicode_sets
from safegen.grammars.unicode_sets import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One code point of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Alternatives in order of preference."""

    branches: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Tree
    low: int
    high: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    """A look-ahead."""

    part: Tree
    negative: bool


@dataclass(frozen=True, slots=True)
class Behind:
    """A look at the character before."""

    ranges: Ranges
    negative: bool


Tree = Chars | Concatenation | Either | Repeat | Ahead | Behind
NOTHING = Concatenation(())


def either(branches: list[Tree]) -> Tree:
    """Alternatives; when all are single characters, their set."""
    if all(isinstance(branch, Chars) for branch in branches):
        return Chars(
            unicode_sets.normalise(r for branch in branches if isinstance(branch, Chars) for r in branch.ranges)
        )
    return branches[0] if len(branches) == 1 else Either(tuple(branches))


def parts_of(tree: Tree) -> tuple[Tree, ...]:
    match tree:
        case Concatenation():
            return tree.parts
        case Either():
            return tree.branches
        case Repeat() | Ahead():
            return (tree.part,)
        case _:
            return ()


def never_chooses(tree: Tree) -> bool:
    """Nothing in the tree prefers one way to another."""
    if isinstance(tree, Either) or (isinstance(tree, Repeat) and tree.low != tree.high):
        return False
    return all(never_chooses(part) for part in parts_of(tree))


def first_chars(tree: Tree) -> tuple[Ranges, bool]:
    """Characters a word may begin with, and whether it may be empty."""
    match tree:
        case Chars():
            return tree.ranges, False
        case Concatenation():
            gathered: list[tuple[int, int]] = []
            for part in tree.parts:
                first, nullable = first_chars(part)
                gathered += first
                if not nullable:
                    return unicode_sets.normalise(gathered), False
            return unicode_sets.normalise(gathered), True
        case Either():
            firsts = [first_chars(branch) for branch in tree.branches]
            return unicode_sets.normalise(r for first, _ in firsts for r in first), any(n for _, n in firsts)
        case Repeat():
            first, nullable = first_chars(tree.part)
            return first, nullable or tree.low == 0
        case _:
            return (), True


def width(tree: Tree) -> tuple[int, int | None]:
    """Characters of a shortest and of a longest word; None: unbounded."""
    match tree:
        case Chars():
            return 1, 1
        case Concatenation():
            widths = [width(part) for part in tree.parts]
            longest = [high for _, high in widths]
            total = None if None in longest else sum(high for high in longest if high is not None)
            return sum(low for low, _ in widths), total
        case Either():
            widths = [width(branch) for branch in tree.branches]
            highs = [high for _, high in widths]
            most = None if None in highs else max(high for high in highs if high is not None)
            return min(low for low, _ in widths), most
        case Repeat():
            low, high = width(tree.part)
            longest_repeat = None if tree.high is None or high is None else high * tree.high
            return low * tree.low, 0 if high == 0 else longest_repeat
        case _:
            return 0, 0


def unrolled(tree: Tree) -> int:
    """Characters that the tree names once its counts are written out."""
    match tree:
        case Chars() | Behind():
            return 1
        case Repeat():
            return unrolled(tree.part) * max(1, tree.low, tree.high or 0)
        case _:
            return 1 + sum(unrolled(part) for part in parts_of(tree))


def literal_codes(tree: Tree) -> tuple[int, ...] | None:
    """The code points of a tree that is one fixed text."""
    parts = tree.parts if isinstance(tree, Concatenation) else (tree,)
    codes = []
    for part in parts:
        if not isinstance(part, Chars) or len(part.ranges) != 1 or part.ranges[0][0] != part.ranges[0][1]:
            return None
        codes.append(part.ranges[0][0])
    return tuple(codes)
