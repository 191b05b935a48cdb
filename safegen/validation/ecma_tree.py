"""The tree of a regular expression, and the errors of reading one. depth: nesting below and including a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safegen.errors import GrammarError
from safegen.validation.ecma_classes import Predicate

AssertionKind = Literal["start", "end", "line_start", "line_end", "word", "word_folded"]


class RegexSyntaxError(GrammarError):
    """Not a regular expression by ECMA-262."""


class RegexUnsupported(GrammarError):
    """Valid by ECMA-262, or nearly, but outside what this engine decides in linear time."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a set. literal: the character, when the set is that one alone."""

    matches: Predicate
    literal: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Concat:
    parts: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Alternate:
    branches: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """body, from low to high times; high None is unbounded."""

    body: Node
    low: int
    high: int | None
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    kind: AssertionKind
    negated: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Look-ahead or look-behind."""

    body: Node
    behind: bool
    negated: bool
    depth: int


Node = Chars | Concat | Alternate | Repeat | Assertion | Look
