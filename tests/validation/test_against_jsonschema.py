"""Differential test: on schemas without subtle numbers or patterns, plain `jsonschema` gives the same verdict."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from safegen.validation import SchemaValidator

_NAMES = ["a", "b", "c"]


class Generator:
    """Random schemas and instances over few names and values, so that they meet."""

    def __init__(self, seed: int, draft: str) -> None:
        self.rng = random.Random(seed)
        self.is_modern = draft == "2020-12"

    def instance(self, depth: int = 3) -> Any:
        kind = self.rng.randrange(9 if depth else 6)
        if kind < 6:
            return self.rng.choice([None, True, False, 0, 1, 2, 3, "", "a", "ab", "abc"])
        if kind == 6:
            return [self.instance(depth - 1) for _ in range(self.rng.randrange(4))]
        return {name: self.instance(depth - 1) for name in _NAMES if self.rng.random() < 0.5}

    def schema(self, depth: int = 3) -> Any:
        if self.rng.random() < 0.1:
            return self.rng.random() < 0.8
        schema: dict[str, Any] = {}
        for _ in range(self.rng.randrange(1, 4)):
            schema.update(self.keyword(depth))
        return schema

    def schemas(self, depth: int) -> list[Any]:
        return [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]

    def keyword(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        leaves: list[dict[str, Any]] = [
            {"type": rng.choice(["object", "array", "string", "integer", "number", "boolean", "null"])},
            {"type": rng.sample(["object", "array", "string", "integer", "null"], 2)},
            {"enum": [self.instance(1) for _ in range(3)]},
            {"const": self.instance(1)},
            {rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]): rng.randrange(4)},
            {"multipleOf": rng.choice([1, 2, 3])},
            {rng.choice(["minLength", "maxLength", "minItems", "maxItems", "minProperties",
                "maxProperties"]): rng.randrange(3)},
            {"pattern": rng.choice(["a", "^a", "b$", "^[ab]+$", "c|^$"])},
            {"required": rng.sample(_NAMES, rng.randrange(1, 3))},
            {"uniqueItems": True},
            {"$ref": "#/definitions/d"},
        ]  # fmt: skip
        if depth == 0 or rng.random() < 0.35:
            return rng.choice(leaves)
        return self.modern_applicator(depth) if rng.random() < 0.4 else self.applicator(depth)

    def applicator(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(_NAMES, 2)
        match self.rng.randrange(9):
            case 0:
                return {self.rng.choice(["allOf", "anyOf", "oneOf"]): self.schemas(depth)}
            case 1:
                return {"not": self.schema(depth - 1)}
            case 2:
                return {"if": self.schema(depth - 1), "then": self.schema(depth - 1), "else": self.schema(depth - 1)}
            case 3:
                return {"properties": {name: self.schema(depth - 1) for name in names}}
            case 4:
                return {
                    "patternProperties": {"^[ab]": self.schema(depth - 1)},
                    "additionalProperties": self.schema(depth - 1),
                }
            case 5:
                return {
                    "properties": {names[0]: self.schema(depth - 1)},
                    "additionalProperties": self.schema(depth - 1),
                }
            case 6:
                return {"propertyNames": self.schema(depth - 1)}
            case 7:
                return {"items": self.schema(depth - 1)}
        return {"contains": self.schema(depth - 1)}

    def modern_applicator(self, depth: int) -> dict[str, Any]:
        """Keywords that only one of the two drafts has."""
        names = self.rng.sample(_NAMES, 2)
        if not self.is_modern:
            if self.rng.random() < 0.5:
                return {"items": self.schemas(depth), "additionalItems": self.schema(depth - 1)}
            return {"dependencies": {names[0]: [names[1]], names[1]: self.schema(depth - 1)}}
        match self.rng.randrange(6):
            case 0:
                return {"prefixItems": self.schemas(depth), "items": self.schema(depth - 1)}
            case 1:
                low = self.rng.randrange(2)
                return {"contains": self.schema(depth - 1), "minContains": low, "maxContains": low + 1}
            case 2:
                return {"dependentRequired": {names[0]: [names[1]]}}
            case 3:
                return {"dependentSchemas": {names[0]: self.schema(depth - 1)}}
            case 4:
                inner = {"properties": {names[0]: self.schema(depth - 1)}, "anyOf": self.schemas(depth)}
                return {"unevaluatedProperties": self.schema(depth - 1), **inner}
        inner = {"prefixItems": self.schemas(depth), "allOf": self.schemas(depth)}
        return {"unevaluatedItems": self.schema(depth - 1), **inner}


@pytest.mark.parametrize(
    ("draft", "uri", "stock"),
    [
        ("2020-12", "https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
        ("7", "http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
    ],
)
def test_random_schemas_get_the_verdict_of_jsonschema(draft: str, uri: str, stock: Any) -> None:
    generator = Generator(5, draft)
    counts = {"valid": 0, "invalid": 0}
    for _ in range(450):
        inner = generator.schema()
        schema = {"$schema": uri, "allOf": [inner], "definitions": {"d": generator.schema(1)}}
        if '"$ref"' in json.dumps(schema["definitions"]):
            schema["definitions"] = {"d": {"type": "string"}}
        validator, reference = SchemaValidator(schema), stock(schema)
        for _ in range(8):
            instance = generator.instance()
            status = validator.outcome(json.dumps(instance)).status
            assert status == ("valid" if reference.is_valid(instance) else "invalid"), (schema, instance)
            counts[status] += 1
    assert min(counts.values()) > 400
