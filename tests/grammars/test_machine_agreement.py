"""The native machine and its twin give one verdict: on case texts, on small changes of them, on random schemas."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from safegen._native import LimitExceeded
from safegen.errors import SchemaError
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import SchemaOptions
from tests.grammars.conftest import FACTORIES
from tests.grammars.test_cases import rows

SEED = 41
BYTES = b'{}[]",:0159-+.eE\\untrfalsb \n\xc3\xa9a'


def changes(text: bytes, rng: random.Random) -> list[bytes]:
    """Texts one edit away: a byte dropped, put in, or changed; a part written twice."""
    at, other, byte = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1), bytes([rng.choice(BYTES)])
    low, high = min(at, other), max(at, other)
    return [text[:at] + text[at + 1 :], text[:at] + byte + text[at:], text[:at] + byte + text[at + 1 :],
            text[:high] + text[low:]]  # fmt: skip


def assert_agreement(schema: Any, options: SchemaOptions, texts: list[bytes]) -> None:
    native, twin = (
        compile_json_schema(schema, options, make_builder=factory).program for factory in FACTORIES.values()
    )
    assert [text for text in texts if native.matches(text) != twin.matches(text)] == []


@pytest.mark.parametrize("row", [row for row in rows() if row["kind"] == "schema"], ids=lambda row: row["id"])
def test_machines_agree_on_changed_case_texts(row: dict[str, Any]) -> None:
    rng = random.Random(f"{SEED} {row['id']}")
    texts = [text.encode(errors="surrogatepass") for text in row["accept"] + row["reject"] if len(text) < 400]
    texts += [changed for text in texts for changed in changes(text, rng)]
    try:
        for options in (SchemaOptions(**row["options"]), SchemaOptions("flexible", "any", "any")):
            assert_agreement(row["spec"], options, texts)
    except SchemaError:
        assert row["expect"] != "enforce" or "contains" in str(row["spec"]) or "uniqueItems" in str(row["spec"])


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    leaf = [
        {"type": "integer", "minimum": rng.randrange(-12, 3), "maximum": rng.randrange(3, 120)},
        {"type": "number", "exclusiveMinimum": rng.choice([-0.5, 0, 1.25]), "multipleOf": rng.choice([0.25, 0.1, 3])},
        {"type": "string", "pattern": rng.choice(["^a", "b$", "^[ab]{1,2}$", "é"]), "maxLength": rng.randrange(1, 4)},
        {"enum": rng.sample([None, True, 0, 1.5, "a", "ab", [1], {"a": 1}], 3)},
        {"type": rng.choice(["null", "boolean", "string", ["integer", "string"]])},
    ]
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(leaf)
    inner = [random_schema(rng, depth + 1) for _ in range(3)]
    names = rng.sample(["a", "b", "ab", 'q"'], 2)
    return rng.choice(
        [
            {"type": "object", "properties": dict(zip(names, inner)), "required": rng.sample(names, 1)},
            {"type": "object", "additionalProperties": inner[0], "maxProperties": 2, "minProperties": 1},
            {"type": "object", "patternProperties": {"^a": inner[0]}, "additionalProperties": inner[1]},
            {"type": "array", "items": inner[0], "minItems": rng.randrange(2), "maxItems": 2},
            {"type": "array", "prefixItems": inner[:2], "items": rng.choice([False, inner[2]])},
            {"type": "array", "items": inner[0], "uniqueItems": True, "maxItems": 3},
            {"type": "array", "contains": inner[0], "maxContains": rng.randrange(1, 3), "prefixItems": [inner[1]]},
            {"type": "array", "contains": inner[0], "minContains": 2, "uniqueItems": rng.random() < 0.5},
            {"anyOf": inner[:2]},
            {"oneOf": inner[:2]},
            {"allOf": [{"not": inner[0]}, inner[1]]},
            {"if": inner[0], "then": inner[1], "else": inner[2]},
        ]
    )


def random_value(rng: random.Random, depth: int = 0) -> Any:
    scalars = [None, True, False, 0, 1, -3, 7, 100, 1.5, 0.3, "", "a", "ab", "b", "é", 'q"']
    if depth > 2 or rng.random() < 0.5:
        return rng.choice(scalars)
    if rng.random() < 0.4:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {name: random_value(rng, depth + 1) for name in rng.sample(["a", "b", "ab", "z", 'q"'], rng.randrange(4))}


@pytest.mark.parametrize("block", range(4))
def test_machines_agree_on_random_schemas(block: int) -> None:
    rng = random.Random(SEED * 100 + block)
    compiled = refused = 0
    while compiled < 15:
        schema = random_schema(rng)
        values = [random_value(rng) for _ in range(30)]
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() for value in values]
        texts += [changed for text in texts[:10] for changed in changes(text, rng)]
        options = rng.choice([SchemaOptions(), SchemaOptions("flexible", "any", "any"), SchemaOptions(spelling="any")])
        try:
            assert_agreement(schema, options, texts)
        except (SchemaError, LimitExceeded):
            refused += 1
            continue
        compiled += 1
    assert refused < compiled


@pytest.mark.parametrize("block", range(4))
def test_verdicts_on_random_schemas_are_those_of_a_validator(block: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rng = random.Random(SEED * 1000 + block)
    compiled = 0
    while compiled < 60:
        schema = random_schema(rng)
        try:
            program = compile_json_schema(schema, SchemaOptions("flexible", "any", "any")).program
        except SchemaError:
            continue
        compiled += 1
        validator = jsonschema.Draft202012Validator(schema)
        for value in (random_value(rng) for _ in range(40)):
            if not any(isinstance(number, float) for number in flat(value)):  # its multipleOf is binary
                text = json.dumps(value, ensure_ascii=False).encode()
                try:
                    verdict = program.matches(text)
                except LimitExceeded:  # typed, and told; never a wrong verdict
                    continue
                assert verdict == validator.is_valid(value), (schema, value)


def flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [leaf for item in value for leaf in flat(item)]
    return [leaf for item in value.values() for leaf in flat(item)] if isinstance(value, dict) else [value]
