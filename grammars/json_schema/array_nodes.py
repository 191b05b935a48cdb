"""Array pieces to nodes: places, counted memberships, different items.

Counted memberships (`contains`) split the items of every place into disjoint choices, one for each set of memberships
they may count for. Different items are one node a value where the values can be listed; otherwise an item that repeats
cannot be closed in the mask, which is all there is to enforce where an item can always go on: free strings, open
objects and arrays. Equal pairs,
and different items that are also counted, are verified when the array closes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from safegen._native import Builder, LimitExceeded, Predicate
from safegen.grammars import unicode_sets
from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.enumeration import Enumeration
from safegen.grammars.json_schema.objects import ObjectPiece, Objects
from safegen.grammars.json_schema.strings import StringSet
from safegen.grammars.json_schema.terms import Term

MAX_COUNTS = 4
MAX_COUNT = 60_000
_MAX_LISTED_VALUES = 1024
# Kinds of characters that may make a string longer: any, small and capital letters, digits.
_MORE = (unicode_sets.ALL, ((0x61, 0x7A),), ((0x41, 0x5A),), ((0x30, 0x39),))
Choices = list[tuple[int, int]]


class ArrayNodes:
    """node_of: a term's node, None when plainly empty. note: tells that (pointer, keyword) is verified."""

    def __init__(
        self,
        builder: Builder,
        objects: Objects,
        enumeration: Enumeration,
        node_of: Callable[[Term], int | None],
        note: Callable[[str, str, str], None],
    ) -> None:
        self.builder = builder
        self.objects = objects
        self.terms = objects.terms
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
        """Whatever is read of an item, it can still become infinitely many values. So no value is left that must be
        closed where an equal one came before."""
        shape = self.enumeration.shape_of(term)
        if shape.null or shape.booleans or shape.numbers or shape.loose:
            return False
        return (
            (not shape.strings or self._can_be_longer(shape.strings))
            and all(self._takes_more_items(piece) for piece in shape.arrays)
            and all(self._takes_more_keys(piece) for piece in shape.objects)
        )

    def _can_be_longer(self, strings: StringSet) -> bool:
        """Every string of the set stays in it when some kinds of characters are added. (A few kinds are tried.)"""
        builder = self.builder
        if not strings.listed and all(piece.high is None and not piece.exprs for piece in strings.pieces):
            return True
        if any(piece.high is not None for piece in strings.pieces):
            return False
        content = self.objects.strings.content(strings)
        others = builder.complement(content)
        try:
            for kind in _MORE:
                longer = builder.concat([content, builder.repeat(builder.chars(kind), 0, None)])
                if builder.is_empty(builder.intersect([longer, others])):
                    return True
        except LimitExceeded:
            pass
        return False

    def _takes_more_items(self, piece: ArrayPiece) -> bool:
        is_open = piece.high is None and piece.rest is not self.terms.false and not piece.contains
        return is_open and piece.unique is None and piece.repeats is None

    def _takes_more_keys(self, piece: ObjectPiece) -> bool:
        if piece.high is not None:
            return False
        return any(term is self.terms.true and self.objects.is_endless(keys) for keys, term in piece.classes)

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
