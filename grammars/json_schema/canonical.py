"""The canonical form: a set of JSON values as one form a type, with exact intersection, union and complement.

A `Shape` is the disjoint union of what it allows of each type. Scalars are worked out in full; arrays and objects are
unions of pieces whose items and members are terms. Multiplying alternatives out is bounded by `max_alternatives` and
by the compile deadline, each a typed error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from safegen.errors import SchemaError
from safegen.grammars.json_schema.arrays import ArrayPiece, Arrays
from safegen.grammars.json_schema.numbers import ALL_NUMBERS, NO_NUMBERS, NumberSet
from safegen.grammars.json_schema.objects import ObjectPiece, Objects
from safegen.grammars.json_schema.strings import ALL_STRINGS, NO_STRINGS, Strings, StringSet
from safegen.grammars.json_schema.terms import TermTable
from safegen.grammars.options import Limits

if TYPE_CHECKING:
    from safegen._native import Builder

Piece = TypeVar("Piece", ArrayPiece, ObjectPiece)
BOTH = (True, False)


@dataclass(slots=True)  # never changed once made; frozen ones take thrice as long to make
class Shape:
    """loose: a superset only, as the exact set would pass a limit; then whole texts need to be verified."""

    null: bool = False
    booleans: tuple[bool, ...] = ()
    numbers: NumberSet = NO_NUMBERS
    strings: StringSet = NO_STRINGS
    arrays: tuple[ArrayPiece, ...] = ()
    objects: tuple[ObjectPiece, ...] = ()
    loose: bool = False

    def is_blank(self) -> bool:
        """Nothing is left, plainly: no type has any piece."""
        return not (self.null or self.booleans or self.numbers or self.strings or self.arrays or self.objects)


NOTHING = Shape()


class TooManyAlternatives(SchemaError):
    """The exact set would pass `max_alternatives`; a superset of it can be verified instead."""


class Deadline:
    """Raises SchemaError once the compile deadline has passed."""

    def __init__(self, limits: Limits) -> None:
        self.limit_s = limits.compile_deadline_s
        self.at = monotonic() + limits.compile_deadline_s

    def check(self, pointer: str) -> None:
        if monotonic() > self.at:
            raise SchemaError(f"compiling took longer than {self.limit_s:g} s (compile_deadline_s)", pointer=pointer)


class Algebra:
    """Set operations on shapes. `pointer` names the schema position to blame when a limit is passed."""

    def __init__(self, builder: Builder, limits: Limits, deadline: Deadline | None = None) -> None:
        self.builder = builder
        self.limits = limits
        self.deadline = deadline or Deadline(limits)
        self.work = 0  # pairs of pieces that were intersected
        self.terms = TermTable()
        self.strings = Strings(builder)
        self.arrays = Arrays(self.terms)
        self.objects = Objects(self.strings, self.terms)
        self.everything = Shape(True, BOTH, ALL_NUMBERS, ALL_STRINGS, (self.arrays.anything,), (self.objects.anything,))
        self.unknown = replace(self.everything, loose=True)

    def intersect(self, a: Shape, b: Shape, pointer: str) -> Shape:
        if a is self.everything or b is self.everything:
            return b if a is self.everything else a
        return Shape(
            a.null and b.null,
            tuple(value for value in a.booleans if value in b.booleans),
            a.numbers.intersect(b.numbers) if a.numbers and b.numbers else NO_NUMBERS,
            self.strings.intersect(a.strings, b.strings) if a.strings and b.strings else NO_STRINGS,
            self._product(a.arrays, b.arrays, self.arrays.meet, pointer),
            self._product(a.objects, b.objects, self.objects.meet, pointer),
            a.loose or b.loose,
        )

    def _product(
        self, a: Sequence[Piece], b: Sequence[Piece], meet: Callable[[Piece, Piece], Piece | None], pointer: str
    ) -> tuple[Piece, ...]:
        if len(a) * len(b) > self.limits.max_alternatives:
            self._too_many(len(a) * len(b), pointer)
        self.work += len(a) * len(b)
        self.deadline.check(pointer)
        met = (meet(p, q) for p in a for q in b)
        return tuple(piece for piece in met if piece is not None)

    def union(self, shapes: Iterable[Shape], pointer: str) -> Shape:
        null, booleans, numbers, strings, loose = False, set[bool](), NO_NUMBERS, NO_STRINGS, False
        arrays: dict[ArrayPiece, None] = {}
        objects: list[ObjectPiece] = []
        for shape in shapes:
            null, loose = null or shape.null, loose or shape.loose
            booleans.update(shape.booleans)
            numbers = numbers.union(shape.numbers) if numbers else shape.numbers
            strings = self.strings.union(strings, shape.strings) if strings else shape.strings
            arrays.update(dict.fromkeys(shape.arrays))
            objects += shape.objects
        if max(len(arrays), len(objects)) > self.limits.max_alternatives:
            self._too_many(max(len(arrays), len(objects)), pointer)
        unique_objects = _distinct_objects(objects)
        both = tuple(value for value in BOTH if value in booleans)
        return Shape(null, both, numbers, strings, tuple(arrays), unique_objects, loose)

    def complement(self, shape: Shape, pointer: str) -> Shape:
        everything = self.everything
        if shape.loose:
            return self.unknown
        arrays: tuple[ArrayPiece, ...] = everything.arrays
        for array in shape.arrays:
            arrays = self._product(arrays, self.arrays.complement(array, pointer), self.arrays.meet, pointer)
        objects: tuple[ObjectPiece, ...] = everything.objects
        for piece in shape.objects:
            met = self._product(objects, self.objects.complement(piece, pointer), self.objects.meet, pointer)
            objects = self.objects.without_absorbed(met) if len(met) > 2 else met
        return Shape(
            not shape.null,
            tuple(value for value in BOTH if value not in shape.booleans),
            shape.numbers.complement() if shape.numbers else ALL_NUMBERS,
            self.strings.complement(shape.strings) if shape.strings else ALL_STRINGS,
            arrays,
            objects,
        )

    def _too_many(self, count: int, pointer: str) -> None:
        raise TooManyAlternatives(
            f"its alternatives multiply out to {count:,}, more than {self.limits.max_alternatives:,} "
            "(max_alternatives)",
            pointer=pointer,
            hint="Raise Limits(max_alternatives=...) or split the schema.",
        )


def _distinct_objects(pieces: list[ObjectPiece]) -> tuple[ObjectPiece, ...]:
    seen: dict[object, ObjectPiece] = {}
    for piece in pieces:
        key = (tuple(piece.names.items()), piece.classes, piece.required, piece.low, piece.high, piece.some, piece.seen)
        seen.setdefault(key, piece)
    return tuple(seen.values())
