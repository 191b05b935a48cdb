"""Random JSON Schemas over few names and values, so that keywords meet; all keywords of draft 2020-12 that assert.

Most schemas drawn can be satisfied: a type is chosen first, then keywords that speak about it. `KEYWORDS` lists what
the generator is to bring forth, and a test counts them.
"""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "ab", "é", 'q"')
TEXTS = ("", "a", "b", "ab", "ba", "é", 'q"', "10")
PATTERNS = ("^a", "b$", "^[ab]{1,2}$", "a|b", "^(?=.*a)[ab]+$", "é", "^(ab)*$", r"^\p{L}+$", r"\d", "^$", "^a{0,40}b$")
KEY_PATTERNS = ("^a", "b$", "^[ab]$", "é")
SIMPLE_FORMATS = ("date", "ipv4", "ipv6", "uuid")
FORMATS = (*SIMPLE_FORMATS, "time", "date-time", "duration", "email", "idn-email", "hostname", "uri", "uri-reference",
           "iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex",
           "idn-hostname")  # fmt: skip
_WORDS = """
type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format
prefixItems items contains minContains maxContains minItems maxItems uniqueItems unevaluatedItems properties
patternProperties additionalProperties propertyNames required minProperties maxProperties dependentRequired
dependentSchemas unevaluatedProperties allOf anyOf oneOf not if then else $ref $defs $dynamicRef
"""
KEYWORDS = frozenset(_WORDS.split())


def keywords_of(schema: Any) -> set[str]:
    """Every key of every object in a schema: those of data too, which is enough for a count."""
    if isinstance(schema, list):
        return {word for item in schema for word in keywords_of(item)}
    if isinstance(schema, dict):
        return set(schema) | {word for value in schema.values() for word in keywords_of(value)}
    return set()


class SchemaGenerator:
    """formats, patterns: which ones are drawn. max_depth: applicators inside one another."""

    def __init__(
        self,
        rng: random.Random,
        formats: tuple[str, ...] = FORMATS,
        patterns: tuple[str, ...] = PATTERNS,
        max_depth: int = 3,
    ) -> None:
        self.rng = rng
        self.formats = formats
        self.patterns = patterns
        self.max_depth = max_depth
        self._defs: dict[str, Any] = {}

    def document(self) -> Any:
        self._defs = {}
        schema = self.schema(0)
        if self._defs and isinstance(schema, dict):
            schema = {**schema, "$defs": self._defs}
        return schema

    def schema(self, depth: int) -> Any:
        if depth and self.rng.random() < 0.05:
            return True
        base = self._base(depth)
        return self._with_siblings(base, depth) if depth < self.max_depth and self.rng.random() < 0.45 else base

    def value(self, depth: int = 0) -> Any:
        rng = self.rng
        if depth > 1 or rng.random() < 0.6:
            return rng.choice((None, True, False, 0, 1, -1, 2, 10, 1.5, *TEXTS))
        if rng.random() < 0.5:
            return [self.value(depth + 1) for _ in range(rng.randrange(3))]
        return {name: self.value(depth + 1) for name in rng.sample(NAMES, rng.randrange(3))}

    def _base(self, depth: int) -> dict[str, Any]:
        kinds = [self._string, self._number, self._integer, self._listed, self._plain]
        if depth < self.max_depth:
            kinds += [self._array, self._object] * (4 if depth == 0 else 2)
            kinds += [self._union, self._reference]
        return self.rng.choice(kinds)(depth)

    # --- scalars ---
    def _string(self, _: int) -> dict[str, Any]:
        rng = self.rng
        schema: dict[str, Any] = {"type": "string"}
        kind = rng.random()
        if kind < 0.35:
            schema["pattern"] = rng.choice(self.patterns)
        elif kind < 0.55:
            schema["format"] = rng.choice(self.formats)
        if kind < 0.35 or kind > 0.7:
            low = rng.randrange(3)
            schema.update(self._some({"minLength": low, "maxLength": low + rng.randrange(4)}))
        return schema

    def _number(self, _: int) -> dict[str, Any]:
        rng = self.rng
        low = rng.choice((-12, -1.5, 0, 0.25, 1))
        high = low + rng.choice((0.5, 3, 100))
        words = {rng.choice(("minimum", "exclusiveMinimum")): low, rng.choice(("maximum", "exclusiveMaximum")): high}
        return {"type": "number", **self._some(words), **self._some({"multipleOf": rng.choice((0.25, 0.5, 1))}, 0.3)}

    def _integer(self, _: int) -> dict[str, Any]:
        low = self.rng.randrange(-20, 10)
        words = {"minimum": low, "maximum": low + self.rng.randrange(30), "multipleOf": self.rng.choice((1, 2, 3, 7))}
        return {"type": "integer", **self._some(words)}

    def _listed(self, _: int) -> dict[str, Any]:
        if self.rng.random() < 0.4:
            return {"const": self.value()}
        values = [self.value() for _ in range(self.rng.randrange(1, 5))]
        return {"enum": [value for place, value in enumerate(values) if value not in values[:place]]}

    def _plain(self, _: int) -> dict[str, Any]:
        kinds = ("null", "boolean", "string", "integer", "number", "array", "object")
        return {"type": self.rng.choice((*kinds, self.rng.sample(kinds, 2)))}

    # --- arrays and objects ---
    def _array(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        words: dict[str, Any] = {"items": self.schema(depth + 1)}
        if rng.random() < 0.3:
            words["prefixItems"] = [self.schema(depth + 1) for _ in range(rng.randrange(1, 3))]
            words["items"] = rng.choice((False, words["items"]))
        if rng.random() < 0.3:
            least = rng.randrange(3)
            words["contains"] = self.schema(depth + 1)
            words.update(self._some({"minContains": least, "maxContains": least + rng.randrange(1, 3)}))
        if rng.random() < 0.3:
            words["uniqueItems"] = True
        low = rng.randrange(3)
        words.update(self._some({"minItems": low, "maxItems": low + rng.randrange(1, 4)}))
        if rng.random() < 0.2:
            words.pop("items")
            words["unevaluatedItems"] = rng.choice((False, self.schema(depth + 1)))
        return {"type": "array", **words}

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        names = rng.sample(NAMES, rng.randrange(4))
        words: dict[str, Any] = {"properties": {name: self.schema(depth + 1) for name in names}}
        words["required"] = rng.sample((*names, "z"), rng.randrange(len(names) + 1)) if rng.random() < 0.7 else []
        if rng.random() < 0.3:
            words["patternProperties"] = {rng.choice(KEY_PATTERNS): self.schema(depth + 1)}
        if rng.random() < 0.6:
            words["additionalProperties"] = rng.choice((False, False, self.schema(depth + 1)))
        if rng.random() < 0.25:
            words["propertyNames"] = rng.choice(
                ({"pattern": rng.choice(KEY_PATTERNS)}, {"maxLength": 2}, {"enum": [*NAMES]})
            )
        if rng.random() < 0.3:
            low = rng.randrange(3)
            words.update(self._some({"minProperties": low, "maxProperties": low + rng.randrange(3)}))
        if rng.random() < 0.25:
            words["dependentRequired"] = {rng.choice(NAMES): [rng.choice(NAMES)]}
        if rng.random() < 0.2:
            words["dependentSchemas"] = {rng.choice(NAMES): self._of_object(depth)}
        return {"type": "object", **words}

    # --- applicators ---
    def _union(self, depth: int) -> dict[str, Any]:
        return {self.rng.choice(("anyOf", "oneOf")): [self.schema(depth + 1) for _ in range(self.rng.randrange(1, 4))]}

    def _reference(self, depth: int) -> dict[str, Any]:
        """To a definition, which may hold references to itself and to others."""
        rng = self.rng
        name = f"d{rng.randrange(2)}"
        if name not in self._defs:
            self._defs[name] = True
            anchor = {"$dynamicAnchor": f"dynamic{name}"}
            self._defs[name] = {**anchor, **self._base(depth + 1)}
        dynamic = rng.random() < 0.3 and isinstance(self._defs[name], dict)
        return {"$dynamicRef": f"#dynamic{name}"} if dynamic else {"$ref": f"#/$defs/{name}"}

    def _with_siblings(self, base: dict[str, Any], depth: int) -> dict[str, Any]:
        rng = self.rng
        kind = base.get("type")
        if kind == "object" and rng.random() < 0.8:
            extra = self._object_siblings(depth)
        elif kind == "array" and rng.random() < 0.6:
            extra = {"allOf": [{"prefixItems": [self.schema(depth + 1)]}], "unevaluatedItems": rng.choice((False, {}))}
        else:
            extra = rng.choice(
                (
                    {"not": self._leaf()},
                    {"allOf": [self._leaf()]},
                    {"anyOf": [self._leaf(), base]},
                    {"oneOf": [self._leaf(), self._leaf()]},
                    {"if": self._leaf(), "then": self._leaf(), "else": base},
                )
            )
        return {**extra, **base}

    def _object_siblings(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        of_object = [self._of_object(depth) for _ in range(3)]
        extra: dict[str, Any] = rng.choice(
            (
                {"anyOf": of_object[:2]},
                {"oneOf": of_object[:2]},
                {"allOf": of_object[:2]},
                {"not": {"required": [rng.choice(NAMES)]}},
                {"if": of_object[0], "then": of_object[1], "else": of_object[2]},
            )
        )
        if rng.random() < 0.4:
            extra["unevaluatedProperties"] = rng.choice((False, {"type": "integer"}))
        return extra

    def _of_object(self, depth: int) -> dict[str, Any]:
        name = self.rng.choice(NAMES)
        member = self.schema(min(depth + 2, self.max_depth))
        return self.rng.choice(({"required": [name]}, {"properties": {name: member}, "required": [name]},
                                {"properties": {name: member}}))  # fmt: skip

    def _leaf(self) -> Any:
        return self.rng.choice((self._string, self._number, self._integer, self._listed, self._plain))(0)

    def _some(self, words: dict[str, Any], chance: float = 0.6) -> dict[str, Any]:
        return {word: value for word, value in words.items() if self.rng.random() < chance}
