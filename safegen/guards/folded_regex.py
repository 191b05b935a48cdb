"""A regex as it reads folded text: every set of characters replaced by what its members fold to.

The tree that comes out has no texts and no assertions but anchors and ASCII word boundaries, so that the automaton of
decoding and RE2, which scans finished text, are made from one and the same. A set that holds more than half of all
characters (`.`, `[^a]`) is one that leaves some out: it stays so, with the folds of those left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from safegen.errors import GrammarError
from safegen.grammars.regex_tree import Kind, Pattern, alternatives, sequence
from safegen.grammars.unicode_sets import WORD, Ranges, complement, normalise
from safegen.guards.folding import Folding
from safegen.guards.folding import Ranges as _FoldRanges

_HALF = 0x110000 // 2
_ANCHORS = {Kind.START: r"\A", Kind.END: r"\z", Kind.BOUNDARY: r"\b", Kind.NO_BOUNDARY: r"\B"}
_NO_CHAR = r"[^\x{0}-\x{10FFFF}]"


def fold_tree(tree: Pattern, fold: Folding) -> Pattern:
    """Raises GrammarError for a look-ahead, which RE2 does not have."""
    match tree.kind:
        case Kind.TEXT:
            return sequence([_folded_set(((ord(char), ord(char)),), fold) for char in tree.text])
        case Kind.CHARS:
            return _folded_set(tree.ranges, fold)
        case Kind.AHEAD | Kind.NOT_AHEAD:
            raise GrammarError("look-aheads are not supported in a guard's regex")
        case _:
            return replace(tree, parts=tuple(fold_tree(part, fold) for part in tree.parts))


def sets_of(tree: Pattern) -> Iterator[Ranges]:
    """The sets of characters that the tree tells apart."""
    if tree.kind is Kind.CHARS:
        yield tree.ranges
    if tree.asserts:
        yield WORD
    for part in tree.parts:
        yield from sets_of(part)


def re2_text(tree: Pattern) -> str:
    """The tree in the syntax of RE2."""
    match tree.kind:
        case Kind.CHARS:
            inside = "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in tree.ranges)
            return f"[{inside}]" if inside else _NO_CHAR
        case Kind.SEQUENCE:
            return "".join(f"(?:{re2_text(part)})" for part in tree.parts)
        case Kind.ALTERNATIVES:
            return "|".join(f"(?:{re2_text(part)})" for part in tree.parts)
        case Kind.REPEAT:
            return _repeated(re2_text(tree.parts[0]), tree.low, tree.high)
        case _:
            return _ANCHORS[tree.kind]


def _repeated(part: str, low: int, high: int | None) -> str:
    """RE2 takes counts up to 1,000."""
    most = "" if high is None else str(high)
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high), f"{{{low},{most}}}")
    return f"(?:{part}){counts}"


def _folded_set(ranges: Ranges, fold: Folding) -> Pattern:
    if sum(high - low + 1 for low, high in ranges) > _HALF:
        gone, _ = _image(complement(ranges), fold)
        return Pattern(Kind.CHARS, ranges=complement(gone))
    single, longer = _image(ranges, fold)
    parts = [Pattern(Kind.CHARS, ranges=single)] if single or not longer else []
    parts += [sequence([_one(char) for char in text]) for text in sorted(longer)]
    return alternatives(parts)


def _one(char: str) -> Pattern:
    return Pattern(Kind.CHARS, ranges=((ord(char), ord(char)),))


def _image(ranges: Ranges, fold: Folding) -> tuple[Ranges, set[str]]:
    """The characters that members fold to, and the longer texts; a member that folds to nothing adds nothing."""
    singles: list[tuple[int, int]] = []
    longer: set[str] = set()
    for low, high in ranges:
        start = low
        for code in _changed_within(low, high, fold):
            singles += [(start, code - 1)] if code > start else []
            folded = fold.of(chr(code))
            if len(folded) == 1:
                singles.append((ord(folded), ord(folded)))
            elif folded:
                longer.add(folded)
            start = code + 1
        singles += [(start, high)] if start <= high else []
    return normalise(singles), longer


def _changed_within(low: int, high: int, fold: Folding) -> Iterator[int]:
    if high - low < 0x400:
        return iter([code for code in range(low, high + 1) if fold.of(chr(code)) != chr(code)])
    return iter(sorted({code for code in _all_changed(fold) if low <= code <= high}))


def _all_changed(fold: Folding) -> Iterator[int]:
    yield from map(ord, fold.changed)
    ranges: _FoldRanges = (*fold.dropped, *(((0xAC00, 0xD7A3),) if fold.decomposes_hangul else ()))
    for low, high in ranges:
        yield from range(low, high + 1)
