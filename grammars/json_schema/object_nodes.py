"""Object pieces to nodes: listed names in their order, further keys by class, and conditions that some key must meet.

A condition ("some key of a language has a value of a term") splits the classes of keys by its language; a key of it may
then have any value, or one of the term, which meets the condition. The machine counts what is met and keeps room, and
keys, for what is not. More conditions than it can hold are left to verification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

from safegen._native import Builder
from safegen.grammars.json_schema.objects import ObjectPiece, Objects, Some
from safegen.grammars.json_schema.strings import encodable
from safegen.grammars.json_schema.terms import Term

MAX_CONDITIONS = 4
Cell = tuple[int, Term, tuple[int, ...]]  # language of keys, term of their values, conditions that they may meet


class ObjectNodes:
    """node_of: a term's node, None when plainly empty."""

    def __init__(self, builder: Builder, objects: Objects, node_of: Callable[[Term], int | None]) -> None:
        self.builder = builder
        self.objects = objects
        self.node_of = node_of

    def held(self, piece: ObjectPiece) -> tuple[ObjectPiece, list[Some]]:
        """The piece with the conditions that the machine can hold, and the others."""
        return replace(piece, some=piece.some[:MAX_CONDITIONS]), list(piece.some[MAX_CONDITIONS:])

    def _classes(self, piece: ObjectPiece) -> list[tuple[int, Term]]:
        """The classes of keys; where there are conditions, those of one term together."""
        if not piece.some:
            return list(piece.classes)
        by_term: dict[Term, list[int]] = {}
        for keys, term in piece.classes:
            by_term.setdefault(term, []).append(keys)
        return [(self.builder.alternate(keys), term) for term, keys in by_term.items()]

    def node(self, piece: ObjectPiece) -> int:
        """The node of a piece whose conditions are all held."""
        required = frozenset(piece.required)
        properties: list[tuple[bytes, int | None, bool]] = []
        names = dict.fromkeys((*piece.names, *piece.required))
        # A name that only `required` lists comes after all that have a schema.
        for name in names:
            if encodable(name):
                term = piece.names.get(name) or self.objects.class_term(piece.classes, name)
                properties.append((name.encode(), self.node_of(term), name in required))
        extras: list[tuple[int, int]] = []
        meets: list[int] = []
        for keys, term, conditions in self._cells(piece):
            for node, bits in self._choices(piece, term, conditions).items():
                extras.append((keys, node))
                meets.append(bits)
        return self.builder.object(properties, extras, piece.low, piece.high, meets=meets, conditions=len(piece.some))

    def _cells(self, piece: ObjectPiece) -> list[Cell]:
        builder = self.builder
        cells: list[Cell] = [(keys, term, ()) for keys, term in self._classes(piece)]
        for index, entry in enumerate(piece.some):
            others = builder.complement(entry.keys)
            parted: list[Cell] = []
            for keys, term, conditions in cells:
                inside = builder.intersect([keys, entry.keys])
                outside = builder.intersect([keys, others])
                if not builder.is_empty(inside):
                    parted.append((inside, term, (*conditions, index)))
                if not builder.is_empty(outside):
                    parted.append((outside, term, conditions))
            cells = parted
        return cells

    def _choices(self, piece: ObjectPiece, term: Term, conditions: tuple[int, ...]) -> dict[int, int]:
        """Value nodes, with the bits of the conditions that such a value meets."""
        choices: dict[int, int] = {}
        for size in range(len(conditions) + 1):
            for met in combinations(conditions, size):
                wanted = self.objects.terms.all_of([term, *(piece.some[index].term for index in met)])
                node = self.node_of(wanted)
                if node is not None:
                    choices[node] = choices.get(node, 0) | sum(1 << index for index in met)
        return choices
