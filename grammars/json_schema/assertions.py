"""What an object's own assertions allow, one form a type, and what a list of values allows.

Keywords speak about their own type only. Patterns and formats become languages here, once a text; items and members
become terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from safegen.errors import GrammarError, SchemaError
from safegen.grammars.json_schema import formats
from safegen.grammars.json_schema.arrays import ArrayPiece, Contains
from safegen.grammars.json_schema.canonical import BOTH, Algebra, Shape
from safegen.grammars.json_schema.dialects import View
from safegen.grammars.json_schema.documents import Document, SchemaValue
from safegen.grammars.json_schema.loader import JsonValue, escape_token
from safegen.grammars.json_schema.numbers import ALL_NUMBERS, Number, NumberPiece, NumberSet, common_multiple
from safegen.grammars.json_schema.objects import KeyClasses, ObjectPiece, Seen
from safegen.grammars.json_schema.strings import ALL_STRINGS, NO_STRINGS, StringPiece, StringSet, encodable
from safegen.grammars.json_schema.terms import Base, Position, Term
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex

ALL_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_NUMBER_WORDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
MAX_NEW_KEYS = 2048  # finding n new keys takes time in the square of n
_STRING_WORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
_ARRAY_WORDS = frozenset(("prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"))
_OBJECT_WORDS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames"),
    )
)


@dataclass(slots=True)
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


class Assertions:
    """shape_of: works a term out, for propertyNames."""

    def __init__(
        self,
        document: Document,
        algebra: Algebra,
        options: SchemaOptions,
        limits: Limits,
        shape_of: Callable[[Term], Shape],
    ) -> None:
        self.document = document
        self.algebra = algebra
        self.terms = algebra.terms
        self.options = options
        self.limits = limits
        self.shape = shape_of
        self.regex = RegexLowering(algebra.builder)
        self._formats: dict[str, int] = {}
        self._patterns: dict[str, int] = {}

    def term(self, schema: SchemaValue, pointer: str, base: Base) -> Term:
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            base = self.document.enter(schema, base)
        return self.terms.position(schema, pointer, base)

    def read(self, here: Here) -> Shape:
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
        by_text = only_integers and self.document.dialect(here.position.base.uri).integers_by_text
        piece = NumberPiece(
            words.get("minimum"), False, words.get("maximum"), False, divisor, only_integers, digits=by_text or None
        )
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
        if "format" in words:
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
        """The language of a format; None where it is an annotation."""
        if self.options.formats == "annotation" or (self.options.formats == "known" and name not in formats.KNOWN):
            self.document.note(here.position.pointer, "format", f'an annotation under formats="{self.options.formats}"')
            return None
        if name not in formats.KNOWN:
            raise here.error(
                f"the format {name!r} is not known",
                "format",
                'Use formats="known" to take unknown ones as annotations.',
            )
        if name not in self._formats:
            self._formats[name] = formats.format_expr(name, self.regex)
        return self._formats[name]

    def _arrays(self, here: Here) -> tuple[ArrayPiece, ...]:
        words, base = here.words.keywords, here.position.base
        prefix_place, items_place = here.at("prefixItems"), here.at("items")
        prefix = tuple(
            self.term(item, f"{prefix_place}/{index}", base) for index, item in enumerate(words.get("prefixItems", ()))
        )
        rest = self.term(words["items"], items_place, base) if "items" in words else self.terms.true
        contains: tuple[Contains, ...] = ()
        seen_by: tuple[Term, ...] = ()
        if "contains" in words:
            term = self.term(words["contains"], here.at("contains"), base)
            low, high = words.get("minContains", 1), words.get("maxContains")
            contains = (Contains(0, term, low, high, here.position.pointer),)
            if self.document.tracks_evaluation and self.document.dialect(base.uri).contains_evaluates:
                seen_by = (term,)
        unique = here.position.pointer if words.get("uniqueItems") is True else None
        piece = ArrayPiece(
            rest,
            prefix,
            words.get("minItems", 0),
            words.get("maxItems"),
            contains,
            unique,
            None if "items" in words else len(prefix),
            seen_by=seen_by,
        )
        trimmed = self.algebra.arrays.trim(piece)
        return () if trimmed is None else (trimmed,)

    def _objects(self, here: Here) -> tuple[ObjectPiece, ...]:
        words, base = here.words.keywords, here.position.base
        objects = self.algebra.objects
        place = here.at("properties")
        names = {
            name: self.term(schema, f"{place}/{escape_token(name)}", base)
            for name, schema in words.get("properties", {}).items()
        }
        tracks = self.document.tracks_evaluation
        listed = frozenset(names) if tracks else frozenset()
        additional = self.terms.true
        if "additionalProperties" in words:
            additional = self.term(words["additionalProperties"], here.at("additionalProperties"), base)
        seen = Seen(listed)
        classes: KeyClasses = ((objects.strings.anything, additional),)
        if words.get("patternProperties"):
            classes, matched = self._pattern_properties(here, names, additional)
            seen = Seen(listed, matched) if tracks else seen
        if "additionalProperties" in words and tracks:
            seen = Seen(listed, objects.strings.anything)
        low = words.get("minProperties", 0)
        if low - len(names) > MAX_NEW_KEYS:
            raise here.error(f"an answer would need more than {MAX_NEW_KEYS:,} unlisted keys", "minProperties")
        piece = ObjectPiece(
            classes,
            names,
            tuple(dict.fromkeys(words.get("required", ()))),
            low,
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
        base, place = here.position.base, here.at("patternProperties")
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

    def values(self, values: list[JsonValue], pointer: str) -> Shape:
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
