"""Canonical form of sets of strings: listed values and pieces, closed under intersection, union and complement.

A piece is a window of lengths (in code points) and an intersection of languages over the UTF-8 bytes of the decoded
value. Lengths stay numbers, so that many of them meet in one counter. Listed values come from const and enum; they
are kept apart because they have one spelling under "canonical", and because they can be filtered one by one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safegen.grammars import unicode_sets

if TYPE_CHECKING:
    from safegen._native import Builder


@dataclass(frozen=True, slots=True)
class StringPiece:
    low: int = 0
    high: int | None = None
    exprs: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StringSet:
    listed: tuple[str, ...] = ()
    pieces: tuple[StringPiece, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listed or self.pieces)


ALL_STRINGS = StringSet(pieces=(StringPiece(),))
NO_STRINGS = StringSet()


def encodable(value: str) -> bool:
    """Whether some UTF-8 text can spell the value: it holds no lone surrogate."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


class Strings:
    """The algebra over one builder's exprs."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.char = builder.chars(unicode_sets.ALL)
        self.anything = builder.any_text()
        self._exprs: dict[StringPiece, int] = {}
        self._empty: dict[StringPiece, bool] = {}
        self._complements: dict[int, int] = {}

    def expr(self, piece: StringPiece) -> int:
        """The language of a piece over decoded text."""
        known = self._exprs.get(piece)
        if known is None:
            parts = sorted(piece.exprs)
            if piece.low or piece.high is not None:
                parts.append(self.builder.repeat(self.char, piece.low, piece.high))
            elif not parts:
                parts.append(self.anything)
            known = self._exprs[piece] = self.builder.intersect(parts) if len(parts) > 1 else parts[0]
        return known

    def texts(self, piece: StringPiece, limit: int) -> list[str] | None:
        """All strings of a piece; None when there are more than `limit`."""
        if not piece.exprs and piece.high != 0:
            return None
        texts = self.builder.texts(self.expr(piece), limit)
        return None if texts is None else [text.decode() for text in texts]

    def content(self, strings: StringSet) -> int:
        """The language of the whole set over decoded text."""
        parts = [self.expr(piece) for piece in strings.pieces]
        if strings.listed:
            parts.append(self.builder.strings([value.encode() for value in strings.listed]))
        return parts[0] if len(parts) == 1 else self.builder.alternate(parts)

    def contains(self, strings: StringSet, value: str) -> bool:
        return value in strings.listed or self._in_pieces(strings.pieces, value)

    def _in_pieces(self, pieces: tuple[StringPiece, ...], value: str) -> bool:
        for piece in pieces:
            if piece.low <= len(value) and (piece.high is None or len(value) <= piece.high):
                encoded = value.encode()
                if all(self.builder.matches_expr(expr, encoded) for expr in piece.exprs):
                    return True
        return False

    def piece_is_empty(self, piece: StringPiece) -> bool:
        if piece.high is not None and piece.high < piece.low:
            return True
        if not piece.exprs:
            return False
        known = self._empty.get(piece)
        if known is None:
            known = self._empty[piece] = self.builder.is_empty(self.expr(piece))
        return known

    def is_empty(self, strings: StringSet) -> bool:
        return not strings.listed and all(self.piece_is_empty(piece) for piece in strings.pieces)

    def intersect(self, a: StringSet, b: StringSet) -> StringSet:
        theirs, mine = frozenset(b.listed), frozenset(a.listed)
        listed = [value for value in a.listed if value in theirs or self._in_pieces(b.pieces, value)]
        listed += [value for value in b.listed if value not in mine and self._in_pieces(a.pieces, value)]
        pieces = dict.fromkeys(self._meet(p, q) for p in a.pieces for q in b.pieces)
        return StringSet(tuple(listed), tuple(p for p in pieces if p.high is None or p.low <= p.high))

    @staticmethod
    def _meet(p: StringPiece, q: StringPiece) -> StringPiece:
        high = p.high if q.high is None else q.high if p.high is None else min(p.high, q.high)
        return StringPiece(max(p.low, q.low), high, p.exprs | q.exprs)

    @staticmethod
    def union(a: StringSet, b: StringSet) -> StringSet:
        return StringSet(tuple(dict.fromkeys(a.listed + b.listed)), tuple(dict.fromkeys(a.pieces + b.pieces)))

    def complement(self, strings: StringSet) -> StringSet:
        result = ALL_STRINGS
        if strings.listed:
            others = self._outside(self.builder.strings([value.encode() for value in strings.listed]))
            result = StringSet(pieces=(StringPiece(exprs=frozenset((others,))),))
        for piece in strings.pieces:
            pieces = []
            if piece.low:
                pieces.append(StringPiece(high=piece.low - 1))
            if piece.high is not None:
                pieces.append(StringPiece(low=piece.high + 1))
            pieces += [StringPiece(exprs=frozenset((self._outside(expr),))) for expr in sorted(piece.exprs)]
            result = self.intersect(result, StringSet(pieces=tuple(pieces)))
        return result

    def _outside(self, expr: int) -> int:
        """The text outside of a language of text. What is outside of that is the language itself, not a complement of
        a complement."""
        known = self._complements.get(expr)
        if known is None:
            known = self._complements[expr] = self.within_text(self.builder.complement(expr))
            self._complements[known] = expr
        return known

    def within_text(self, expr: int) -> int:
        """A complement is taken within all bytes; the values are text."""
        return self.builder.intersect([self.anything, expr])

    def lexeme(self, strings: StringSet, any_spelling: bool) -> list[int]:
        """Exprs of the JSON texts of the set."""
        builder = self.builder
        parts = [builder.json_string(self.expr(piece)) for piece in strings.pieces]
        if strings.listed:
            if any_spelling:
                parts.append(builder.json_string(builder.strings([value.encode() for value in strings.listed])))
            else:
                parts.append(builder.strings([canonical_string(value) for value in strings.listed]))
        return parts


def canonical_string(value: str) -> bytes:
    """The one spelling of a listed string: raw UTF-8, the shortest legal escapes."""
    return json.dumps(value, ensure_ascii=False).encode()
