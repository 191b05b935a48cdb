"""Where values or keys may run out: arrays of different items that are also counted or placed, objects of which some
key must have some value. A beginning of an answer is live exactly when some answer starts so, by trying all answers."""

from __future__ import annotations

import json
import random
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest

from safegen.errors import UnsatisfiableSchema
from safegen.grammars.json_schema import CompiledSchema, compile_json_schema
from safegen.grammars.options import SchemaOptions
from tests.grammars.walking import Walker, WalkStats

ANY_ORDER = SchemaOptions(property_order="any")
VALUES: list[Any] = ["a", "b", True, None, {}, [], ["a"]]
KEYS = ("a", "b", "ab")


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def beginnings(value: Any) -> list[str]:
    """Texts of the first items or members, each with the comma behind it."""
    parts = (
        [text(item) for item in value] if isinstance(value, list) else [text({k: v})[1:-1] for k, v in value.items()]
    )
    return [text(value)[0] + "".join(f"{part}," for part in parts[:count]) for count in range(1, len(parts))]


def assert_exact(compiled: CompiledSchema, schema: Any, answers: list[Any]) -> None:
    """answers: all there may be, of which those that validate are legal."""
    validator = jsonschema.Draft202012Validator(schema)
    legal = [answer for answer in answers if validator.is_valid(answer)]
    live = {begun for answer in legal for begun in beginnings(answer)}
    program = compiled.program
    for answer in answers:
        assert program.matches(text(answer).encode()) == (answer in legal and any(answer is one for one in legal))
        for begun in beginnings(answer):
            reached = program.longest_prefix(begun.encode()) == len(begun)
            assert reached == (begun in live), begun
    assert not [finding for finding in compiled.findings if finding.handling == "verified"]


def compiled_or_empty(schema: Any, answers: list[Any]) -> CompiledSchema | None:
    try:
        return compile_json_schema(schema, ANY_ORDER)
    except UnsatisfiableSchema:
        validator = jsonschema.Draft202012Validator(schema)
        assert not any(map(validator.is_valid, answers)), schema
        return None


def some_values(rng: random.Random, most: int) -> dict[str, Any]:
    return {"enum": rng.sample(VALUES, rng.randint(1, most))}


def counted_schema(rng: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": some_values(rng, 5)}
    if rng.random() < 0.6:
        schema["prefixItems"] = [some_values(rng, 3) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.7:
        schema |= {"contains": some_values(rng, 4), "minContains": rng.randint(0, 3)}
    if rng.random() < 0.3:
        schema["maxContains"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        schema["allOf"] = [{"contains": some_values(rng, 3)}]
    return schema | {"minItems": rng.randint(0, 3), "maxItems": rng.randint(3, 4)}


@pytest.mark.parametrize("seed", range(40))
def test_different_items_that_are_counted_or_placed_are_live_exactly_where_an_answer_is_left(seed: int) -> None:
    schema = counted_schema(random.Random(seed))
    listed = [*schema["items"]["enum"], *(value for place in schema.get("prefixItems", ()) for value in place["enum"])]
    values = list({text(value): value for value in listed}.values())
    answers = [list(items) for size in range(4) for items in product(values, repeat=size)]
    answers += [list(items) for items in permutations(values, 4)]
    compiled = compiled_or_empty(schema, answers)
    if compiled is not None:
        assert_exact(compiled, schema, answers)


def condition(rng: random.Random) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.randint(1, 2))
    pattern = f"^(?:{'|'.join(keys)})$"
    value = rng.choice((True, {"const": 1}, {"enum": [1, True]}))
    return {"not": {"patternProperties": {pattern: {"not": value}}}}


@pytest.mark.parametrize("seed", range(40))
def test_a_condition_on_few_keys_is_live_exactly_where_a_key_is_left_for_it(seed: int) -> None:
    rng = random.Random(seed)
    schema: dict[str, Any] = {
        "type": "object",
        "allOf": [condition(rng) for _ in range(rng.randint(1, 3))],
        "patternProperties": {"^ab?$": {"enum": [1, None]}, "^b$": {"enum": [1, True, False]}},
        "additionalProperties": False,
        "minProperties": rng.randint(0, 2),
    }
    if rng.random() < 0.5:
        schema["maxProperties"] = rng.randint(1, 2)
    members = [[(key, value) for value in (1, None, True, False)] for key in KEYS]
    answers: list[Any] = [
        dict(chosen) for size in range(4) for keys in permutations(members, size) for chosen in product(*keys)
    ]
    compiled = compiled_or_empty(schema, answers)
    if compiled is not None:
        assert_exact(compiled, schema, answers)


EXACT = [
    {"not": {"propertyNames": {"not": {"const": "a4d"}}}, "patternProperties": {"^a": {"type": "integer"}}},
    {"not": {"propertyNames": {"not": {"enum": ["x", "y"]}}}, "maxProperties": 1},
    {
        "type": "array",
        "uniqueItems": True,
        "contains": {"type": "string", "pattern": "^a", "maxLength": 1},
        "items": {"type": "string", "pattern": "^[ab]$"},
        "minItems": 2,
    },
]


@pytest.mark.parametrize("schema", EXACT)
def test_what_needs_one_exact_value_is_closed_from_every_state(schema: dict[str, Any]) -> None:
    compiled = compile_json_schema(schema, SchemaOptions("flexible", "any", "any"))
    assert not [finding for finding in compiled.findings if finding.handling == "verified"]
    validator = jsonschema.Draft202012Validator(schema)
    for seed in range(6):
        walker = Walker(compiled.program, random.Random(seed), WalkStats(), may_verify=False)
        assert walker.walk(2 * seed, lambda answer: validator.is_valid(json.loads(answer)))


UNSATISFIABLE = [
    {
        "items": {
            "type": "array",
            "items": False,
            "prefixItems": [
                {
                    "type": "object",
                    "properties": {"a": {"type": "number"}, "b": {"allOf": [{"const": 1}, {"type": "null"}]}},
                    "required": ["a", "b"],
                }
            ],
        },
        "minItems": 2,
    },
    {"contains": {"const": None}, "minContains": 2, "unevaluatedItems": False},
    {"items": {"const": []}, "contains": {"type": "string"}, "minContains": 0, "minItems": 2},
    {"prefixItems": [{"const": 1}], "items": {"enum": [1.0]}, "minItems": 2},
    {"contains": {"type": "string", "pattern": "^(ab)*$", "maxLength": 2}, "minContains": 3},
    {
        "contains": {
            "type": "array",
            "prefixItems": [{"type": "string", "pattern": "^a", "maxLength": 0}],
            "minItems": 1,
        }
    },
]


@pytest.mark.parametrize("schema", UNSATISFIABLE)
def test_counts_that_different_items_cannot_reach_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_json_schema({"type": "array", "uniqueItems": True, **schema})


TWO_READINGS = [
    {"contains": {"type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 3}, "minContains": 2},
    {"items": {"anyOf": [{"type": "array", "uniqueItems": True, "minItems": 3}, {"type": "array", "minItems": 9}]}},
    {"items": {"type": "array", "uniqueItems": True, "items": {"type": "number"}, "minItems": 4}, "uniqueItems": True},
]


@pytest.mark.parametrize("schema", TWO_READINGS)
def test_a_new_item_is_found_where_a_repeated_one_may_be_read_in_another_way(schema: dict[str, Any]) -> None:
    schema = {"type": "array", "minItems": 2, **schema}
    compiled = compile_json_schema(schema, SchemaOptions("flexible", "any", "any"))
    validator = jsonschema.Draft202012Validator(schema)
    stats = WalkStats()
    for seed in range(12):
        walker = Walker(compiled.program, random.Random(seed), stats, may_verify=True)
        assert walker.walk(seed, lambda answer: validator.is_valid(json.loads(answer)))
    assert (stats.unclosed, stats.exhausted, stats.stuck) == (0, 0, 0)
