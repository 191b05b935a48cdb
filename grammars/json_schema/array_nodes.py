"""Array pieces to nodes: places, counted memberships, different items.

Counted memberships (`contains`) split the items of every place into disjoint choices, one for each set of memberships
they may count for. Different items are one node a value where the values can be listed; otherwise an item that repeats
cannot be closed in the mask, which for free strings is all there is to enforce, as they can always go on. Equal pairs,
and different items that are also counted, are verified when the array closes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from safegen._native import Builder, Predicate
from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.enumeration import Enumeration
from safegen.grammars.json_schema.terms import Term, TermTable

MAX_COUNTS = 4
MAX_COUNT = 60_000
_MAX_LISTED_VALUES = 256
Choices = list[tuple[int, int]]


class ArrayNodes:
    """node_of: a term's node, None when plainly empty. note: tells that (pointer, keyword) is verified."""

    def __init__(
        self,
        builder: Builder,
        terms: TermTable,
        enumeration: Enumeration,
        node_of: Callable[[Term], int | None],
        note: Callable[[str, str, str], None],
    ) -> None:
        self.builder = builder
        self.terms = terms
        self.enumeration = enumeration
        self.node_of = node_of
        self.note = note

    def node(self, piece: ArrayPiece) -> int:
        """The node of a resolved piece."""
        if piece.repeats is not None:
            self.note(piece.repeats, "uniqueItems", "that two items are equal is checked when the array closes")
            inner = self.node(replace(piece, repeats=None, low=max(2, piece.low)))
            differ = Predicate.none_of(Predicate.unique_items())
            return self.builder.verified(inner, differ, pointer=piece.repeats)
        if piece.contains:
            return self._counted(piece)
        return self._plain(piece) if piece.unique is None else self._unique(piece, piece.unique)

    def _plain(self, piece: ArrayPiece, unique: str | None = None) -> int:
        prefix: list[int] = []
        rest: int | None = None
        for place, term in enumerate((*piece.prefix, piece.rest)):
            node = None if piece.high is not None and place >= piece.high else self.node_of(term)
            if node is None:
                break
            if place < len(piece.prefix):
                prefix.append(node)
            else:
                rest = node
        if unique is None:
            return self.builder.array(prefix, rest, piece.low, piece.high)
        return self.builder.array(prefix, rest, piece.low, piece.high, unique=True, pointer=unique)

    # Different items.

    def _unique(self, piece: ArrayPiece, pointer: str) -> int:
        if not piece.prefix:
            values = self.enumeration.values(piece.rest, _MAX_LISTED_VALUES)
            if values is not None:
                every = (self.terms.value(value, pointer) for value in values)
                listed = [self.node_of(self.terms.all_of([piece.rest, value])) for value in every]
                nodes = [node for node in listed if node is not None]
                if nodes:
                    return self.builder.distinct_array(nodes, piece.low, piece.high)
                return self._plain(replace(piece, high=0)) if not piece.low else self._nothing()
        if not all(self._never_used_up(term) for term in (*piece.prefix, piece.rest) if term is not self.terms.false):
            self.note(
                pointer, "uniqueItems", "items that repeat are refused where they close; if stuck, the item is redone"
            )
        return self._plain(piece, unique=pointer)

    def _nothing(self) -> int:
        return self.builder.lexeme(self.builder.empty())

    def _never_used_up(self, term: Term) -> bool:
        """Strings alone, of which every one can be made longer."""
        shape = self.enumeration.shape_of(term)
        others = shape.null or shape.booleans or shape.numbers or shape.arrays or shape.objects or shape.strings.listed
        return not others and all(piece.high is None and not piece.exprs for piece in shape.strings.pieces)

    # Counted items.

    def _counted(self, piece: ArrayPiece) -> int:
        places = max(len(piece.prefix), *(entry.start for entry in piece.contains))
        prefix = [self._choices(piece, place) for place in range(places)]
        counts = [(entry.low, entry.high) for entry in piece.contains]
        inner = self.builder.counted_array(prefix, self._choices(piece, places), piece.low, piece.high, counts)
        if piece.unique is None:
            return inner
        self.note(piece.unique, "uniqueItems", "beside counted items it is checked when the array closes")
        return self.builder.verified(inner, Predicate.unique_items(), pointer=piece.unique)

    def _choices(self, piece: ArrayPiece, place: int) -> Choices:
        """(node, bits of the counts it adds to), one for each set of the counts that begin at or before the place."""
        if piece.high is not None and place >= piece.high:
            return []
        choices = [(piece.item(place), 0)]
        for index, entry in enumerate(piece.contains):
            if entry.start <= place:
                inside, outside = entry.term, self.terms.negate(entry.term)
                choices = [
                    (self.terms.all_of([term, part]), bits | bit)
                    for term, bits in choices
                    for part, bit in ((inside, 1 << index), (outside, 0))
                ]
        nodes = ((self.node_of(term), bits) for term, bits in choices)
        return [(node, bits) for node, bits in nodes if node is not None]
