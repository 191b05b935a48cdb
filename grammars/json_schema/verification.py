"""Predicates over whole texts, for terms whose exact set passes a limit.

The original schema is evaluated as a boolean formula: every part that compiles exactly by itself is a program of its
own (any spelling, any order, any whitespace up to the limit), and allOf, anyOf, oneOf, not and if are the connectives.
A schema that contains itself below such a place cannot be written so and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safegen._native import Predicate, Program
from safegen.errors import SchemaError
from safegen.grammars.json_schema.dialects import view
from safegen.grammars.json_schema.documents import Document, SchemaValue
from safegen.grammars.json_schema.terms import Base, Position, Term, TermKind

_APPLICATORS = frozenset(
    (
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef"),
        *("dependentSchemas", "dependentRequired", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    )
)
Key = tuple[int, Base]


class NotExact(Exception):
    """A term has no exact program by itself."""


class Verification:
    """compile_exactly: the program of one schema position, or NotExact."""

    def __init__(self, document: Document, compile_exactly: Callable[[Position], Program]) -> None:
        self.document = document
        self.compile_exactly = compile_exactly
        self._known: dict[Key, Predicate] = {}
        self._open: set[Key] = set()
        self._kept: list[SchemaValue] = []  # schemas made here live as long as their ids are keys

    def predicate(self, term: Term) -> Predicate:
        """Whether a text is one of the term's. Raises SchemaError."""
        match term.kind:
            case TermKind.POSITION:
                assert term.position is not None
                position = term.position
                return self._position(position.schema, position.pointer, position.base)
            case TermKind.VALUE:
                return self._made({"const": term.value}, term.pointer, self.document.root_base)
            case TermKind.TRUE | TermKind.ALL_OF:
                return Predicate.all_of([self.predicate(part) for part in term.parts])
            case TermKind.FALSE | TermKind.ANY_OF:
                return Predicate.any_of([self.predicate(part) for part in term.parts])
            case TermKind.NOT:
                return Predicate.none_of(self.predicate(term.parts[0]))

    def _made(self, schema: dict[str, Any], pointer: str, base: Base) -> Predicate:
        self._kept.append(schema)
        return self._position(schema, pointer, base)

    def _position(self, schema: SchemaValue, pointer: str, base: Base) -> Predicate:
        if isinstance(schema, bool):
            return Predicate.all_of([]) if schema else Predicate.any_of([])
        base = self.document.enter(schema, base)
        key = (id(schema), base)
        known = self._known.get(key)
        if known is not None:
            return known
        if key in self._open:
            raise SchemaError("a schema that passes max_alternatives contains itself", pointer=pointer)
        self._open.add(key)
        try:
            try:
                predicate = Predicate.matches(self.compile_exactly(Position(schema, pointer, base)))
            except NotExact:
                predicate = self._formula(schema, pointer, base)
        finally:
            self._open.discard(key)
        self._known[key] = predicate
        return predicate

    def _formula(self, schema: dict[str, Any], pointer: str, base: Base) -> Predicate:
        words = view(schema, self.document.dialect(base.uri)).keywords
        asks = next((word for word in words if word.startswith("unevaluated")), None)
        if self.document.tracks_evaluation and asks is not None:
            raise SchemaError("what was evaluated is beyond max_alternatives", pointer=pointer, keyword=asks)
        applied = [word for word in words if word in _APPLICATORS]
        if not applied:
            raise SchemaError("its own keywords pass a limit (max_alternatives)", pointer=pointer)
        parts = []
        if applied != list(words):
            own = schema if "$ref" not in words or len(words) > 1 else {}
            kept = {word: value for word, value in own.items() if word not in _APPLICATORS}
            parts.append(self._made(kept, pointer, base))
        for word in applied:
            parts += self._applied(word, words, pointer, base)
        return Predicate.all_of(parts)

    def _applied(self, word: str, words: Any, pointer: str, base: Base) -> list[Predicate]:
        def inner(name: str) -> Predicate:
            return self._position(words[name], f"{pointer}/{name}", base) if name in words else Predicate.all_of([])

        value = words[word]
        if word in ("allOf", "anyOf", "oneOf"):
            connect = {"allOf": Predicate.all_of, "anyOf": Predicate.any_of, "oneOf": Predicate.exactly_one_of}[word]
            return [connect([self._position(part, f"{pointer}/{word}/{i}", base) for i, part in enumerate(value)])]
        if word == "not":
            return [Predicate.none_of(inner("not"))]
        if word == "if":
            holds = inner("if")
            then = Predicate.all_of([holds, inner("then")])
            return [Predicate.any_of([then, Predicate.all_of([Predicate.none_of(holds), inner("else")])])]
        if word in ("dependentSchemas", "dependentRequired"):
            return [self._dependency(name, need, pointer, base) for name, need in value.items()]
        if word == "$ref":
            return [self._position(*self.document.resolve(value, base, pointer, word))]
        if word in ("then", "else"):
            return []
        raise SchemaError(f"{word} cannot be verified", pointer=pointer, keyword=word)

    def _dependency(self, name: str, need: Any, pointer: str, base: Base) -> Predicate:
        absent = Predicate.none_of(self._made({"type": "object", "required": [name]}, pointer, base))
        if isinstance(need, list):
            return Predicate.any_of([absent, self._made({"required": need}, pointer, base)])
        return Predicate.any_of([absent, self._position(need, pointer, base)])
