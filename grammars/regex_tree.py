"""Trees of regular expressions: characters, sequences, alternatives, counted repeats and assertions. Groups leave no
trace, and a sequence or alternative of one part is that part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from safegen.grammars.unicode_sets import Ranges


class Kind(Enum):
    TEXT = "text"  # a fixed string
    CHARS = "chars"  # one code point of a set
    SEQUENCE = "sequence"
    ALTERNATIVES = "alternatives"
    REPEAT = "repeat"
    START = "^"
    END = "$"
    BOUNDARY = "\\b"
    NO_BOUNDARY = "\\B"
    AHEAD = "(?="
    NOT_AHEAD = "(?!"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node. asserts: some assertion lies within. depth: levels below. count: product of the nested counts."""

    kind: Kind
    parts: tuple[Pattern, ...] = ()
    text: str = ""
    ranges: Ranges = ()
    low: int = 1
    high: int | None = 1
    asserts: bool = False
    depth: int = 1
    count: int = 1


def sequence(parts: Sequence[Pattern]) -> Pattern:
    """One after the other. Neighbours that repeat the same become one count, as a{1,2}a? becomes a{1,3}; otherwise
    a?a?a?...aaa would cost a state for each set of counts."""
    joined: list[Pattern] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is None or last.kind is not Kind.REPEAT:
            joined.append(part)
        elif part.kind is Kind.REPEAT and part.parts == last.parts:
            joined[-1] = _counted_on(last, part.low, part.high)
        elif part.kind is Kind.TEXT and len(last.parts[0].text) == 1:
            rest = part.text.lstrip(last.parts[0].text)
            count = len(part.text) - len(rest)
            joined[-1] = _counted_on(last, count, count)
            joined += [replace(part, text=rest)] if rest else []
        else:
            joined.append(part)
    return joined[0] if len(joined) == 1 else _inner(Kind.SEQUENCE, joined)


def _counted_on(part: Pattern, low: int, high: int | None) -> Pattern:
    return repeat(part.parts[0], part.low + low, None if part.high is None or high is None else part.high + high)


def alternatives(parts: Sequence[Pattern]) -> Pattern:
    return parts[0] if len(parts) == 1 else _inner(Kind.ALTERNATIVES, parts)


def repeat(part: Pattern, low: int, high: int | None) -> Pattern:
    count = max(low, high or 0, 1)
    return Pattern(
        Kind.REPEAT, (part,), low=low, high=high, asserts=part.asserts, depth=part.depth + 1, count=part.count * count
    )


def _inner(kind: Kind, parts: Sequence[Pattern]) -> Pattern:
    return Pattern(
        kind,
        tuple(parts),
        asserts=any(part.asserts for part in parts),
        depth=1 + max((part.depth for part in parts), default=0),
        count=max((part.count for part in parts), default=1),
    )


def assertion(kind: Kind, parts: Sequence[Pattern] = ()) -> Pattern:
    depth = 1 + max((part.depth for part in parts), default=0)
    return Pattern(kind, tuple(parts), asserts=True, depth=depth)
