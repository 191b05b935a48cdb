"""Array pieces to nodes: places, counted memberships, different items.

Counted memberships (`contains`) split the items of every place into disjoint choices, one for each set of memberships
they may count for. Different items are one node a value where the values can be listed: the machine uses each once, and
keeps those back that later places or counts need. Otherwise an item that repeats cannot be closed in the mask, which is
all there is to enforce where an item can always go on: free strings, open objects and arrays. Equal pairs are verified
when the array closes.
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
_MAX_LISTED_APART = 64  # values that are taken out of what else an item may be
_MAX_CHOICES = 4096
# Kinds of characters that may make a string longer: any, small and capital letters, digits.
_MORE = (unicode_sets.ALL, ((0x61, 0x7A),), ((0x41, 0x5A),), ((0x30, 0x39),))
Choices = list[tuple[int, int]]
Cell = tuple[Term, int]  # what an item may be, and the bits of the counts it adds to


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
        if piece.unique is not None:
            return self._unique(piece, piece.unique)
        return self._counted(piece, self._cells(piece)) if piece.contains else self._plain(piece)

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
        if not piece.prefix and not piece.contains:
            values = self.enumeration.values(piece.rest, _MAX_LISTED_VALUES)
            if values is not None:
                every = (self.terms.value(value, pointer) for value in values)
                listed = [self.node_of(self.terms.all_of([piece.rest, value])) for value in every]
                nodes = [node for node in listed if node is not None]
                if nodes:
                    return self.builder.distinct_array(nodes, piece.low, piece.high)
                return self._plain(replace(piece, high=0)) if not piece.low else self._nothing()
            return self._compared(piece, [], pointer)
        cells = self._cells(piece)
        listed_at = [[self._listed(term, pointer) for term, _ in place] for place in cells]
        values_ = list(dict.fromkeys(value for place in listed_at for listed in place for value in listed or ()))
        if not values_ or len(values_) > _MAX_LISTED_VALUES or len(values_) * len(cells) > _MAX_CHOICES:
            return self._compared(piece, cells, pointer)
        return self._distinct(piece, cells, listed_at, values_, pointer)

    def _listed(self, term: Term, pointer: str) -> list[Term] | None:
        """The values of a term, where they can be listed."""
        values = self.enumeration.values(term, _MAX_LISTED_VALUES)
        return None if values is None else [self.terms.value(value, pointer) for value in values]

    def _compared(self, piece: ArrayPiece, cells: list[list[Cell]], pointer: str) -> int:
        """Items are compared with those before as they close."""
        self._note_compared([term for place in cells for term, _ in place] or [*piece.prefix, piece.rest], pointer)
        return self._counted(piece, cells, pointer) if piece.contains else self._plain(piece, pointer)

    def _note_compared(self, terms: list[Term], pointer: str) -> None:
        if not all(self._never_used_up(term) for term in terms if term is not self.terms.false):
            self.note(
                pointer, "uniqueItems", "items that repeat are refused where they close; if stuck, the item is redone"
            )

    def _distinct(
        self,
        piece: ArrayPiece,
        cells: list[list[Cell]],
        listed_at: list[list[list[Term] | None]],
        values: list[Term],
        pointer: str,
    ) -> int:
        """Listed values are used once each; other items are compared."""
        number_of = {value: number for number, value in enumerate(values)}
        numbers: dict[int, int] = {}
        choices: list[Choices] = []
        others: list[Term] = []
        for place, listed_in in zip(cells, listed_at):
            here: Choices = []
            for (term, bits), listed in zip(place, listed_in):
                if listed is None:
                    listed = self._listed_within(term, values)
                    rest = self.terms.all_of([term, *map(self.terms.negate, listed)])
                    others.append(rest)
                    here += [(node, bits) for node in [self.node_of(rest)] if node is not None]
                for value in listed:
                    node = self.node_of(self.terms.all_of([term, value]))
                    if node is not None:
                        numbers[node] = number_of[value]
                        here.append((node, bits))
            choices.append(here)
        self._note_compared(others, pointer)
        counts = [(entry.low, entry.high) for entry in piece.contains]
        return self.builder.counted_array(
            choices[:-1],
            choices[-1],
            piece.low,
            piece.high,
            counts,
            listed=list(numbers.items()),
            unique=bool(others),
        )

    def _listed_within(self, term: Term, values: list[Term]) -> list[Term]:
        """Those of the values that a term has beside others; none where they are many: they are compared then."""
        if len(values) > _MAX_LISTED_APART:
            return []
        return [value for value in values if self.enumeration.values(self.terms.all_of([term, value]), 1)]

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
        is_open = piece.high is None and self._is_inhabited(piece.rest) and not piece.contains
        return is_open and piece.unique is None and piece.repeats is None

    def _is_inhabited(self, term: Term) -> bool:
        """A value of the term is seen at once."""
        if term is self.terms.true:
            return True
        shape = self.enumeration.shape_of(term)
        return not shape.loose and (
            bool(shape.null or shape.booleans or shape.numbers or shape.strings)
            or any(not piece.low and not piece.contains and piece.repeats is None for piece in shape.arrays)
            or any(not piece.low and not piece.required and not piece.some for piece in shape.objects)
        )

    def _takes_more_keys(self, piece: ObjectPiece) -> bool:
        if piece.high is not None:
            return False
        return any(term is self.terms.true and self.objects.is_endless(keys) for keys, term in piece.classes)

    # Counted items.

    def _counted(self, piece: ArrayPiece, cells: list[list[Cell]], unique: str | None = None) -> int:
        choices = [
            [(node, bits) for term, bits in place for node in [self.node_of(term)] if node is not None]
            for place in cells
        ]
        counts = [(entry.low, entry.high) for entry in piece.contains]
        return self.builder.counted_array(
            choices[:-1], choices[-1], piece.low, piece.high, counts, unique=unique is not None
        )

    def _cells(self, piece: ArrayPiece) -> list[list[Cell]]:
        """For each of the first places, and for the rest: one cell for each set of the counts that begin at or before
        the place."""
        places = max(len(piece.prefix), *(entry.start for entry in piece.contains), 0)
        return [self._cells_at(piece, place) for place in range(places + 1)]

    def _cells_at(self, piece: ArrayPiece, place: int) -> list[Cell]:
        if piece.high is not None and place >= piece.high:
            return []
        cells = [(piece.item(place), 0)]
        for index, entry in enumerate(piece.contains):
            if entry.start <= place:
                inside, outside = entry.term, self.terms.negate(entry.term)
                cells = [
                    (self.terms.all_of([term, part]), bits | bit)
                    for term, bits in cells
                    for part, bit in ((inside, 1 << index), (outside, 0))
                ]
        return [cell for cell in cells if cell[0] is not self.terms.false]
