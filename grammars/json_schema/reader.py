"""From schema positions to canonical shapes: what every keyword means.

`shape(term)` works a term out one level deep: in-place applicators (allOf, anyOf, oneOf, not, if, $ref, dependent*)
are multiplied out, while items and members stay terms. Keywords speak about their own type only, so one object's
assertions give one piece a type. The order of keywords in the schema is followed, which makes the order of names that
of first appearance, depth first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from safegen.errors import GrammarError, SchemaError
from safegen.grammars.json_schema import formats
from safegen.grammars.json_schema.arrays import ArrayPiece, Contains
from safegen.grammars.json_schema.canonical import BOTH, NOTHING, Algebra, Shape
from safegen.grammars.json_schema.dialects import View, view
from safegen.grammars.json_schema.documents import Document, SchemaValue
from safegen.grammars.json_schema.emptiness import Emptiness
from safegen.grammars.json_schema.loader import JsonValue, escape_token
from safegen.grammars.json_schema.numbers import ALL_NUMBERS, Number, NumberPiece, NumberSet, common_multiple
from safegen.grammars.json_schema.objects import KeyClasses, ObjectPiece, Seen
from safegen.grammars.json_schema.strings import ALL_STRINGS, NO_STRINGS, StringPiece, StringSet, encodable
from safegen.grammars.json_schema.terms import Position, Term, TermKind
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex

ALL_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_NUMBER_WORDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_STRING_WORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
_ARRAY_WORDS = frozenset(("prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"))
_OBJECT_WORDS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames"),
    )
)


@dataclass(frozen=True, slots=True)
class Here:
    """A schema object in 2020-12 words, with where it lies. asserted: what its own assertions allow, which holds
    beside all its applicators."""

    words: View
    position: Position
    asserted: Shape

    def at(self, word: str) -> str:
        return f"{self.position.pointer}/{self.words.place(word)}"

    def error(self, message: str, word: str, hint: str | None = None) -> SchemaError:
        return SchemaError(message, pointer=self.position.pointer, keyword=self.words.place(word), hint=hint)


class Reader:
    def __init__(self, document: Document, algebra: Algebra, options: SchemaOptions, limits: Limits) -> None:
        self.document = document
        self.algebra = algebra
        self.terms = algebra.terms
        self.options = options
        self.limits = limits
        self.regex = RegexLowering(algebra.builder)
        self.emptiness = Emptiness(algebra, self.shape)
        self._shapes: dict[Term, Shape] = {self.terms.true: algebra.everything, self.terms.false: NOTHING}
        self._open: dict[Term, None] = {}
        self._formats: dict[str, int] = {}
        self._patterns: dict[str, int] = {}
        self._applicators: dict[str, Callable[[Here, Any], Shape]] = {
            "$ref": self._reference,
            "$dynamicRef": self._reference,
            "$recursiveRef": self._reference,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "not": self._not,
            "if": self._condition,
            "enum": self._enum,
            "const": self._const,
            "dependentRequired": self._dependent_required,
            "dependentSchemas": self._dependent_schemas,
        }

    def root(self) -> Term:
        return self.term(self.document.root, "", "")

    def term(self, schema: SchemaValue, pointer: str, base_uri: str) -> Term:
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            base_uri = self.document.base_of(schema, base_uri)
        return self.terms.position(schema, pointer, base_uri)

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
                return self._values([term.value], term.pointer)
            case TermKind.ALL_OF:
                shape = algebra.everything
                for part in term.parts:
                    shape = self._meet(shape, self.shape(part), term.pointer)
                return shape
            case TermKind.ANY_OF:
                return algebra.union([self.shape(part) for part in term.parts], term.pointer)
            case _:
                return algebra.complement(self.shape(term.parts[0]), term.pointer)

    # Positions.

    def _read(self, position: Position) -> Shape:
        schema = position.schema
        assert isinstance(schema, dict)
        mapped = view(schema, self.document.dialect(position.base_uri))
        words = mapped.keywords
        asserted = self._assertions(Here(mapped, position, self.algebra.everything))
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
        if self.document.tracks_evaluation:
            shape = self._unevaluated(here, shape)
        return shape

    def _assertions(self, here: Here) -> Shape:
        words = here.words.keywords
        named = words.get("type")
        types = ALL_TYPES if named is None else frozenset((named,) if isinstance(named, str) else named)
        present = words.keys()
        everything = self.algebra.everything
        if named is None and not present & (_NUMBER_WORDS | _STRING_WORDS | _ARRAY_WORDS | _OBJECT_WORDS):
            return everything
        numbers, strings, arrays, objects = NumberSet(), NO_STRINGS, everything.arrays, everything.objects
        if "number" in types or "integer" in types:
            numbers = self._numbers(here, types) if "number" not in types or present & _NUMBER_WORDS else ALL_NUMBERS
        if "string" in types:
            strings = self._strings(here) if present & _STRING_WORDS else ALL_STRINGS
        if "array" not in types:
            arrays = ()
        elif present & _ARRAY_WORDS:
            arrays = self._arrays(here)
        if "object" not in types:
            objects = ()
        elif present & _OBJECT_WORDS:
            objects = self._objects(here)
        return Shape("null" in types, BOTH if "boolean" in types else (), numbers, strings, arrays, objects)

    def _numbers(self, here: Here, types: frozenset[str]) -> NumberSet:
        words = here.words.keywords
        only_integers = "number" not in types
        divisor = Fraction(1) if only_integers else None
        if "multipleOf" in words:
            wanted = Fraction(words["multipleOf"])
            divisor = wanted if divisor is None else common_multiple(divisor, wanted)
        piece = NumberPiece(words.get("minimum"), False, words.get("maximum"), False, divisor, only_integers)
        if "exclusiveMinimum" in words:
            piece = piece.intersect(NumberPiece(low=words["exclusiveMinimum"], low_exclusive=True))
        if "exclusiveMaximum" in words:
            piece = piece.intersect(NumberPiece(high=words["exclusiveMaximum"], high_exclusive=True))
        return NumberSet() if piece.is_empty() else NumberSet(pieces=(piece,))

    def _strings(self, here: Here) -> StringSet:
        words = here.words.keywords
        low, high = words.get("minLength", 0), words.get("maxLength")
        if high is not None and high < low:
            return NO_STRINGS
        exprs = []
        if "pattern" in words:
            exprs.append(self.pattern(here, words["pattern"], "pattern"))
        if "format" in words and self.options.formats != "annotation":
            language = self._format(here, words["format"])
            if language is not None:
                exprs.append(language)
        return StringSet(pieces=(StringPiece(low, high, frozenset(exprs)),))

    def pattern(self, here: Here, text: str, word: str) -> int:
        """The language of a pattern, which is a search."""
        expr = self._patterns.get(text)
        if expr is None:
            limits = self.limits
            try:
                tree = parse_regex(
                    text,
                    max_depth=limits.max_depth,
                    max_chars=limits.max_pattern_chars,
                    max_count=limits.max_count_product,
                )
                expr = self._patterns[text] = self.regex.search(tree)
            except GrammarError as error:
                raise here.error(error.reason, word) from None
        return expr

    def _format(self, here: Here, name: str) -> int | None:
        if name not in formats.KNOWN:
            if self.options.formats == "known":
                return None
            raise here.error(
                f"the format {name!r} is not known",
                "format",
                'Use formats="known" to take unknown ones as annotations.',
            )
        if name not in self._formats:
            self._formats[name] = formats.format_expr(name, self.regex)
        return self._formats[name]

    def _arrays(self, here: Here) -> tuple[ArrayPiece, ...]:
        words, base = here.words.keywords, here.position.base_uri
        prefix_place, items_place = here.at("prefixItems"), here.at("items")
        prefix = tuple(
            self.term(item, f"{prefix_place}/{index}", base) for index, item in enumerate(words.get("prefixItems", ()))
        )
        rest = self.term(words["items"], items_place, base) if "items" in words else self.terms.true
        contains: tuple[Contains, ...] = ()
        if "contains" in words:
            term = self.term(words["contains"], here.at("contains"), base)
            low, high = words.get("minContains", 1), words.get("maxContains")
            contains = (Contains(0, term, low, high, here.position.pointer),)
        unique = here.position.pointer if words.get("uniqueItems") is True else None
        piece = ArrayPiece(
            rest,
            prefix,
            words.get("minItems", 0),
            words.get("maxItems"),
            contains,
            unique,
            None if "items" in words else len(prefix),
        )
        trimmed = self.algebra.arrays.trim(piece)
        return () if trimmed is None else (trimmed,)

    def _objects(self, here: Here) -> tuple[ObjectPiece, ...]:
        words, base = here.words.keywords, here.position.base_uri
        objects = self.algebra.objects
        place = here.at("properties")
        names = {
            name: self.term(schema, f"{place}/{escape_token(name)}", base)
            for name, schema in words.get("properties", {}).items()
        }
        listed = frozenset(names) if self.document.tracks_evaluation else frozenset()
        additional = self.terms.true
        if "additionalProperties" in words:
            additional = self.term(words["additionalProperties"], here.at("additionalProperties"), base)
        seen = Seen(listed)
        classes: KeyClasses = ((objects.strings.anything, additional),)
        if words.get("patternProperties"):
            classes, matched = self._pattern_properties(here, names, additional)
            seen = Seen(listed, matched)
        if "additionalProperties" in words:
            seen = Seen(listed, objects.strings.anything)
        piece = ObjectPiece(
            classes,
            names,
            tuple(dict.fromkeys(words.get("required", ()))),
            words.get("minProperties", 0),
            words.get("maxProperties"),
            seen=seen,
        )
        if "propertyNames" in words:
            allowed = self.shape(self.term(words["propertyNames"], here.at("propertyNames"), base)).strings
            restricted = objects.restrict_names(piece, allowed)
            return () if restricted is None else (restricted,)
        return () if objects.is_plainly_empty(piece) else (piece,)

    def _pattern_properties(self, here: Here, names: dict[str, Term], additional: Term) -> tuple[KeyClasses, int]:
        """Key classes of patterns, with `additional` for keys that match none, and the union of the patterns. The
        terms of matching patterns are added to `names`."""
        base, place = here.position.base_uri, here.at("patternProperties")
        objects, builder = self.algebra.objects, self.algebra.builder
        classes = objects.anything.classes
        languages = []
        for pattern, schema in here.words.keywords["patternProperties"].items():
            keys = self.pattern(here, pattern, "patternProperties")
            term = self.term(schema, f"{place}/{escape_token(pattern)}", base)
            languages.append(keys)
            classes = objects.split(classes, keys, term)
            for name, own in names.items():
                if encodable(name) and builder.matches_expr(keys, name.encode()):
                    names[name] = self.terms.all_of([own, term])
        matched = builder.alternate(languages)
        if additional is not self.terms.true:
            unmatched = objects.strings.within_text(builder.complement(matched))
            classes = objects.split(classes, unmatched, additional)
        return classes, matched

    def _meet(self, a: Shape, b: Shape, pointer: str) -> Shape:
        """Intersection; where alternatives multiply, those that are proved empty are dropped at once."""
        met = self.algebra.intersect(a, b, pointer)
        multiplied = len(met.objects) > max(len(a.objects), len(b.objects)) or len(met.arrays) > max(
            len(a.arrays), len(b.arrays)
        )
        return self.emptiness.pruned(met) if multiplied else met

    # In-place applicators.

    def _reference(self, here: Here, reference: str) -> Shape:
        words, document = here.words.keywords, self.document
        word = next(word for word in ("$ref", "$dynamicRef", "$recursiveRef") if words.get(word) is reference)
        schema, pointer, base = document.resolve(reference, here.position.base_uri, here.position.pointer, word)
        anchor = schema.get("$dynamicAnchor") if isinstance(schema, dict) else None
        is_dynamic = word == "$dynamicRef" and reference.partition("#")[2] == anchor
        if is_dynamic and document.dynamic_anchors[str(anchor)] > 1:
            raise here.error("a dynamic reference with several anchors of its name is not supported", word)
        if word == "$recursiveRef" and document.has_recursive_anchor and len(set(document.resources)) > 1:
            raise here.error("a recursive reference across resources is not supported", word)
        return self.shape(self.terms.position(schema, pointer, base))

    def _branches(self, here: Here, word: str) -> list[Shape]:
        place, base = here.at(word), here.position.base_uri
        schemas = here.words.keywords[word]
        return [self.shape(self.term(schema, f"{place}/{i}", base)) for i, schema in enumerate(schemas)]

    def _all_of(self, here: Here, schemas: list[SchemaValue]) -> Shape:
        shape = self.algebra.everything
        for branch in self._branches(here, "allOf"):
            shape = self._meet(shape, branch, here.at("allOf"))
        return shape

    def _any_of(self, here: Here, schemas: list[SchemaValue]) -> Shape:
        branches, place = self._branches(here, "anyOf"), here.at("anyOf")
        if not self.document.tracks_evaluation:
            return self.algebra.union(branches, place)
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
        within = [algebra.intersect(here.asserted, branch, place) for branch in branches]
        exclusive = []
        for i, branch in enumerate(branches):
            for j, other in enumerate(branches):
                if i != j and not self.emptiness.disjoint(within[i], within[j], place):
                    branch = self._meet(branch, self._negated(other, f"{place}/{j}"), place)
            exclusive.append(self.emptiness.pruned(branch))
        return algebra.union(exclusive, place)

    def _negated(self, shape: Shape, pointer: str) -> Shape:
        return self.algebra.complement(shape, pointer)

    def _not(self, here: Here, schema: SchemaValue) -> Shape:
        place = here.at("not")
        return self._negated(self.shape(self.term(schema, place, here.position.base_uri)), place)

    def _condition(self, here: Here, schema: SchemaValue) -> Shape:
        words, base, algebra = here.words.keywords, here.position.base_uri, self.algebra
        if "then" not in words and "else" not in words and not self.document.tracks_evaluation:
            return algebra.everything
        place = here.at("if")
        holds = self.shape(self.term(schema, place, base))
        fails = self._negated(holds, place)
        for word in ("then", "else"):
            if word in words:
                branch = self.shape(self.term(words[word], here.at(word), base))
                if word == "then":
                    holds = algebra.intersect(holds, branch, here.at(word))
                else:
                    fails = algebra.intersect(fails, branch, here.at(word))
        return algebra.union([self.emptiness.pruned(holds), self.emptiness.pruned(fails)], place)

    def _without_name(self, name: str) -> Shape:
        piece = replace(self.algebra.objects.anything, names={name: self.terms.false})
        return replace(self.algebra.everything, objects=(piece,))

    def _with_names(self, names: list[str]) -> Shape:
        piece = replace(self.algebra.objects.anything, required=tuple(dict.fromkeys(names)))
        return replace(self.algebra.everything, objects=(piece,))

    def _dependent_required(self, here: Here, needs: dict[str, list[str]]) -> Shape:
        shape, place = self.algebra.everything, here.at("dependentRequired")
        for name, needed in needs.items():
            if needed:
                either = self.algebra.union([self._without_name(name), self._with_names([name, *needed])], place)
                shape = self._meet(shape, either, place)
        return shape

    def _dependent_schemas(self, here: Here, schemas: dict[str, SchemaValue]) -> Shape:
        algebra, shape, place = self.algebra, self.algebra.everything, here.at("dependentSchemas")
        for name, schema in schemas.items():
            branch = self.shape(self.term(schema, f"{place}/{escape_token(name)}", here.position.base_uri))
            only_object = replace(
                self._with_names([name]), null=False, booleans=(), numbers=NumberSet(), strings=NO_STRINGS, arrays=()
            )
            present = algebra.intersect(only_object, branch, place)
            either = algebra.union([self._without_name(name), present], place)
            shape = self._meet(shape, either, place)
        return shape

    # Values.

    def _enum(self, here: Here, values: list[JsonValue]) -> Shape:
        return self._values(values, here.at("enum"))

    def _const(self, here: Here, value: JsonValue) -> Shape:
        return self._values([value], here.at("const"))

    def _values(self, values: list[JsonValue], pointer: str) -> Shape:
        """Exactly the listed values that some text can spell."""
        numbers: dict[Number, None] = {}
        strings: dict[str, None] = {}
        booleans: set[bool] = set()
        arrays, objects, null = [], [], False
        for value in values:
            if isinstance(value, str):
                if encodable(value):
                    strings[value] = None
            elif value is None:
                null = True
            elif isinstance(value, bool):
                booleans.add(value)
            elif isinstance(value, list):
                items = tuple(self.terms.value(item, pointer) for item in value)
                arrays.append(ArrayPiece(self.terms.false, items, len(items), len(items)))
            elif isinstance(value, dict):
                names = {name: self.terms.value(member, pointer) for name, member in value.items()}
                forbidden = ((self.algebra.strings.anything, self.terms.false),)
                if all(map(encodable, names)):
                    objects.append(ObjectPiece(forbidden, names, tuple(names), len(names), len(names)))
            else:
                numbers[value] = None
        return Shape(
            null,
            tuple(value for value in BOTH if value in booleans),
            NumberSet(tuple(numbers)),
            StringSet(tuple(strings)),
            tuple(arrays),
            tuple(objects),
        )

    # Unevaluated.

    def _unevaluated(self, here: Here, shape: Shape) -> Shape:
        words, base, algebra = here.words.keywords, here.position.base_uri, self.algebra
        if "unevaluatedProperties" in words:
            term = self.term(words["unevaluatedProperties"], here.at("unevaluatedProperties"), base)
            applied = (algebra.objects.with_seen(piece, term) for piece in shape.objects)
            shape = replace(shape, objects=tuple(piece for piece in applied if piece is not None))
        if "unevaluatedItems" in words:
            term = self.term(words["unevaluatedItems"], here.at("unevaluatedItems"), base)
            arrays = []
            for piece in shape.arrays:
                if piece.contains and piece.seen is not None and term is not self.terms.true:
                    raise here.error("unevaluatedItems beside contains cannot be enforced", "unevaluatedItems")
                if piece.seen is not None:
                    rest = ArrayPiece(term, (self.terms.true,) * piece.seen)
                    met = algebra.arrays.meet(piece, rest)
                    if met is None:
                        continue
                    piece = met
                arrays.append(replace(piece, seen=None))
            shape = replace(shape, arrays=tuple(arrays))
        return shape
