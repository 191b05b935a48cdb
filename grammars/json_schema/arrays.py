"""Canonical form of sets of arrays: a union of pieces, closed under intersection and complement.

A piece has items by place (`prefix`, then `rest`), a window of lengths, counted memberships (`contains`), and perhaps
that items differ (`unique`) or that two are equal (`repeats`). The complement of "every further item is t" is "some
further item is not t", so `contains` and `repeats` are what makes the form closed. `resolve` turns what can be turned
into places and lengths; `array_nodes` lowers the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from safegen.grammars.json_schema.terms import Term, TermTable


@dataclass(frozen=True, slots=True)
class Contains:
    """Of the items from place `start` on, at least `low` and at most `high` belong to `term`."""

    start: int
    term: Term
    low: int
    high: int | None
    pointer: str


@dataclass(frozen=True, slots=True)
class ArrayPiece:
    """seen: how many leading items are evaluated, None when all are; seen_by: items of these terms are, wherever they
    stand (both for unevaluatedItems).
    unique: pointer of the schema that wants unique items. repeats: of the one whose negation wants an equal pair."""

    rest: Term
    prefix: tuple[Term, ...] = ()
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: str | None = None
    seen: int | None = 0
    repeats: str | None = None
    seen_by: tuple[Term, ...] = ()

    def item(self, place: int) -> Term:
        return self.prefix[place] if place < len(self.prefix) else self.rest


class Arrays:
    def __init__(self, terms: TermTable) -> None:
        self.terms = terms
        self.anything = ArrayPiece(terms.true)

    def meet(self, a: ArrayPiece, b: ArrayPiece) -> ArrayPiece | None:
        """Intersection of two pieces; None when it is plainly empty."""
        if a is self.anything or b is self.anything:
            return b if a is self.anything else a
        places = max(len(a.prefix), len(b.prefix))
        prefix = tuple(self.terms.all_of([a.item(place), b.item(place)]) for place in range(places))
        high = a.high if b.high is None else b.high if a.high is None else min(a.high, b.high)
        met = ArrayPiece(
            self.terms.all_of([a.rest, b.rest]),
            prefix,
            max(a.low, b.low),
            high,
            a.contains + tuple(entry for entry in b.contains if entry not in a.contains),
            a.unique if a.unique is not None else b.unique,
            None if a.seen is None or b.seen is None else max(a.seen, b.seen),
            a.repeats if a.repeats is not None else b.repeats,
            tuple(dict.fromkeys(a.seen_by + b.seen_by)),
        )
        if met.unique is not None and met.repeats is not None:
            return None
        return self.trim(met)

    def trim(self, piece: ArrayPiece) -> ArrayPiece | None:
        """Let an impossible place end the array; None when too few places are left."""
        high = piece.high
        for place, term in enumerate((*piece.prefix, piece.rest)):
            if term is self.terms.false:
                high = place if high is None else min(high, place)
                break
        if high is not None and high < piece.low:
            return None
        return piece if high == piece.high else replace(piece, high=high)

    def complement(self, piece: ArrayPiece, pointer: str) -> list[ArrayPiece]:
        """Pieces of all arrays outside of this one. pointer: of the schema that negates, for new contains."""
        terms = self.terms
        pieces = []
        if piece.unique is not None:
            pieces.append(ArrayPiece(terms.true, low=2, repeats=piece.unique))
        if piece.repeats is not None:
            pieces.append(ArrayPiece(terms.true, unique=piece.repeats))
        if piece.low:
            pieces.append(ArrayPiece(terms.true, high=piece.low - 1))
        if piece.high is not None:
            pieces.append(ArrayPiece(terms.true, low=piece.high + 1))
        for place, term in enumerate(piece.prefix):
            if term is not terms.true:
                prefix = (*[terms.true] * place, terms.negate(term))
                pieces.append(ArrayPiece(terms.true, prefix, low=place + 1))
        if piece.rest is terms.false:
            pieces.append(ArrayPiece(terms.true, low=len(piece.prefix) + 1))
        elif piece.rest is not terms.true:
            other = Contains(len(piece.prefix), terms.negate(piece.rest), 1, None, pointer)
            pieces.append(ArrayPiece(terms.true, contains=(other,)))
        for entry in piece.contains:
            if entry.low:
                pieces.append(ArrayPiece(terms.true, contains=(replace(entry, low=0, high=entry.low - 1),)))
            if entry.high is not None:
                pieces.append(ArrayPiece(terms.true, contains=(replace(entry, low=entry.high + 1, high=None),)))
        return [trimmed for candidate in pieces if (trimmed := self.trim(candidate)) is not None]

    def resolve(self, piece: ArrayPiece) -> list[ArrayPiece]:
        """Equal pieces with as few `contains` and `unique` as can be."""
        pieces = [replace(piece, contains=(), unique=None if piece.high in (0, 1) else piece.unique)]
        for entry in piece.contains:
            pieces = [resolved for candidate in pieces for resolved in self._resolve_entry(candidate, entry)]
        return pieces

    def _resolve_entry(self, piece: ArrayPiece, entry: Contains) -> list[ArrayPiece]:
        terms = self.terms
        if entry.high == 0:
            if entry.low:
                return []
            met = self.meet(piece, ArrayPiece(terms.negate(entry.term), (terms.true,) * entry.start, seen=piece.seen))
            return [] if met is None else [met]
        if entry.low == 0 and entry.high is None:
            return [piece]
        if entry.term is terms.true:
            count_high = None if entry.high is None else entry.start + entry.high
            met = self.meet(piece, ArrayPiece(terms.true, low=entry.start + entry.low, high=count_high))
            return [] if met is None else [met]
        return [replace(piece, contains=(*piece.contains, entry))]
