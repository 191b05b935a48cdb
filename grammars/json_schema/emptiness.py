"""Proofs that shapes are empty or disjoint, on the canonical form alone.

Used where a proof makes a normal form smaller (oneOf between tagged objects, conditions); a proof that is not found
costs size, never exactness. Terms are looked into a few levels deep; a term that is being looked at counts as
inhabited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from safegen.errors import SchemaError
from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.canonical import Algebra, Shape
from safegen.grammars.json_schema.objects import ObjectPiece
from safegen.grammars.json_schema.terms import Term

_LEVELS = 4


class Emptiness:
    def __init__(self, algebra: Algebra, shape_of: Callable[[Term], Shape]) -> None:
        self.algebra = algebra
        self.shape_of = shape_of
        self._terms: dict[Term, bool] = {}
        self._tags: dict[Term, frozenset[object] | None] = {}

    def disjoint(self, a: Shape, b: Shape, pointer: str) -> bool:
        """No value is proved to belong to both."""
        if (a.null and b.null) or any(value in b.booleans for value in a.booleans):
            return False
        if a.numbers and b.numbers and a.numbers.intersect(b.numbers):
            return False
        strings = self.algebra.strings
        if a.strings and b.strings and not strings.is_empty(strings.intersect(a.strings, b.strings)):
            return False
        for array in a.arrays:
            for other_array in b.arrays:
                met_array = self.algebra.arrays.meet(array, other_array)
                if met_array is not None and not self._array_is_empty(met_array, _LEVELS):
                    return False
        self.algebra.deadline.check(pointer)
        return all(self._objects_disjoint(p, q) for p in a.objects for q in b.objects)

    def _objects_disjoint(self, p: ObjectPiece, q: ObjectPiece) -> bool:
        for name in p.required:
            mine, theirs = p.names.get(name), q.names.get(name)
            if mine is not None and theirs is not None:
                tags, other_tags = self._tags_of(mine), self._tags_of(theirs)
                if tags is not None and other_tags is not None and tags.isdisjoint(other_tags):
                    return True
        met = self.algebra.objects.meet(p, q)
        return met is None or self._object_is_empty(met, _LEVELS)

    def _tags_of(self, term: Term) -> frozenset[object] | None:
        """The strings of a term that is a list of strings, else None."""
        if term not in self._tags:
            tags: frozenset[object] | None = None
            try:
                shape = self.shape_of(term)
            except SchemaError:
                shape = self.algebra.everything
            others = shape.null or shape.booleans or shape.numbers or shape.arrays or shape.objects
            if not others and not shape.strings.pieces:
                tags = frozenset(shape.strings.listed)
            self._tags[term] = tags
        return self._tags[term]

    def pruned(self, shape: Shape) -> Shape:
        """The same set without the pieces that are proved to be empty."""
        strings = self.algebra.strings
        kept = tuple(piece for piece in shape.strings.pieces if not strings.piece_is_empty(piece))
        return replace(
            shape,
            strings=replace(shape.strings, pieces=kept),
            arrays=tuple(piece for piece in shape.arrays if not self._array_is_empty(piece, _LEVELS)),
            objects=tuple(piece for piece in shape.objects if not self._object_is_empty(piece, _LEVELS)),
        )

    def term_is_empty(self, term: Term, levels: int = _LEVELS) -> bool:
        known = self._terms.get(term)
        if known is not None:
            return known
        if levels == 0:
            return False
        self._terms[term] = False
        try:
            empty = self._shape_is_empty(self.shape_of(term), levels - 1)
        except SchemaError:  # told when the term is lowered, if it ever is
            empty = False
        if levels == _LEVELS or empty:
            self._terms[term] = empty
        else:
            del self._terms[term]
        return empty

    def _shape_is_empty(self, shape: Shape, levels: int) -> bool:
        if shape.null or shape.booleans or shape.numbers:
            return False
        return (
            self.algebra.strings.is_empty(shape.strings)
            and all(self._array_is_empty(piece, levels) for piece in shape.arrays)
            and all(self._object_is_empty(piece, levels) for piece in shape.objects)
        )

    def _array_is_empty(self, piece: ArrayPiece, levels: int) -> bool:
        places = min(piece.low, len(piece.prefix) + 1)
        return any(self.term_is_empty(piece.item(place), levels) for place in range(places))

    def _object_is_empty(self, piece: ObjectPiece, levels: int) -> bool:
        objects = self.algebra.objects
        return any(self.term_is_empty(objects.value_term(piece, name), levels) for name in piece.required)
