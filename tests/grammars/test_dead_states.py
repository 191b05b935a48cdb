"""States of verified nodes that no text leads on from: they are taken back at once, and no other state is.

The mask of an open verified node holds a part of what the node asks for. A state in it that is legal and yet dead once
stood until the node closed, and no completion was known as long as it stood.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from safegen._native import Program
from safegen.errors import SchemaError
from safegen.grammars.constraint import MaskRows
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits, SchemaOptions
from safegen.validation import SchemaValidator
from tests.grammars.random_schemas import SchemaGenerator
from tests.grammars.walking import VOCABULARY, Walker, WalkStats, text_of

FREE = SchemaOptions("flexible", "any", "any")
ANY_ORDER = SchemaOptions(property_order="any")
NO_LIST = {"type": "array", "items": {"const": 1}, "contains": {"type": "string"}}
LISTED: dict[str, Any] = {"enum": [[], {}, [{}], ["ab", None]]}
NUMBERS_AND_TEXTS = {
    "type": "array",
    "maxItems": 1,
    "items": {
        "oneOf": [
            {"not": {"enum": ["ab"]}, "oneOf": [{"type": "string"}, {"type": "integer"}]},
            True,
            {"type": "object", "oneOf": [{"required": ["b"]}, {"required": ["c"]}]},
        ]
    },
}
NEEDS_ANOTHER_KEY = {
    "anyOf": [{"properties": {"q": {"type": "array"}}}, {"required": ["b"]}],
    "type": "object",
    "patternProperties": {
        "^[ab]$": {
            "type": "object",
            "properties": {"b": {"type": "integer", "maximum": -4}},
            "unevaluatedProperties": False,
        }
    },
    "additionalProperties": False,
    "dependentRequired": {"b": ["q"]},
}

# The schema, how it is read, the alternatives it may have, and a text whose last byte makes it dead.
DEAD: dict[str, tuple[dict[str, Any], SchemaOptions, int, str]] = {
    "an item beside the only one there is": (
        {"type": "array", "uniqueItems": True, "items": {"type": "array", "items": NO_LIST}}, FREE, 4096, "[ [ ] ,"),
    "an item beside the only one that counts": (
        {"type": "array", "contains": {"type": "object", "maxProperties": 0}, "uniqueItems": True, "minItems": 1,
         "unevaluatedItems": False}, FREE, 4096, "[{} ,"),
    "a kind of value that no branch takes": (
        {"if": {"type": "integer", "minimum": -15}, "then": {"type": "integer"}, "else": LISTED, **LISTED}, FREE, 4,
         "4"),
    "a key that needs one that may not be": (NEEDS_ANOTHER_KEY, ANY_ORDER, 4, '{"a":{},'),
    "a text that two branches take": (NUMBERS_AND_TEXTS, FREE, 1, '["aé'),
    "a number that cannot but be an integer": (NUMBERS_AND_TEXTS, FREE, 1, "[12409E+"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEAD)
def test_dead_state_is_taken_back_at_once(name: str) -> None:
    schema, options, max_alternatives, text = DEAD[name]
    compiled = compile_json_schema(schema, options, Limits(max_alternatives=max_alternatives))
    assert "verified" in {finding.handling for finding in compiled.findings}
    constraint, validator = NativeConstraint(compiled.program, VOCABULARY), SchemaValidator(schema)
    begun = [text.encode()[:place] for place in range(len(text.encode()))]
    # A character of several bytes may be dead from its first byte on.
    last = next(place for place, byte in enumerate(text.encode()) if byte > 127 or place == len(text.encode()) - 1)
    for prefix in begun[: last + 1]:
        assert constraint.text() == prefix
        validator.validate(prefix + text_of(constraint.shortest_completion()))
        retract = constraint.advance([text.encode()[len(prefix)]])
    assert retract is not None
    rows = MaskRows.allocate(1, VOCABULARY.size)
    constraint.fill((), rows)
    assert rows.bools(0).any()
    validator.validate(constraint.text() + text_of(constraint.shortest_completion()))


def verified_programs(seeds: range, max_alternatives: int) -> Iterator[tuple[Program, Program]]:
    """Of random schemas the program that verifies, and the one that holds all of it in the mask."""
    options = (FREE, ANY_ORDER, SchemaOptions("flexible", spelling="any"), SchemaOptions())
    for seed in seeds:
        schema = SchemaGenerator(random.Random(seed)).document()
        try:
            exact = compile_json_schema(schema, options[seed % 4])
            loose = compile_json_schema(schema, options[seed % 4], Limits(max_alternatives=max_alternatives))
        except SchemaError:
            continue
        if any(finding.handling == "verified" for finding in loose.findings):
            yield loose.program, exact.program


def test_text_that_passes_is_never_taken_back(full: bool) -> None:
    num_texts = 0
    for number, (loose, exact) in enumerate(verified_programs(range(3000 if full else 120), 2)):
        rng = random.Random(number)
        text = Walker(exact, rng, WalkStats(), may_verify=True).walk(rng.randrange(20))
        if not loose.matches(text):
            continue
        num_texts += 1
        constraint = NativeConstraint(loose, VOCABULARY)
        for place, byte in enumerate(text):
            assert constraint.advance([byte]) is None, (text, place)
        assert constraint.can_end()
    assert num_texts >= (200 if full else 5)


def test_values_that_must_repeat_are_completed_by_a_copy() -> None:
    schema = {"type": "array", "items": {"type": "object", "required": ["name"]}, "not": {"uniqueItems": True}}
    constraint = NativeConstraint(compile_json_schema(schema, FREE).program, VOCABULARY)
    constraint.advance(list(b'[{"name":"Maria","n":12},{"na'))
    text = constraint.text() + text_of(constraint.shortest_completion())
    SchemaValidator(schema).validate(text)
