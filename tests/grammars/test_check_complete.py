"""`check` names every keyword occurrence once: as enforced, verified or refused, and as compiling handles it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from safegen import JsonSchema, Regex, check
from safegen.errors import SchemaError
from safegen.grammars.json_schema import check_json_schema, compile_json_schema
from safegen.grammars.options import SchemaOptions
from tests.support import suites

# Written here anew, from the specification: where schemas lie in a schema, and what says nothing about values.
_ONE = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "items")
_ONE += ("unevaluatedItems", "unevaluatedProperties")
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs")
_SAYS = {*_ONE, *_LIST, *_NAMED} - {"$defs"} | {
    *("type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *("maxLength", "minLength", "pattern", "format", "maxItems", "minItems", "uniqueItems", "maxContains"),
    *("minContains", "maxProperties", "minProperties", "required", "dependentRequired", "$ref", "$dynamicRef"),
}


def occurrences(schema: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """(pointer, keyword) of every assertion and applicator of a 2020-12 schema."""
    if not isinstance(schema, dict):
        return
    for word, value in schema.items():
        if word in _SAYS:
            yield pointer, word
        at = f"{pointer}/{word}"
        if word in _ONE:
            yield from occurrences(value, at)
        elif word in _LIST:
            for index, part in enumerate(value):
                yield from occurrences(part, f"{at}/{index}")
        elif word in _NAMED:
            for name, part in value.items():
                yield from occurrences(part, f"{at}/{name.replace('~', '~0').replace('/', '~1')}")


def _handled(schema: Any, **options: Any) -> dict[tuple[str, str], str]:
    findings = check_json_schema(schema, SchemaOptions(**options))
    handled = {(finding.pointer, finding.keyword): finding.handling for finding in findings}
    assert len(handled) == len(findings), "a keyword is named twice"
    return handled


def test_every_keyword_of_the_suite_is_named_once() -> None:
    named = 0
    for group in suites.suite_groups():
        if group.draft != "draft2020-12" or group.is_optional:
            continue
        handled = _handled(group.schema, formats="annotation", documents=suites.SUITE_DOCUMENTS)
        for place in occurrences(group.schema):
            assert place in handled, (group.name, place)
            named += 1
    assert named > 900


def test_check_and_compile_agree_on_public_schemas() -> None:
    path, compared = suites._path(suites.DATA, "maskbench-dev.jsonl.gz"), 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.dumps(json.loads(line)["schema"]) for number, line in enumerate(lines) if number % 12 == 0]
    for text in texts:
        handled = _handled(text, formats="known")
        try:
            compiled = compile_json_schema(text, SchemaOptions(formats="known")).findings
        except SchemaError as error:
            assert handled[error.pointer, error.keyword or ""] == "refused"
            continue
        assert handled == {(finding.pointer, finding.keyword): finding.handling for finding in compiled}
        compared += 1
    assert compared > 100


def test_a_refused_keyword_leaves_the_others_named() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"pattern": "(?<=x)y"}, "b": {"format": "nonsense"}, "c": {"minLength": 1}},
        "patternProperties": {"(": {"type": "null", "minimum": 3}},
    }
    handled = _handled({**schema, "patternProperties": {"^x": {"not": {"$ref": "http://elsewhere.test/"}}}})
    assert {place for place, handling in handled.items() if handling == "refused"} == {
        ("/properties/a", "pattern"),
        ("/properties/b", "format"),
        ("/patternProperties/^x/not", "$ref"),
    }
    assert handled["/properties/c", "minLength"] == "enforced"
    assert set(occurrences(schema)) <= _handled(schema).keys()


def test_what_only_a_reference_reaches_is_named() -> None:
    schema = {"$ref": "#/parts/one", "parts": {"one": {"type": "array", "items": {"maximum": 3}}}}
    assert _handled(schema) == {
        ("", "$ref"): "enforced",
        ("/parts/one", "type"): "enforced",
        ("/parts/one", "items"): "enforced",
        ("/parts/one/items", "maximum"): "enforced",
    }


def test_a_verified_keyword_is_named_once_as_verified() -> None:
    numbers = {"type": "array", "items": {"type": "number"}, "uniqueItems": True}
    assert _handled(numbers)["", "uniqueItems"] == "verified"
    assert _handled({"properties": {"a": numbers}})["/properties/a", "uniqueItems"] == "verified"


@pytest.mark.parametrize(
    ("schema", "options", "place", "note"),
    [
        ({"type": "string", "format": "color"}, {"formats": "known"}, ("", "format"), "annotation"),
        ({"type": "string", "format": "date"}, {"formats": "annotation"}, ("", "format"), "annotation"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "minimum": 3,
          "definitions": {"a": {"type": "integer"}}}, {}, ("", "minimum"), "beside $ref"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 3}, {}, ("", "const"), "not a keyword"),
        ({"additionalPropertys": False}, {}, ("", "additionalPropertys"), "did you mean 'additionalProperties'"),
        ({"maxLenght": 3}, {}, ("", "maxLenght"), "did you mean 'maxLength'"),
        ({"requried": []}, {}, ("", "requried"), "did you mean 'required'"),
    ],
)  # fmt: skip
def test_a_keyword_that_constrains_nothing_has_a_note(
    schema: Any, options: Any, place: tuple[str, str], note: str
) -> None:
    findings = check(JsonSchema(schema, **options))
    [found] = [finding for finding in findings if (finding.pointer, finding.keyword) == place]
    assert note in found.note and found.handling == "enforced"


def test_types_without_keywords_have_findings_only_when_refused() -> None:
    assert check(Regex("a+")) == []
    [found] = check(Regex("(?<=a)b"))
    assert found.handling == "refused" and found.note
