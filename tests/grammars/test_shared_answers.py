"""What constraints of one program share: the forced bytes that each would find by itself, and as short an end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from safegen.grammars.constraint import MaskRows, NoCompletion
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary

TOKENS = (
    [bytes([b]) for b in range(256)] + [b'{"', b'":', b'","', b"name", b"12", b"true", b'a"', b"},{", b"]}"] + [None]
)
STOP = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, [STOP])
ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 3, "maximum": 140}},
    "required": ["name", "n"],
    "additionalProperties": {"enum": ["x", "y"]},
}
SCHEMAS: list[Any] = [
    {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 3},
    {"anyOf": [ITEM, {"type": "object", "properties": {"name": {"const": "na"}}, "required": ["name"]}]},
    {"type": "array", "items": {"enum": ["a", "ab", 12]}, "uniqueItems": True, "minItems": 2},
    {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]{2,})*$"},
    {"type": "array", "contains": {"const": "a"}, "minContains": 2, "items": {"enum": ["a", "b"]}},
    {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "$ref": "#/$defs/t"},
]


def completion_of(constraint: NativeConstraint) -> tuple[int, ...] | None:
    try:
        return constraint.shortest_completion()
    except NoCompletion:
        return None


def num_bytes(completion: tuple[int, ...] | None) -> int | None:
    return None if completion is None else sum(len(TOKENS[token] or b"") for token in completion)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_what_is_shared_is_what_each_finds_alone(schema: Any) -> None:
    rng = random.Random(3)
    shared_program, rows = compile_json_schema(schema).program, MaskRows.allocate(1, len(TOKENS))
    num_completed = 0
    for walk in range(12):
        alone = NativeConstraint(compile_json_schema(schema).program, VOCABULARY, cache_bytes=0)
        shared = NativeConstraint(shared_program, VOCABULARY)
        for _ in range(30):
            assert shared.forced() == alone.forced()
            completion = completion_of(shared)
            assert num_bytes(completion) == num_bytes(completion_of(alone)), (walk, shared.text())
            if completion is not None:
                end = shared.fork()
                assert end.advance(completion) is None and end.can_end()
                assert completion_of(shared) == completion
            shared.fill((), rows)
            legal = [token for token, is_legal in enumerate(rows.bools(0)) if is_legal and token != STOP]
            if not legal:
                break
            near = completion and rng.random() < 0.5
            token = completion[0] if completion and near else rng.choice(legal)
            if shared.advance([token]) != alone.advance([token]):
                raise AssertionError(f"they part after {shared.text()!r}")
        num_completed += completion is not None
    assert num_completed
