"""The shortest completion hangs on the text alone: not on what a program was asked before, nor on how it was written.

A program is shared by requests and learns as it is asked; an answer closed for want of tokens must not show that.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from safegen.errors import SafegenError
from safegen.grammars.constraint import MaskRows, NoCompletion
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import SchemaOptions
from tests.grammars.random_schemas import SchemaGenerator
from tests.grammars.walking import STOP, VOCABULARY, text_of

_TIES = (
    {"type": "string", "pattern": "^(ab|ba|cd|dc)(xy|yx)*(z1|1z)$"},
    {"enum": ["delta", "alpha", "gamma", "bravo", "kappa"]},
    {"type": "string", "format": "date"},
    {"type": "string", "allOf": [{"pattern": "^[a-f]{3}"}, {"pattern": "[c-z]{2}$"}, {"not": {"pattern": "d"}}]},
    {"type": "integer", "minimum": 17, "maximum": 93, "multipleOf": 4},
    {"type": "object", "required": ["b", "a"], "properties": {"a": {"enum": ["no", "on"]}, "b": {"enum": [21, 12]}}},
)


def completions(schema: Any, paths: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...] | None]:
    """What a fresh program answers after each path, asked in this order."""
    program = compile_json_schema(schema, SchemaOptions(whitespace="compact")).program
    answers: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for path in paths:
        constraint = NativeConstraint(program, VOCABULARY)
        constraint.advance(path)
        try:
            answers[path] = tuple(constraint.shortest_completion())
        except NoCompletion:
            answers[path] = None
    return answers


def walked_paths(schema: Any, rng: random.Random) -> list[tuple[int, ...]]:
    """Beginnings of a few random legal walks."""
    program = compile_json_schema(schema, SchemaOptions(whitespace="compact")).program
    paths: set[tuple[int, ...]] = {()}
    rows = MaskRows.allocate(1, VOCABULARY.size)
    for _ in range(4):
        constraint = NativeConstraint(program, VOCABULARY)
        path: tuple[int, ...] = ()
        for _ in range(rng.randrange(12)):
            constraint.fill((), rows)
            legal = [token for token in np.flatnonzero(rows.bools(0)).tolist() if token != STOP]
            if not legal:
                break
            token = rng.choice(legal)
            if constraint.advance((token,)) is not None:
                break
            path = (*path, token)
            paths.add(path)
    return sorted(paths)


def assert_same_in_any_order(schema: Any, rng: random.Random) -> int:
    paths = walked_paths(schema, rng)
    asked = completions(schema, paths)
    for order in (paths[::-1], rng.sample(paths, len(paths))):
        assert completions(schema, order) == asked, json.dumps(schema)
    return len(paths)


@pytest.mark.parametrize("schema", _TIES, ids=lambda schema: json.dumps(schema)[:60])
def test_ties_fall_the_same_whatever_was_asked_before(schema: dict[str, Any]) -> None:
    for seed in range(5):
        assert_same_in_any_order(schema, random.Random(seed))


def test_shortest_texts_of_random_schemas_do_not_hang_on_what_was_asked_before(full: bool) -> None:
    asked = 0
    for seed in range(400 if full else 60):
        rng = random.Random(seed)
        try:
            asked += assert_same_in_any_order(SchemaGenerator(rng).document(), rng)
        except SafegenError:
            continue  # refused, or without any text
    assert asked > (2000 if full else 300)


@pytest.mark.parametrize(
    ("first", "second"), [("^(?:b|a)(?:y|x)$", "^(?:a|b)(?:x|y)$"), ("^(?:cab|abc|bca)$", "^(?:abc|bca|cab)$")]
)
def test_one_language_written_in_two_ways_is_completed_alike(first: str, second: str) -> None:
    schemas = [{"type": "string", "pattern": pattern} for pattern in (first, second)]
    assert completions(schemas[0], [()]) == completions(schemas[1], [()])
    both = {"type": "array", "prefixItems": schemas, "minItems": 2, "items": False}
    (rest,) = completions(both, [()]).values()
    assert rest is not None
    one, other = json.loads(text_of(rest))
    assert one == other


@pytest.mark.parametrize(
    "members",
    [
        ('"":0', '"b":0'),
        ('"":0,"b":0', '"b":0,"a":0'),
        ('"":0', '"a":0'),
        ('"\\u0001":0', '"b":0'),
    ],
)
def test_objects_that_hold_other_keys_are_other_states(members: tuple[str, str]) -> None:
    """An empty unlisted key and a listed one once looked alike to what is kept by state."""
    schema = {"type": "object", "required": ["b"], "properties": {"a": {}}}
    program = compile_json_schema(schema, SchemaOptions("compact", "any", "any")).program
    for text in ("{" + member for member in members):
        fresh = compile_json_schema(schema, SchemaOptions("compact", "any", "any")).program
        shared, own = (NativeConstraint(each, VOCABULARY) for each in (program, fresh))
        rows = [MaskRows.allocate(1, VOCABULARY.size) for _ in range(2)]
        for constraint, row in ((shared, rows[0]), (own, rows[1])):
            constraint.advance(tuple(text.encode()))
            constraint.fill((), row)
        assert shared.shortest_completion() == own.shortest_completion(), text
        assert (rows[0].words == rows[1].words).all(), text
        assert shared.forced() == own.forced(), text
