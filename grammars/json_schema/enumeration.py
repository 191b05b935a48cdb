"""The values of a term one by one, where there are few: what lets unique items be held in the mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from math import prod

from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.canonical import Shape
from safegen.grammars.json_schema.loader import JsonValue
from safegen.grammars.json_schema.numbers import NumberPiece, to_decimal
from safegen.grammars.json_schema.objects import ObjectPiece, Objects
from safegen.grammars.json_schema.terms import Term, TermKind, value_key

# Combinations of members or items that are tried, for each value that may be listed.
_TRIED_A_VALUE = 16


class Enumeration:
    """shape_of: works a term out."""

    def __init__(self, objects: Objects, shape_of: Callable[[Term], Shape]) -> None:
        self.objects = objects
        self.shape_of = shape_of

    def values(self, term: Term, limit: int, levels: int = 4) -> list[JsonValue] | None:
        """All values of a term, each once; None when there are more than `limit` or they cannot be listed."""
        if term.kind is TermKind.VALUE:
            return [term.value]
        if levels == 0:
            return None
        shape = self.shape_of(term)
        if shape.loose:
            return None
        found: dict[object, JsonValue] = {}
        constants: list[JsonValue] = [*([None] if shape.null else []), *shape.booleans, *shape.strings.listed]
        parts = [iter(constants), iter(shape.numbers.listed)]
        for numbers in shape.numbers.pieces:
            if not self._is_finite(numbers):
                return None
            parts.append(_multiples(numbers))
        for strings in shape.strings.pieces:
            texts = self.objects.strings.texts(strings, limit)
            if texts is None:
                return None
            parts.append(iter(texts))
        composed = [self._arrays(piece, limit, levels - 1) for piece in shape.arrays]
        objects = (resolved for piece in shape.objects for resolved in self.objects.resolve(piece))
        composed += [self._objects(piece, limit, levels - 1) for piece in objects]
        for made in composed:
            if made is None:
                return None
            parts.append(made)
        for part in parts:
            for value in part:
                found.setdefault(value_key(value), value)
                if len(found) > limit:
                    return None
        return list(found.values())

    @staticmethod
    def _is_finite(piece: NumberPiece) -> bool:
        bounded = piece.low is not None and piece.high is not None
        return bounded and (piece.divisor is not None or piece.low == piece.high)

    def _arrays(self, piece: ArrayPiece, limit: int, levels: int) -> Iterator[JsonValue] | None:
        places: list[list[JsonValue]] = []
        while piece.high is None or len(places) < piece.high:
            if len(places) > limit:
                return None
            values = self.values(piece.item(len(places)), limit, levels)
            if values is None:
                later = range(len(places) + 1, min(piece.low, len(piece.prefix) + 1))
                return iter(()) if any(self.shape_of(piece.item(place)).is_blank() for place in later) else None
            if not values:
                break
            places.append(values)
        lengths = range(piece.low, len(places) + 1)
        made = (list(items) for length in lengths for items in product(*places[:length]))
        if piece.unique is None and piece.repeats is None and not piece.contains:
            return made
        if prod(map(len, places)) > _TRIED_A_VALUE * limit:
            return None
        verdicts = [(items, self._satisfies(items, piece, levels)) for items in made]
        if any(verdict is None for _, verdict in verdicts):
            return None
        return iter([items for items, verdict in verdicts if verdict])

    def _satisfies(self, items: list[JsonValue], piece: ArrayPiece, levels: int) -> bool | None:
        """What an array's items are asked for together. None where that cannot be told."""
        different = len({value_key(item) for item in items}) == len(items)
        if (piece.unique is not None and not different) or (piece.repeats is not None and different):
            return False
        for entry in piece.contains:
            found = [self._holds(entry.term, item, entry.pointer, levels) for item in items[entry.start :]]
            if None in found:
                return None
            count = found.count(True)
            if count < entry.low or (entry.high is not None and count > entry.high):
                return False
        return True

    def _holds(self, term: Term, value: JsonValue, pointer: str, levels: int) -> bool | None:
        terms = self.objects.terms
        values = self.values(terms.all_of([term, terms.value(value, pointer)]), 1, levels)
        return None if values is None else bool(values)

    def _objects(self, piece: ObjectPiece, limit: int, levels: int) -> Iterator[JsonValue] | None:
        false = self.objects.terms.false
        names = list(dict.fromkeys((*piece.names, *piece.required)))
        if any(self.shape_of(self.objects.value_term(piece, name)).is_blank() for name in piece.required):
            return iter(())
        if piece.some or any(term is not false for _, term in piece.classes):
            return None
        members: list[list[tuple[JsonValue] | None]] = []
        for name in names:
            values = self.values(self.objects.value_term(piece, name), limit, levels)
            if values is None:
                return None
            members.append([*([] if name in piece.required else [None]), *((value,) for value in values)])
        if prod(map(len, members)) > _TRIED_A_VALUE * limit:
            return None
        made = (
            {name: member[0] for name, member in zip(names, chosen) if member is not None}
            for chosen in product(*members)
        )
        return (
            value for value in made if piece.low <= len(value) <= (len(value) if piece.high is None else piece.high)
        )


def _multiples(piece: NumberPiece) -> Iterator[JsonValue]:
    assert piece.low is not None
    assert piece.high is not None
    if piece.divisor is None:
        yield piece.low
        return
    first, last = -(-Fraction(piece.low) // piece.divisor), Fraction(piece.high) // piece.divisor
    for multiple in range(first, last + 1):
        value = to_decimal(piece.divisor * multiple)
        if piece.contains(value):
            yield value
