"""The validator's promises: exact verdicts, pointers, errors that are never verdicts, bounded work."""

from __future__ import annotations

import json
import threading
import time
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from safegen.errors import SchemaError
from safegen.validation import SchemaValidator, ValidationFailure, ValidatorError, validate_json_schema
from safegen.validation.dialects import DRAFT_2020_12
from safegen.validation.schema_check import check_against_metaschema
from safegen.validation.strict_json import exact_copy

DOCUMENTS = {"http://example.com/n": {"type": "integer"}}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"multipleOf": 0.1}, ["0.3", "1.1", "1e300", '"x"'], ["0.35", "1e-2"]),
        ('{"multipleOf": 0.0100000000000000000000001}', ["0.0100000000000000000000001"], ["0.01"]),
        ('{"minimum": 0.1000000000000000000000001}', ["0.1000000000000000000000001"], ["0.1"]),
        ({"exclusiveMaximum": 10}, ["9.99999999999999999999999999"], ["10.0", "1e1", "1e999999999"]),
        ({"maximum": 2**64}, ["18446744073709551616"], ["18446744073709551617", "18446744073709551616.000001"]),
        ({"$schema": DRAFT_4, "type": "integer"}, ["1", "-0", "1" + "0" * 5000], ["1.0", "1e2", "1e0", "10e-1", "1.5"]),
        ({"$schema": DRAFT_4, "not": {"type": "integer"}}, ["1.0", "1e0", '"x"'], ["1", "-7"]),
        ({"type": "integer"}, ["1.0", "1e2", "-0", "1" + "0" * 5000, "1.0e999999999"], ["1.5", "1e-1", "true"]),
        ({"type": ["number", "null"]}, ["1.5", "null"], ["true", '"1"']),
        ({"const": 1}, ["1", "1.0", "10e-1"], ["true", "1.0000000000000000000001"]),
        ({"const": True}, ["true"], ["1", "1.0"]),
        ({"const": {"a": [1.0, None]}}, ['{"a":[1,null]}'], ['{"a":[true,null]}', '{"a":[1]}', '{"a":[1,null],"b":1}']),
        ({"enum": ["é", 0.5, False]}, ['"\\u00e9"', "0.50", "false"], ['"e\\u0301"', "0", "0.5000000000000000000001"]),
        ({"uniqueItems": True}, ["[1,true]", "[0,false]", "[[1],[true]]", '["a","A"]'], ["[1,1.0]",
            '[{"a":1},{"a":1e0}]']),
        ({"maxLength": 1}, ['"😀"', '"\\ud83d\\ude00"'], ['"e\\u0301"']),
        ({"minLength": 2.0}, ['"ab"'], ['"a"']),
        ({"pattern": r"^\d+$"}, ['"12"', "7"], ['"১"', '"12\\n"']),
        ({"patternProperties": {r"^\w$": False}}, ['{"é":1}'], ['{"e":1}']),
        ({"patternProperties": {r"^\d$": True}, "additionalProperties": False}, ['{"1":0}'], ['{"১":0}']),
        ({"patternProperties": {"^a$": True}, "additionalProperties": {"type": "null"}}, ['{"a":1}'], ['{"a\\n":1}']),
        ({"patternProperties": {r"^\d$": True}, "unevaluatedProperties": False}, ['{"1":0}'], ['{"১":0}']),
        ({"propertyNames": {"pattern": "^a.$"}}, ['{"a😀":1}'], ['{"a\\n":1}', '{"a":1}']),
        ({"format": "ipv4"}, ['"127.0.0.1"', "3"], ['"127.0.0.01"']),
        ({"format": "date-time"}, ['"1998-12-31T23:59:60Z"'], ['"1998-12-31T22:59:60Z"', '"1998-12-31 23:59:59Z"']),
        ({"properties": {"a": {}}, "required": ["b"]}, ['{"b":1}', "[]"], ['{"a":1}']),
        ({"$schema": DRAFT_7, "items": True, "additionalItems": False}, ["[1,2]"], []),
        ({"$schema": DRAFT_7, "items": [True], "additionalItems": False}, ["[1]"], ["[1,2]"]),
        ({"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True}, ["1.1"], ["1.0"]),
        ({"$schema": DRAFT_7, "$ref": "#/definitions/s", "type": "integer", "definitions": {"s": {}}}, ['"x"'], []),
        ({"$ref": "#/$defs/s", "type": "string", "$defs": {"s": {"minLength": 1}}}, ['"x"'], ["1", '""']),
        ({"$schema": DRAFT_2019, "unevaluatedProperties": False, "additionalProperties": {"x": 1}}, ['{"y":1}'], []),
        ({"not": {"$id": "http://x/a", "$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}}, ["1"], ["null"]),
        ({"contains": {"$id": "http://x/a", "$ref": "b"}, "$defs": {"b": {"$id": "http://x/b", "const": 1}}},
            ["[1]"], ["[2]"]),
        (True, ["1", "{}"], []),
        (False, [], ["1", "{}"]),
    ],
)  # fmt: skip
def test_verdicts_are_exact(schema: Any, accepted: list[str], refused: list[str]) -> None:
    validator = SchemaValidator(schema)
    assert [
        (text, validator.outcome(text).error) for text in accepted if validator.outcome(text).status != "valid"
    ] == []
    assert [text for text in refused if validator.outcome(text).status != "invalid"] == []


def test_a_valid_text_gives_its_exact_value() -> None:
    outcome = validate_json_schema({"type": "object"}, b'{"n": 1, "x": 0.10, "s": "\xc3\xa9"}')
    assert outcome.is_valid
    assert outcome.error is None
    assert outcome.value == {"n": 1, "x": Decimal("0.10"), "s": "é"}
    assert type(outcome.value["n"]) is int


def test_a_failure_names_both_places_and_the_keyword() -> None:
    schema = {"properties": {"a/b": {"items": {"$ref": "#/$defs/small"}}}, "$defs": {"small": {"maximum": 5}}}
    with pytest.raises(ValidationFailure) as caught:
        SchemaValidator(schema).validate('{"a/b": [1, 9]}')
    assert caught.value.instance_pointer == "/a~1b/1"
    assert caught.value.schema_pointer == "/properties/a~1b/items/$ref/maximum"
    assert caught.value.keyword == "maximum"
    assert "maximum 5" in str(caught.value)


def test_failures_are_named_alike_when_a_verdict_is_remembered() -> None:
    shared = {"$ref": "#/$defs/s"}
    schema = {"anyOf": [shared, {"type": "array"}], "allOf": [shared], "$defs": {"s": {"required": ["k"]}}}
    failure = SchemaValidator({"allOf": [{"not": shared}, shared], "$defs": schema["$defs"]}).outcome("{}").error
    assert isinstance(failure, ValidationFailure)
    assert failure.schema_pointer == "/allOf/1/$ref/required"


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        (0, "", None),
        ("not json", "", None),
        ('{"type": "string", "type": "string"}', "", None),
        ({"type": "strnig"}, "", "type"),
        ({"properties": {"a": {"minItems": -1}}}, "/properties/a", "minItems"),
        ({"properties": {"a": {"minLength": 2.5}}}, "/properties/a", "minLength"),
        ({"items": [{}]}, "", "items"),
        ({"multipleOf": 0}, "", "multipleOf"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a", "pattern"),
        ({"pattern": r"(a)\1"}, "", "pattern"),
        ({"patternProperties": {"[": {}}}, "", "patternProperties"),
        ({"items": {"format": "phone"}}, "/items", "format"),
        ({"$schema": DRAFT_4, "format": 5}, "", "format"),
        ({"$schema": "http://example.com/dialect"}, "/$schema", "$schema"),
        ({"items": {"$ref": "https://example.com/x.json"}}, "/items", "$ref"),
        ({"$ref": "file:///etc/passwd"}, "", "$ref"),
        ({"$ref": "#/$defs/missing"}, "", "$ref"),
        ({"$ref": "#missing"}, "", "$ref"),
        ({"title": "t", "$ref": "#/title"}, "/$ref", None),
        ({"$schema": DRAFT_7, "definitions": {"a": {"dependencies": {"x": 5}}}}, "/definitions/a", "dependencies"),
    ],
)
def test_a_schema_that_cannot_be_served_is_refused_with_its_place(
    schema: Any, pointer: str, keyword: str | None
) -> None:
    with pytest.raises(SchemaError) as caught:
        SchemaValidator(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert validate_json_schema(schema, "1").status == "error"


def test_references_are_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr("socket.socket.connect", fail)
    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(SchemaError, match="never fetched"):
        SchemaValidator({"anyOf": [{"$ref": "http://127.0.0.1:9/x#/y"}, True]})
    assert (
        SchemaValidator({"$ref": "http://json-schema.org/draft-07/schema#"}).outcome('{"type": 1}').status == "invalid"
    )


def test_unused_definitions_may_hold_what_is_not_served() -> None:
    assert SchemaValidator({"$defs": {"unused": {"pattern": r"(a)\1", "format": "phone"}}}).outcome("1").is_valid


@pytest.mark.parametrize(
    ("mode", "known", "unknown"), [("known", "invalid", "valid"), ("annotation", "valid", "valid")]
)
def test_format_modes(mode: Any, known: str, unknown: str) -> None:
    assert SchemaValidator({"format": "date"}, formats=mode).outcome('"2024-02-30"').status == known
    assert SchemaValidator({"format": "phone"}, formats=mode).outcome('"x"').status == unknown


def test_mode_known_checks_every_known_format() -> None:
    for name in ("idn-hostname", "regex"):
        assert SchemaValidator({"format": name}, formats="known").outcome('"(-"').status == "invalid"
        assert SchemaValidator({"format": name}).outcome('"(-"').status == "invalid"


def test_a_format_that_cannot_be_decided_is_an_error() -> None:
    validator = SchemaValidator({"format": "regex"})
    assert validator.outcome(r'"(a)\\1"').status == "valid"
    assert validator.outcome(r'"\\p{Script=Klingon}"').status == "error"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$dynamicRef": "#x", "$dynamicAnchor": "x"},
    ],
)
def test_endless_references_are_errors_and_no_verdicts(schema: Any) -> None:
    try:
        status = SchemaValidator(schema).outcome("1").status
    except SchemaError:
        return
    assert status == "error"


def test_an_exception_inside_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = SchemaValidator({"uniqueItems": True})
    monkeypatch.setattr("safegen.validation.keywords.equality_key", lambda value: 1 / 0)
    outcome = validator.outcome("[1, 2]")
    assert outcome.status == "error"
    assert isinstance(outcome.error, ValidatorError)
    assert "ZeroDivisionError" in str(outcome.error)


def test_the_step_budget_is_an_error_and_no_verdict() -> None:
    validator = SchemaValidator({"items": {"type": "integer"}}, max_steps=50)
    assert validator.outcome(json.dumps([1] * 20)).status == "valid"
    assert validator.outcome(json.dumps(list(range(100)))).status == "error"


def test_schemas_that_fan_out_through_references_are_judged_once() -> None:
    def fan(keyword: str, leaf: Any) -> dict[str, Any]:
        links: dict[str, Any] = {
            f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(40)
        }
        return {"$ref": "#/$defs/d0", "$defs": {**links, "d40": leaf}}

    started = time.perf_counter()
    for keyword in ("allOf", "anyOf"):
        validator = SchemaValidator(fan(keyword, {"type": "null"}))
        assert validator.outcome("null").status == "valid"
        assert validator.outcome("1").status == "invalid"
    assert time.perf_counter() - started < 3


def test_deep_values_of_recursive_schemas_are_judged_or_an_error() -> None:
    node = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}]}
    validator = SchemaValidator({"$ref": "#/$defs/node", "$defs": {"node": node}})
    assert validator.outcome('{"next":' * 100 + "null" + "}" * 100).status == "valid"
    assert validator.outcome('{"next":' * 100 + "1" + "}" * 100).status == "invalid"
    assert validator.outcome('{"next":' * 256 + "1" + "}" * 256).status in ("invalid", "error")
    assert validator.outcome('{"next":' * 300 + "null" + "}" * 300).status == "invalid"


def test_a_deeply_nested_schema_is_checked_without_recursion() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(120):
        schema = {"items": schema}
    assert SchemaValidator(schema).outcome("[[[]]]").status == "valid"
    schema["items"]["items"]["minItems"] = "x"
    with pytest.raises(SchemaError) as caught:
        SchemaValidator(schema)
    assert caught.value.pointer == "/items/items"


def test_metaschema_verdicts_agree_with_jsonschema() -> None:
    values: list[Any] = json.loads(
        '[null,true,1,1.5,-1,"a",[],["a"],["a","a"],{},{"a":{}},{"a":[]},[{}],{"a":1},"string",{"a":["b"]}]'
    )
    checked = DRAFT_2020_12.keywords.keys() - {"$ref", "$dynamicRef"}
    keywords = [*sorted(checked), "$defs", "$id", "$anchor", "title", "default"]
    stock = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
    for keyword in keywords:
        for value in values:
            for schema in ({keyword: value}, {"allOf": [{"properties": {"x": {keyword: value}}}]}):
                try:
                    check_against_metaschema(DRAFT_2020_12, exact_copy(schema))
                    verdict = True
                except SchemaError:
                    verdict = False
                assert verdict == stock.is_valid(schema), schema


def test_one_validator_serves_many_threads() -> None:
    validator = SchemaValidator({"items": {"type": "string", "pattern": "^(?:[a-c]{1,3}-)+$"}})
    wrong: list[str] = []

    def work(seed: int) -> None:
        for index in range(150):
            text = json.dumps(["abc"[(seed + index) % 3] * (1 + index % 4) + "-"])
            expected = "invalid" if index % 4 == 3 else "valid"
            if validator.outcome(text).status != expected:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_typical_object_takes_under_a_millisecond() -> None:
    address = {
        "type": "object",
        "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["zip"],
    }
    properties = {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string", "maxLength": 80},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "score": {"type": "number", "multipleOf": 0.01},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z-]{1,20}$"}, "uniqueItems": True},
        "address": {"$ref": "#/$defs/address"},
        "created": {"type": "string", "format": "date-time"},
    }
    validator = SchemaValidator(
        {"type": "object", "properties": properties, "additionalProperties": False, "$defs": {"address": address}}
    )
    text = json.dumps(
        {
            "id": "123e4567-e89b-12d3-a456-426614174000",
            "name": "Maria Lopez",
            "email": "maria@example.com",
            "age": 34,
            "score": 99.25,
            "tags": ["alpha", "beta-x", "gamma"],
            "address": {"zip": "11000", "street": "Rua Augusta 1", "city": "Lisbon"},
            "created": "2024-05-01T12:00:00Z",
        }
    )
    validator.validate(text)

    def milliseconds() -> float:
        started = time.perf_counter()
        for _ in range(20):
            validator.validate(text)
        return (time.perf_counter() - started) / 20 * 1000

    assert min(milliseconds() for _ in range(5)) < 1.0


def test_references_reach_documents_that_were_handed_in() -> None:
    validator = SchemaValidator({"items": {"$ref": "http://example.com/n"}}, documents=DOCUMENTS)
    assert validator.outcome("[1]").status == "valid"
    assert validator.outcome('["a"]').status == "invalid"
    with pytest.raises(SchemaError):
        SchemaValidator({"$ref": "http://example.com/other"}, documents=DOCUMENTS)
    with pytest.raises(SchemaError):
        SchemaValidator(True, documents={"http://example.com/bad": {"type": 5}})
