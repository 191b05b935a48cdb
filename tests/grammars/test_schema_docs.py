"""docs/constraints.md says what `check` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import safegen
from safegen import JsonSchema, SchemaError
from safegen.grammars.json_schema import compile_json_schema, formats
from safegen.grammars.json_schema.dialects import DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020

PAGE = (Path(__file__).parents[2] / "docs" / "constraints.md").read_text()
DRAFTS = (DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020)
PLACES_ONLY = {"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"}
DRAFT_7_URI = "http://json-schema.org/draft-07/schema#"
DRAFT_2019_URI = "https://json-schema.org/draft/2019-09/schema"
EXAMPLES: dict[str, dict[str, Any]] = {
    "type": {"type": ["integer", "null"]},
    "enum": {"enum": [1, "a", [2], {"b": None}], "type": ["string", "array"]},
    "const": {"const": {"a": [1.5]}},
    "minimum": {"minimum": 0.5},
    "maximum": {"maximum": 7},
    "exclusiveMinimum": {"exclusiveMinimum": 0},
    "exclusiveMaximum": {"exclusiveMaximum": 1e3},
    "multipleOf": {"multipleOf": 0.01},
    "minLength": {"minLength": 2},
    "maxLength": {"maxLength": 10_000},
    "pattern": {"pattern": "^(?=.*[A-Z])(?!.*\\s).{8,}$"},
    "format": {"format": "date-time"},
    "items": {"items": {"type": "integer"}},
    "prefixItems": {"prefixItems": [{"type": "integer"}, True], "items": False},
    "additionalItems": {"$schema": DRAFT_7_URI, "items": [True], "additionalItems": False},
    "minItems": {"minItems": 2},
    "maxItems": {"maxItems": 2},
    "contains": {"contains": {"type": "integer"}},
    "minContains": {"contains": {"type": "integer"}, "minContains": 2},
    "maxContains": {"contains": {"type": "integer"}, "maxContains": 2},
    "unevaluatedItems": {"prefixItems": [True], "unevaluatedItems": False},
    "properties": {"properties": {"a": {"type": "integer"}}},
    "required": {"required": ["a"]},
    "additionalProperties": {"additionalProperties": {"type": "integer"}},
    "patternProperties": {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}},
    "propertyNames": {"propertyNames": {"maxLength": 3}, "properties": {"a": True}},
    "minProperties": {"minProperties": 2, "properties": {"a": True}},
    "maxProperties": {"maxProperties": 2, "properties": {"a": True}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {"$schema": DRAFT_7_URI, "dependencies": {"a": ["b"], "c": {"maxProperties": 2}}},
    "unevaluatedProperties": {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
    "allOf": {"allOf": [{"properties": {"a": True}, "required": ["a"]}, {"maxProperties": 3}]},
    "anyOf": {"anyOf": [{"minimum": 3}, {"type": "string"}], "maximum": 5},
    "oneOf": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "not": {"not": {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}},
    "if": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}},
    "then": {"if": {"minimum": 3}, "then": {"multipleOf": 2}},
    "else": {"if": {"minimum": 3}, "else": {"multipleOf": 2}},
    "$ref": {"$ref": "#/$defs/a", "maxItems": 2, "$defs": {"a": {"items": {"$ref": "#"}}}},
    "$id": {"$ref": "b", "$defs": {"b": {"$id": "b", "type": "integer"}}},
    "$anchor": {"$ref": "#b", "$defs": {"b": {"$anchor": "b", "type": "integer"}}},
    "$dynamicRef": {"$dynamicRef": "#b", "$defs": {"b": {"$dynamicAnchor": "b", "type": "integer"}}},
    "$dynamicAnchor": {"$dynamicAnchor": "b", "items": {"$dynamicRef": "#b"}},
    "$recursiveRef": {"$schema": DRAFT_2019_URI, "items": {"$recursiveRef": "#"}},
    "$recursiveAnchor": {"$schema": DRAFT_2019_URI, "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}},
}


def rows() -> dict[str, str]:
    """safegen's column, by keyword."""
    table = re.findall(r"^\| (`[^|\n]*`) \| ([^|\n]*) \|(?:[^|\n]*\|){3}$", PAGE, flags=re.MULTILINE)
    return {word: handling for words, handling in table for word in re.findall(r"`([^`]+)`", words)}


def test_table_has_every_keyword_of_every_draft() -> None:
    known = frozenset[str]().union(*(draft.keywords for draft in DRAFTS))
    assert rows().keys() == known - {"id", "$defs", "definitions"}


@pytest.mark.parametrize("keyword", [*EXAMPLES])
def test_keyword_is_handled_as_the_table_says(keyword: str) -> None:
    assert rows()[keyword].startswith("enforced")
    findings = safegen.check(JsonSchema(EXAMPLES[keyword]))
    assert findings
    assert {finding.handling for finding in findings} == {"enforced"}
    assert keyword in PLACES_ONLY or keyword in {finding.keyword for finding in findings}


@pytest.mark.parametrize(
    ("schema", "handling"),
    [
        ({"items": {"enum": [1, 2]}, "uniqueItems": True}, "enforced"),
        ({"items": {"type": "string"}, "uniqueItems": True}, "enforced"),
        ({"items": {"type": "object"}, "uniqueItems": True}, "enforced"),
        ({"items": {"type": "integer"}, "uniqueItems": True}, "verified"),
        ({"uniqueItems": True, "contains": {"const": 1}}, "verified"),
        ({"allOf": [{"contains": {"const": n}} for n in range(5)]}, "verified"),
    ],
)
def test_verified_places_are_those_that_the_notes_name(schema: dict[str, Any], handling: str) -> None:
    findings = safegen.check(JsonSchema({"type": "array", **schema}))
    assert handling in {finding.handling for finding in findings}
    assert (handling == "verified") == any(finding.handling == "verified" for finding in findings)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://example.org/else"},
        {"$schema": "http://example.org/dialect"},
        {"format": "colour"},
        {"pattern": r"(a)\1"},
        {"pattern": "(?<=a)b"},
        {"pattern": "(?>a)"},
        {"minLength": "3"},
        {"type": "integer", "minimum": 3, "maximum": 2},
    ],
)
def test_what_is_said_to_be_refused_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        compile_json_schema(schema)


def test_formats_are_those_that_are_known() -> None:
    section = PAGE.partition("## Formats")[2].partition("## Patterns")[0]
    exact = section.partition("Exact: ")[2].partition(".\n")[0]
    parts = re.findall(r"^\| `([a-z-]+)` \|", section.partition("A part of")[2], flags=re.MULTILINE)
    assert {*re.findall(r"`([a-z0-9-]+)`", exact), *parts} == formats.KNOWN
