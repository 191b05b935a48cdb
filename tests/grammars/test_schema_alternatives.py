"""Conditions on which keys are there: alternatives stay few, and their union is exact."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pytest
from jsonschema import Draft201909Validator

from safegen._native import Builder, Matcher, Vocabulary
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import Limits, SchemaOptions

NAMES = "abcde"


class CountingBuilder(Builder):
    num_objects = 0

    def object(self, *arguments: Any, **options: Any) -> int:
        CountingBuilder.num_objects += 1
        return super().object(*arguments, **options)


def presence(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random schema that looks at nothing but the names that an object has."""
    some = draw.sample(NAMES, draw.randint(1, 3))
    kinds = ["required", "forbidden", "dependentRequired", "dependencies", "minProperties", "maxProperties"]
    kinds += ["anyOf", "oneOf", "allOf", "not", "if"] * (depth > 0)
    match draw.choice(kinds):
        case "required":
            return {"required": some}
        case "forbidden":
            return {"properties": dict.fromkeys(some, False)}
        case "dependentRequired":
            return {"dependentRequired": {some[0]: some[1:]}}
        case "dependencies":
            return {"dependentSchemas": {name: presence(draw, depth - 1) for name in some[:2]}}
        case "minProperties" | "maxProperties" as word:
            return {word: draw.randint(1, 3)}
        case "not":
            return {"not": presence(draw, depth - 1)}
        case "if":
            return {word: presence(draw, depth - 1) for word in ("if", "then", "else")}
        case word:
            return {word: [presence(draw, depth - 1) for _ in range(draw.randint(1, 3))]}


@pytest.mark.parametrize("order", ["schema", "any"])
def test_random_conditions_on_presence_are_those_of_a_validator(order: Literal["schema", "any"]) -> None:
    draw = random.Random(7)
    closed = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in NAMES},
        "additionalProperties": False,
    }
    objects = [dict.fromkeys(names, 0) for size in range(6) for names in combinations(NAMES, size)]
    for _ in range(120):
        schema = closed | {"allOf": [presence(draw) for _ in range(draw.randint(1, 4))]}
        judge = Draft201909Validator(schema)
        valid = [value for value in objects if judge.is_valid(value)]
        if not valid:
            continue
        program = compile_json_schema(schema, SchemaOptions(property_order=order)).program
        found = [value for value in objects if program.matches(json.dumps(value, separators=(",", ":")).encode())]
        assert found == valid, schema


def test_alternatives_that_another_one_holds_are_dropped() -> None:
    names = [f"n{i}" for i in range(20)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "additionalProperties": False,
        "anyOf": [{"required": [name]} for name in names[:4]],
        "dependentSchemas": {
            "n0": {"not": {"required": ["n1"]}},
            "n1": {"not": {"required": [*names[4:12], "n0"]}},
            "n2": {"not": {"required": ["n3", "n12", "n13"]}},
            "n3": {"not": {"required": ["n2", "n12", "n13"]}},
            "n14": {"required": ["n2"]},
            "n15": {"required": ["n2"]},
        },
    }
    CountingBuilder.num_objects = 0
    program = compile_json_schema(schema, SchemaOptions(), Limits(), make_builder=CountingBuilder).program
    assert CountingBuilder.num_objects < 50  # multiplied out there are over 700
    assert program.matches(b'{"n1":1,"n4":1}')
    assert not program.matches(b'{"n0":1,"n1":1}')
    assert not program.matches(b'{"n4":1}')
    assert not program.matches(b'{"n0":1,"n14":1}')


@pytest.mark.parametrize(
    ("items", "handling"),
    [
        ({"type": "string"}, "enforced"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "enforced"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "enforced"),
        ({"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}, "enforced"),
        ({"type": "string", "pattern": "x"}, "enforced"),
        ({"type": ["object", "string"]}, "enforced"),
        ({"type": "string", "pattern": "^[a-z]+;$"}, "verified"),
        ({"type": "string", "maxLength": 5}, "verified"),
        ({"type": "integer"}, "verified"),
        ({"type": ["object", "null"]}, "verified"),
        ({"type": "object", "additionalProperties": False, "properties": {"a": {"type": "integer"}}}, "verified"),
        ({"type": "object", "maxProperties": 3}, "verified"),
        ({"type": "array", "maxItems": 3}, "verified"),
    ],
)
def test_unique_items_are_verified_only_where_an_item_may_have_to_end(items: dict[str, Any], handling: str) -> None:
    compiled = compile_json_schema({"type": "array", "uniqueItems": True, "items": items})
    assert [finding.handling for finding in compiled.findings if finding.keyword == "uniqueItems"] == [handling]


def test_open_objects_that_differ_need_no_retract() -> None:
    """Wherever a repeated object may not be closed, another key may follow."""
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])
    item = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    program = compile_json_schema({"type": "array", "uniqueItems": True, "items": item, "maxItems": 4}).program
    draw = random.Random(8)
    for _ in range(60):
        matcher = Matcher(program, vocabulary)
        for byte in b'[{"a":1},{"a":1':
            assert matcher.advance([byte]) is None
        for _ in range(40):
            row = np.zeros((1, 9), np.int32)
            matcher.fill([], row)
            legal = [byte for byte in range(256) if (int(row[0][byte >> 5]) >> (byte & 31)) & 1]
            if not legal:
                break
            assert matcher.advance([draw.choice(legal)]) is None
        assert matcher.can_end() or matcher.shortest_completion()


SOME_KEY = {"not": {"propertyNames": {"not": {"pattern": "^x"}}}}
SOME_VALUE = {"not": {"additionalProperties": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (SOME_KEY, ['{"x":1}', '{"a":1,"x2":2}'], ["{}", '{"a":1}']),
        (SOME_KEY | {"maxProperties": 1}, ['{"xy":1}'], ["{}", '{"a":1}', '{"a":1,"x":1}']),
        (SOME_VALUE | {"minProperties": 2}, ['{"a":1,"b":""}', '{"a":"","b":null}'], ['{"a":"","b":""}', '{"a":1}']),
        ({"allOf": [SOME_KEY, SOME_VALUE]}, ['{"x":1}', '{"x":"","a":1}'], ['{"x":""}', '{"a":1}']),
        (SOME_KEY | {"required": ["x1"]}, ['{"x1":1}'], ['{"x":1}', "{}"]),
        (SOME_VALUE | {"properties": {"a": {}}, "required": ["b"]}, ['{"b":1}', '{"a":1,"b":""}'], ['{"b":""}']),
    ],
)
def test_conditions_on_unlisted_keys_are_held_in_the_mask(
    schema: dict[str, Any], accepted: list[str], rejected: list[str]
) -> None:
    compiled = compile_json_schema({"type": "object", **schema}, SchemaOptions(property_order="any"))
    assert {finding.handling for finding in compiled.findings} == {"enforced"}
    assert [text for text in accepted if not compiled.program.matches(text.encode())] == []
    assert [text for text in rejected if compiled.program.matches(text.encode())] == []


@pytest.mark.parametrize("order", ["schema", "any"])
def test_objects_with_conditions_can_always_be_completed(order: Literal["schema", "any"]) -> None:
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])
    schema = {
        "type": "object",
        "allOf": [SOME_KEY, SOME_VALUE],
        "properties": {"a": {"type": "string"}},
        "maxProperties": 3,
        "minProperties": 2,
    }
    fresh = Matcher(compile_json_schema(schema, SchemaOptions(property_order=order)).program, vocabulary)
    judge, draw = Draft201909Validator(schema), random.Random(9)
    for _ in range(80):
        matcher = fresh.fork()
        for _ in range(draw.randint(0, 40)):
            row = np.zeros((1, 9), np.int32)
            matcher.fill([], row)
            legal = [byte for byte in range(256) if (int(row[0][byte >> 5]) >> (byte & 31)) & 1]
            if not legal:
                break
            telling = [byte for byte in legal if byte in b'{}",:ax1']
            matcher.advance([draw.choice(telling or legal)])
        text = matcher.text() + bytes(byte for byte in matcher.shortest_completion() if byte < 256)
        assert judge.is_valid(json.loads(text)), text


def test_hundreds_of_listed_values_that_must_differ_need_no_retract() -> None:
    values = [f"{kind}/{number}" for kind in ("css", "dom", "img") for number in range(100)]
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": values}}
    compiled = compile_json_schema(schema, SchemaOptions(spelling="any"))
    assert {finding.handling for finding in compiled.findings} == {"enforced"}
    tokens = [b"css", b"dom", b"img", *(str(number).encode() for number in range(10, 100))]
    tokens += (bytes([byte]) for byte in range(256))
    matcher = Matcher(compiled.program, Vocabulary(tokens, []))
    random.Random(3).shuffle(values)
    row = np.zeros((1, (len(tokens) + 31) // 32), np.int32)
    text = json.dumps(values, separators=(",", ":"))
    for piece in re.findall(r"\d+|[a-z]+|.", text):
        token = tokens.index(piece.encode())
        matcher.fill([], row)
        assert (int(row[0][token >> 5]) >> (token & 31)) & 1, matcher.text()
        assert matcher.advance([token]) is None
    assert matcher.can_end()


def pair(draw: random.Random) -> list[int]:
    return [draw.randint(0, 20), draw.randint(0, 20)]


def package(draw: random.Random) -> Any:
    name = f"p{draw.randint(0, 20)}"
    return draw.choice([name, {"n": name}, {"n": name, "v": draw.randint(0, 5)}])


PACKAGE = {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("items", "make"),
    [
        ({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}, "maxItems": 2}, pair),
        ({"anyOf": [{"type": "string"}, PACKAGE | {"additionalProperties": False}]}, package),
        ({"type": "integer", "minimum": 0, "maximum": 200}, lambda draw: draw.randint(0, 200)),
        (
            {"type": "string", "pattern": "^[a-c]{1,2}-[0-9]$"},
            lambda draw: f"{draw.choice('abc')}-{draw.randint(0, 9)}",
        ),
    ],
)
@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_items_that_begin_like_others_are_not_given_up(
    items: dict[str, Any], make: Callable[[random.Random], Any], spelling: Literal["canonical", "any"]
) -> None:
    """A retract is for items that cannot be new, not for those whose shortest end is not."""
    options = SchemaOptions("flexible", spelling=spelling)
    program = compile_json_schema({"type": "array", "uniqueItems": True, "items": items}, options).program
    vocabulary, draw = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256]), random.Random(11)
    for _ in range(2):
        values = list({json.dumps(value): value for value in (make(draw) for _ in range(25))}.values())
        matcher = Matcher(program, vocabulary)
        for byte in json.dumps(values).encode():
            assert matcher.advance([byte]) is None, matcher.text()
        assert matcher.can_end()
