"""References through places that look like keywords and are none, and parts of a schema in another draft."""

from __future__ import annotations

from typing import Any

import pytest

from safegen.errors import SchemaError, UnsatisfiableSchema
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import Limits
from safegen.validation.schema_validator import SchemaValidator

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def assert_verdicts(schema: dict[str, Any], verdicts: dict[str, bool]) -> None:
    """The decoder and the independent validator agree."""
    program, validator = compile_json_schema(schema).program, SchemaValidator(schema)
    for text, expected in verdicts.items():
        assert program.matches(text.encode()) is expected, text
        assert validator.outcome(text).status == ("valid" if expected else "invalid"), text


@pytest.mark.parametrize("name", ["$schema", "$id", "id", "$ref", "$anchor", "items", "properties"])
def test_property_with_the_name_of_a_keyword_is_a_property(name: str) -> None:
    schema = {
        "$schema": DRAFT_7,
        "type": "object",
        "properties": {name: {"type": "string"}, "also": {"$ref": f"#/properties/{name}"}},
    }
    assert_verdicts(schema, {f'{{"{name}":"a","also":"b"}}': True, f'{{"{name}":1}}': False, '{"also":1}': False})


def test_reference_through_the_map_of_properties_keeps_its_base() -> None:
    schema = {
        "$id": "http://example.org/root",
        "properties": {
            "$schema": {"description": "which schema", "type": "string"},
            "rules": {"properties": {"$id": {"type": "integer"}, "id": {"type": "null"}}},
        },
        "$defs": {
            "name": {"$ref": "#/properties/$schema"},
            "number": {"$ref": "#/properties/rules/properties/$id"},
        },
        "items": {"anyOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/number"}]},
    }
    assert_verdicts(schema, {'["a",1]': True, "[null]": False})


def test_reference_through_a_list_of_items_enters_its_resources() -> None:
    schema = {
        "$schema": DRAFT_7,
        "$id": "http://example.org/root",
        "items": [{"$id": "inner", "definitions": {"a": {"$id": "deeper", "definitions": {"b": {"const": 1}}}}}],
        "additionalItems": {"$ref": "#/items/0/definitions/a/definitions/b"},
    }
    assert_verdicts(schema, {"[null,1,1]": True, "[null,2]": False})


def test_dialect_counts_only_where_a_resource_begins_by_the_draft_around_it() -> None:
    app = {"definitions": {"number": {"type": "integer"}}, "items": {"$ref": "#/definitions/app/definitions/number"}}
    schema = {
        "definitions": {"app": {"$schema": DRAFT_4, "id": "schemata/app", **app}},
        "$ref": "#/definitions/app",
    }
    assert_verdicts(schema, {"[1]": True, '["1"]': False})


def test_embedded_resource_speaks_its_own_draft() -> None:
    old = {"$id": "old", "dependencies": {"a": ["b"]}}
    schema = {"items": {"$ref": "old"}, "$defs": {"old": old}}
    assert_verdicts(schema, {'[{"a":1}]': True})
    assert_verdicts(schema | {"$defs": {"old": old | {"$schema": DRAFT_7}}}, {'[{"a":1}]': False})


HARD = {"allOf": [{"pattern": f"^(.{{{n}}}a|.{{{n + 1}}}b).*x{n}"} for n in range(10, 30)]}


@pytest.mark.parametrize(
    ("schema", "limits", "pointer", "keyword"),
    [
        (HARD, Limits(max_states=300), "", "allOf"),
        ({"$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}]}}, "$ref": "#/$defs/b"}, Limits(), "/$defs/b", "anyOf"),
        (
            {"items": {"allOf": [{"allOf": [{"allOf": [{}]}]}]}},
            Limits(max_inline_depth=2),
            "/items/allOf/0/allOf/0",
            "allOf",
        ),
    ],
)
def test_refusals_for_limits_name_a_place_and_a_keyword(
    schema: dict[str, Any], limits: Limits, pointer: str, keyword: str
) -> None:
    with pytest.raises(SchemaError) as refusal:
        compile_json_schema(schema, limits=limits)
    assert (refusal.value.pointer, refusal.value.keyword) == (pointer, keyword)


def test_unsatisfiable_schema_blames_a_place_without_a_keyword() -> None:
    with pytest.raises(UnsatisfiableSchema) as refusal:
        compile_json_schema(
            {"properties": {"a": {"type": "integer", "enum": ["x"]}}, "required": ["a"], "type": "object"}
        )
    assert (refusal.value.pointer, refusal.value.keyword) == ("/properties/a", None)
