"""From schema positions to canonical shapes: what every keyword means.

`shape(term)` works a term out one level deep: in-place applicators (allOf, anyOf, oneOf, not, if, $ref, dependent*)
are multiplied out, while items and members stay terms. Keywords speak about their own type only, so one object's
assertions give one piece a type. The order of keywords in the schema is followed, which makes the order of names that
of first appearance, depth first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from safegen.errors import SchemaError
from safegen.grammars.json_schema.arrays import ArrayPiece
from safegen.grammars.json_schema.assertions import Assertions, Here
from safegen.grammars.json_schema.canonical import NOTHING, Algebra, Shape, TooManyAlternatives
from safegen.grammars.json_schema.dialects import Dialect, view
from safegen.grammars.json_schema.documents import Document, SchemaValue
from safegen.grammars.json_schema.emptiness import Emptiness
from safegen.grammars.json_schema.loader import escape_token
from safegen.grammars.json_schema.numbers import NumberSet
from safegen.grammars.json_schema.strings import NO_STRINGS
from safegen.grammars.json_schema.terms import Position, Term, TermKind
from safegen.grammars.options import Limits, SchemaOptions

_MAX_COMPARED = 1024  # alternatives of one term that are compared with one another


class Reader:
    def __init__(self, document: Document, algebra: Algebra, options: SchemaOptions, limits: Limits) -> None:
        self.document = document
        self.algebra = algebra
        self.terms = algebra.terms
        self.limits = limits
        self.keeps_order = options.property_order == "schema"
        self.assertions = Assertions(document, algebra, options, limits, self.shape)
        self.emptiness = Emptiness(algebra, self.shape)
        self._shapes: dict[Term, Shape] = {self.terms.true: algebra.everything, self.terms.false: NOTHING}
        self._open: dict[Term, None] = {}
        self._by_type: dict[tuple[str | tuple[str, ...], bool], Shape] = {}
        self.loose_at: dict[str, None] = {}  # places whose exact set would pass max_alternatives
        self._applicators: dict[str, Callable[[Here, Any], Shape]] = {
            "$ref": self._reference,
            "$dynamicRef": self._reference,
            "$recursiveRef": self._reference,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "not": self._not,
            "if": self._condition,
            "enum": lambda here, values: self.assertions.values(values, here.at("enum")),
            "const": lambda here, value: self.assertions.values([value], here.at("const")),
            "dependentRequired": self._dependent_required,
            "dependentSchemas": self._dependent_schemas,
        }

    def root(self) -> Term:
        return self.assertions.term(self.document.root, "", self.document.root_base)

    # Terms.

    def shape(self, term: Term) -> Shape:
        """The canonical shape of a term, one level deep. Raises SchemaError."""
        known = self._shapes.get(term)
        if known is not None:
            return known
        if term in self._open:
            raise SchemaError(
                "the schema refers to itself without going into an item or a property", pointer=term.pointer
            )
        if len(self._open) >= self.limits.max_inline_depth:
            raise SchemaError(
                f"more than {self.limits.max_inline_depth} schemas are applied inside each other (max_inline_depth)",
                pointer=term.pointer,
            )
        self._open[term] = None
        try:
            shape = self._work_out(term)
        finally:
            del self._open[term]
        self._shapes[term] = shape
        return shape

    def _work_out(self, term: Term) -> Shape:
        algebra = self.algebra
        match term.kind:
            case TermKind.POSITION:
                assert term.position is not None
                return self._read(term.position)
            case TermKind.VALUE:
                return self.assertions.values([term.value], term.pointer)
            case TermKind.ALL_OF:
                shape = algebra.everything
                for part in term.parts:
                    shape = self._meet(shape, self.shape(part), term.pointer)
                return shape
            case TermKind.ANY_OF:
                return self._union([self.shape(part) for part in term.parts], term.pointer)
            case _:
                return self._negated(self.shape(term.parts[0]), term.pointer)

    # Positions.

    def _read(self, position: Position) -> Shape:
        schema = position.schema
        assert isinstance(schema, dict)
        dialect = self.document.dialect(position.base.uri)
        constraining = schema.keys() & dialect.constraining
        if "$ref" in constraining and (len(constraining) == 1 or not dialect.ref_siblings):
            target = self.document.resolve(schema["$ref"], position.base, position.pointer, "$ref")
            return self.shape(self.terms.position(*target))
        if len(constraining) == 1 and "type" in constraining:
            return self._of_type(schema["type"], position, dialect)
        mapped = view(schema, dialect)
        words = mapped.keywords
        asserted = self.assertions.read(Here(mapped, position, self.algebra.everything))
        here = Here(mapped, position, asserted)
        # The object's own assertions stand where `properties` stands: that is what decides the order of names.
        parts: list[Shape] = [] if "properties" in words else [asserted]
        for word, value in words.items():
            applicator = self._applicators.get(word)
            if applicator is not None:
                parts.append(applicator(here, value))
            elif word == "properties":
                parts.append(asserted)
        shape = parts[0]
        for part in parts[1:]:
            shape = self._meet(shape, part, position.pointer)
        if self.document.tracks_evaluation and not shape.loose:
            shape = self._unevaluated(here, shape)
        return shape

    def _of_type(self, types: str | list[str], position: Position, dialect: Dialect) -> Shape:
        """What says no more than a type has one shape, wherever it stands."""
        key = types if isinstance(types, str) else tuple(types), dialect.integers_by_text
        shape = self._by_type.get(key)
        if shape is None:
            here = Here(view({"type": types}, dialect), position, self.algebra.everything)
            shape = self._by_type[key] = self.assertions.read(here)
        return shape

    def _meet(self, a: Shape, b: Shape, pointer: str) -> Shape:
        """Intersection; where alternatives multiply, those that are proved empty or held by another one are dropped at
        once. Past the limit, a alone, marked as a superset."""
        try:
            met = self.algebra.intersect(a, b, pointer)
        except TooManyAlternatives:
            return self._loosely(a, pointer)
        multiplied = len(met.objects) > max(len(a.objects), len(b.objects)) or len(met.arrays) > max(
            len(a.arrays), len(b.arrays)
        )
        return self._without_absorbed(self.emptiness.pruned(met)) if multiplied else met

    def _without_absorbed(self, shape: Shape) -> Shape:
        if not 1 < len(shape.objects) <= _MAX_COMPARED:
            return shape
        objects = self.algebra.objects.without_absorbed(shape.objects, keep_order=self.keeps_order)
        return replace(shape, objects=objects)

    def _loosely(self, shape: Shape, place: str) -> Shape:
        self.loose_at[place] = None
        return replace(shape, loose=True)

    def _union(self, shapes: list[Shape], place: str) -> Shape:
        try:
            return self.algebra.union(shapes, place)
        except TooManyAlternatives:
            return self._loosely(self.algebra.everything, place)

    # In-place applicators.

    def _reference(self, here: Here, reference: str) -> Shape:
        words, document = here.words.keywords, self.document
        word = next(word for word in ("$ref", "$dynamicRef", "$recursiveRef") if words.get(word) is reference)
        target = document.resolve(reference, here.position.base, here.position.pointer, word)
        if word != "$ref":
            target = document.resolve_dynamically(reference, target, here.position.base)
        return self.shape(self.terms.position(*target))

    def _branches(self, here: Here, word: str) -> list[Shape]:
        place, base = here.at(word), here.position.base
        schemas = here.words.keywords[word]
        return [self.shape(self.assertions.term(schema, f"{place}/{i}", base)) for i, schema in enumerate(schemas)]

    def _all_of(self, here: Here, schemas: list[SchemaValue]) -> Shape:
        shape = self.algebra.everything
        for branch in self._branches(here, "allOf"):
            shape = self._meet(shape, branch, here.at("allOf"))
        return shape

    def _any_of(self, here: Here, schemas: list[SchemaValue]) -> Shape:
        branches, place = self._branches(here, "anyOf"), here.at("anyOf")
        if not self.document.tracks_evaluation:
            return self._union(branches, place)
        # Every branch that holds adds what it evaluated, so each set of branches is an alternative of its own.
        together: list[Shape] = []
        for branch in branches:
            met = (self.algebra.intersect(shape, branch, place) for shape in together)
            together += [*(shape for shape in met if not shape.is_blank()), branch]
            if len(together) > self.limits.max_alternatives:
                raise here.error("its branches combine in too many ways (max_alternatives)", "anyOf")
        return self.algebra.union(together, place)

    def _one_of(self, here: Here, schemas: list[SchemaValue]) -> Shape:
        algebra, place = self.algebra, here.at("oneOf")
        branches = self._branches(here, "oneOf")
        if len(branches) == 1:
            return branches[0]
        # The schema's own assertions hold as well, so only an overlap within them counts.
        before = algebra.work
        within = [self._meet(here.asserted, branch, place) for branch in branches]
        exclusive = []
        for i, branch in enumerate(branches):
            for j, other in enumerate(branches):
                if i != j and not self.emptiness.disjoint(within[i], within[j], place):
                    branch = self._meet(branch, self._negated(other, f"{place}/{j}"), place)
                if branch.loose or algebra.work - before > self.limits.max_alternatives:
                    return self._loosely(self._union(branches, place), place)
            exclusive.append(self.emptiness.pruned(branch))
        return self._union(exclusive, place)

    def _negated(self, shape: Shape, pointer: str) -> Shape:
        try:
            return self.algebra.complement(shape, pointer)
        except TooManyAlternatives:
            return self._loosely(self.algebra.everything, pointer)

    def _not(self, here: Here, schema: SchemaValue) -> Shape:
        place = here.at("not")
        return self._negated(self.shape(self.assertions.term(schema, place, here.position.base)), place)

    def _condition(self, here: Here, schema: SchemaValue) -> Shape:
        words, base, algebra = here.words.keywords, here.position.base, self.algebra
        if "then" not in words and "else" not in words and not self.document.tracks_evaluation:
            return algebra.everything
        place = here.at("if")
        holds = self.shape(self.assertions.term(schema, place, base))
        fails = self._negated(holds, place)
        for word in ("then", "else"):
            if word in words:
                branch = self.shape(self.assertions.term(words[word], here.at(word), base))
                if word == "then":
                    holds = self._meet(holds, branch, here.at(word))
                else:
                    fails = self._meet(fails, branch, here.at(word))
        return self._union([self.emptiness.pruned(holds), self.emptiness.pruned(fails)], place)

    def _without_name(self, name: str) -> Shape:
        piece = replace(self.algebra.objects.anything, names={name: self.terms.false})
        return replace(self.algebra.everything, objects=(piece,))

    def _with_names(self, names: list[str]) -> Shape:
        piece = replace(self.algebra.objects.anything, required=tuple(dict.fromkeys(names)))
        return replace(self.algebra.everything, objects=(piece,))

    def _named(self, here: Here, name: str) -> list[str]:
        """What a branch for objects that have the name must ask for. Without the name any object will do, so it need
        not ask for it, which leaves fewer alternatives: but for the place of the name, and for what is evaluated."""
        is_placed = not self.keeps_order or name in here.words.keywords.get("properties", ())
        return [] if is_placed and not self.document.tracks_evaluation else [name]

    def _dependent_required(self, here: Here, needs: dict[str, list[str]]) -> Shape:
        shape, place = self.algebra.everything, here.at("dependentRequired")
        for name, needed in needs.items():
            if needed:
                present = self._with_names([*self._named(here, name), *needed])
                either = self.algebra.union([self._without_name(name), present], place)
                shape = self._meet(shape, either, place)
        return shape

    def _dependent_schemas(self, here: Here, schemas: dict[str, SchemaValue]) -> Shape:
        algebra, shape, place = self.algebra, self.algebra.everything, here.at("dependentSchemas")
        for name, schema in schemas.items():
            branch = self.shape(self.assertions.term(schema, f"{place}/{escape_token(name)}", here.position.base))
            with_name = self._with_names(self._named(here, name))
            only_object = replace(
                with_name, null=False, booleans=(), numbers=NumberSet(), strings=NO_STRINGS, arrays=()
            )
            present = algebra.intersect(only_object, branch, place)
            either = algebra.union([self._without_name(name), present], place)
            shape = self._meet(shape, either, place)
        return shape

    # Unevaluated.

    def _unevaluated(self, here: Here, shape: Shape) -> Shape:
        words, base, algebra = here.words.keywords, here.position.base, self.algebra
        if "unevaluatedProperties" in words:
            term = self.assertions.term(words["unevaluatedProperties"], here.at("unevaluatedProperties"), base)
            applied = (algebra.objects.with_seen(piece, term) for piece in shape.objects)
            shape = replace(shape, objects=tuple(piece for piece in applied if piece is not None))
        if "unevaluatedItems" in words:
            term = self.assertions.term(words["unevaluatedItems"], here.at("unevaluatedItems"), base)
            arrays = []
            for piece in shape.arrays:
                if piece.seen is not None:
                    rest = self.terms.any_of([term, *piece.seen_by])
                    met = algebra.arrays.meet(piece, ArrayPiece(rest, (self.terms.true,) * piece.seen))
                    if met is None:
                        continue
                    piece = met
                arrays.append(replace(piece, seen=None))
            shape = replace(shape, arrays=tuple(arrays))
        return shape
