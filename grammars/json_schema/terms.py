"""Terms: boolean combinations of schema positions and constant values, interned.

A term stands for a set of JSON values that has not been worked out yet. Item and property schemas stay terms until
they are lowered, which is what makes recursive schemas finite: meeting two recursive schemas gives terms over the
same few positions, and equal terms are one object.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from safegen.grammars.json_schema.loader import JsonValue


class TermKind(Enum):
    TRUE = "true"
    FALSE = "false"
    POSITION = "position"
    VALUE = "value"
    ALL_OF = "all of"
    ANY_OF = "any of"
    NOT = "not"


class Base(NamedTuple):
    """What references resolve against. uri: of the resource at hand. scope: the resources with dynamic anchors that
    evaluation came through, outermost first."""

    uri: str
    scope: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Position:
    """A place in a schema document."""

    schema: dict[str, Any] | bool
    pointer: str
    base: Base


@dataclass(eq=False, slots=True)
class Term:
    """Compared by identity: the table interns."""

    kind: TermKind
    pointer: str
    parts: tuple[Term, ...] = ()
    position: Position | None = None
    value: JsonValue = None


class TermTable:
    """Makes terms, simplified and interned."""

    def __init__(self) -> None:
        self.true = Term(TermKind.TRUE, "")
        self.false = Term(TermKind.FALSE, "")
        self._positions: dict[tuple[int, Base], Term] = {}
        self._values: dict[object, Term] = {}
        self._combined: dict[tuple[TermKind, tuple[int, ...]], Term] = {}

    def position(self, schema: dict[str, Any] | bool, pointer: str, base: Base) -> Term:
        if schema is True or schema == {}:
            return self.true
        if schema is False:
            return self.false
        key = (id(schema), base)
        term = self._positions.get(key)
        if term is None:
            position = Position(schema, pointer, base)
            term = self._positions[key] = Term(TermKind.POSITION, pointer, position=position)
        return term

    def value(self, value: JsonValue, pointer: str) -> Term:
        key = value_key(value)
        term = self._values.get(key)
        if term is None:
            term = self._values[key] = Term(TermKind.VALUE, pointer, value=value)
        return term

    def all_of(self, terms: list[Term]) -> Term:
        return self._combine(TermKind.ALL_OF, terms, neutral=self.true, absorbing=self.false)

    def any_of(self, terms: list[Term]) -> Term:
        return self._combine(TermKind.ANY_OF, terms, neutral=self.false, absorbing=self.true)

    def negate(self, term: Term) -> Term:
        if term is self.true:
            return self.false
        if term is self.false:
            return self.true
        if term.kind is TermKind.NOT:
            return term.parts[0]
        return self._intern(TermKind.NOT, (term,))

    def _combine(self, kind: TermKind, terms: list[Term], *, neutral: Term, absorbing: Term) -> Term:
        flat: dict[Term, None] = {}
        for term in terms:
            if term is absorbing:
                return absorbing
            if term.kind is kind:
                flat.update(dict.fromkeys(term.parts))
            elif term is not neutral:
                flat[term] = None
        if not flat:
            return neutral
        parts = tuple(flat)
        return parts[0] if len(parts) == 1 else self._intern(kind, parts)

    def _intern(self, kind: TermKind, parts: tuple[Term, ...]) -> Term:
        key = (kind, tuple(map(id, parts)))
        term = self._combined.get(key)
        if term is None:
            term = self._combined[key] = Term(kind, parts[0].pointer, parts)
        return term


def value_key(value: JsonValue) -> object:
    """A hashable that is equal exactly for equal JSON values: 1 is 1.0, key order does not matter, 1 is not true."""
    if isinstance(value, bool) or value is None:
        return (value.__class__, value)
    if isinstance(value, list):
        return ("array", tuple(map(value_key, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, value_key(member)) for name, member in value.items()))
    return value
