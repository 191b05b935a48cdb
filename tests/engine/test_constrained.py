"""A thousand constrained generations with random logits: whatever the model adores, what ends is valid.

Fifty schemas, twenty requests each, all in one engine: greedy and sampled, with small and ample budgets, over a
vocabulary of all bytes and some longer tokens. Each answer is judged by `jsonschema`, which shares no code with the
constraint machine.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from safegen._native import Builder, Predicate
from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.request import FinishedEvent, Request, SamplingParams
from safegen.grammars.constraint import ConstraintViolation
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from tests.support.engine_driver import Outcomes, check, collect

REPEATS = 20
PIECES = (
    b'{"', b'":', b'","', b'"},{"', b"[[", b"]]", b"}}", b"true", b"false", b"null", b"name", b'"name":', b"id",
    b"value", b"2024-", b"-01-", b"00", b"12", b"\\n", b"\\u00", b'\\"', b"the ", b" and", "é".encode(),
    "日本".encode(), "😀".encode(), b"red", b"green", b"http://", b"@", b".com", b"abc", b"kids", b"items", b"1e5",
    b"0.5", b"-1",
)  # fmt: skip
STOP_ID = 0
TOKEN_BYTES: list[bytes | None] = [None, *(bytes([byte]) for byte in range(256)), *PIECES, None]


def schemas() -> list[Any]:
    scalars: list[Any] = [
        {"type": "integer"},
        {"type": "integer", "minimum": 10, "maximum": 99},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "maxLength": 8},
        {"type": "string", "minLength": 3, "maxLength": 5},
        {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$", "maxLength": 12},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
        {"type": "boolean"},
        {"enum": ["red", "green", "blue", 7, None]},
        {"const": {"a": [1, "x"]}},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}]},
    ]
    made = list(scalars)
    made += [{"type": "array", "items": inner, "minItems": 1, "maxItems": 3} for inner in scalars]
    for first, second in zip(scalars, scalars[1:] + scalars[:1]):
        made.append(
            {
                "type": "object",
                "properties": {"name": first, "value": second, "id": {"type": "integer"}},
                "required": ["name", "value"],
                "additionalProperties": False,
            }
        )
    made += [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
        {"allOf": [{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                   {"properties": {"name": {"type": "string"}}, "required": ["name"]}]},
        {"$ref": "#/$defs/node", "$defs": {"node": {
            "type": "object", "required": ["value", "kids"], "additionalProperties": False,
            "properties": {"value": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        }}},
        {"type": "array", "items": {"type": "array", "items": {"type": "array"}}},
        {"type": "object", "properties": {f"k{i}": {"type": "boolean"} for i in range(12)},
         "required": [f"k{i}" for i in range(12)], "additionalProperties": False},
        True,
        {"type": "string"},
    ]  # fmt: skip
    return made


class RandomLogits:
    """A model that adores some thirty tokens of each row, legal or not."""

    vocab_size = len(TOKEN_BYTES)
    max_context = 1024
    takes_masks = False

    def bytes_per_block(self, block_size: int) -> int:
        return 1

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.rng = np.random.default_rng(3)

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        logits = self.rng.standard_normal((len(batch.sampled_rows), self.vocab_size), dtype=np.float32)
        for row in logits:
            row[self.rng.integers(0, self.vocab_size, 30)] += 40.0
        return logits

    def copy_block(self, source: int, destination: int) -> None:
        pass


def test_all_that_ends_is_valid_and_all_that_could_be_closed_is_closed() -> None:
    rng = random.Random(9)
    specs = schemas()
    assert len(specs) == 50
    core = EngineCore(RandomLogits(), TOKEN_BYTES, EngineConfig(kv_cache_memory=2000, max_num_seqs=64))
    vocabulary = Vocabulary(TOKEN_BYTES, [STOP_ID])
    programs = [compile_json_schema(spec).program for spec in specs]
    closable: dict[str, bool] = {}
    for number in range(len(specs) * REPEATS):
        constraint = NativeConstraint(programs[number % len(specs)], vocabulary)
        max_tokens = rng.choice([3, 12, 40, 80])
        closable[str(number)] = len(constraint.shortest_completion()) <= max_tokens
        params = SamplingParams(max_tokens=max_tokens, temperature=rng.choice([0.0, 1.0, 3.0]), seed=number)
        core.add(Request(str(number), (1, 2, 3), params, frozenset({STOP_ID}), constraint))
    outcomes: Outcomes = {}
    for _ in range(4000):
        collect(core.step(), outcomes)
        if not core.has_work:
            break
    check(core)
    seen: Counter[str] = Counter()
    for (request_id, _), outcome in outcomes.items():
        finished = outcome.finished
        assert finished is not None, "a request stalled"
        seen[judge(specs[int(request_id) % len(specs)], outcome.token_ids, finished, closable[request_id])] += 1
    assert sum(seen.values()) == len(specs) * REPEATS
    assert min(seen["stop"], seen["closed"]) > 150 and seen["cut"] > 50, seen


def judge(spec: Any, token_ids: list[int], finished: FinishedEvent, closable: bool) -> str:
    text = b"".join(TOKEN_BYTES[token_id] or b"" for token_id in token_ids)
    assert finished.error is None, finished.error
    assert finished.text_bytes == len(text)
    if finished.finish_reason == "length" and not finished.forced_close:
        assert not closable, f"{text!r} could have been closed for {spec}"
        return "cut"
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    try:
        jsonschema.Draft202012Validator(spec, format_checker=checker).validate(
            json.loads(text, parse_float=Decimal)  # a binary float would take 1e-999 for 0
        )
    except (ValueError, jsonschema.ValidationError) as error:
        pytest.fail(f"{text!r} is not valid for {spec}: {error}")
    return "closed" if finished.forced_close else "stop"


def test_every_token_of_a_machine_without_verified_nodes_is_settled_at_once() -> None:
    vocabulary = Vocabulary(TOKEN_BYTES, [STOP_ID])
    constraint = NativeConstraint(compile_json_schema({"type": "boolean"}).program, vocabulary)
    assert constraint.settled() == 0
    first, *rest = constraint.shortest_completion()
    constraint.advance([first])
    fork = constraint.fork()
    fork.advance(rest)
    assert (constraint.settled(), fork.settled()) == (1, 1 + len(rest))
    with pytest.raises(ConstraintViolation):
        constraint.advance([TOKEN_BYTES.index(b"z")])
    assert constraint.settled() == 1


@pytest.mark.parametrize("max_tokens", [4, 9, 40])
def test_answers_that_the_native_machine_takes_back_end_with_items_that_differ(max_tokens: int) -> None:
    builder = Builder()
    row = builder.array([], builder.lexeme(builder.strings([b"1", b"2", b"3"])), 2, 3)
    rows = builder.array([], builder.verified(row, Predicate.unique_items()), 2, 2)
    program = builder.build(builder.verified(rows, Predicate.unique_items()))
    core = EngineCore(RandomLogits(), TOKEN_BYTES, EngineConfig(kv_cache_memory=2000, max_num_seqs=64))
    vocabulary = Vocabulary(TOKEN_BYTES, [STOP_ID])
    closable = len(NativeConstraint(program, vocabulary).shortest_completion()) <= max_tokens
    bias = {TOKEN_BYTES.index(piece): 60.0 for piece in (b"1", b"2", b"]", b",", b"[")}
    for number_of in range(60):
        params = SamplingParams(max_tokens=max_tokens, temperature=2.0, seed=number_of, logit_bias=bias)
        constraint = NativeConstraint(program, vocabulary)
        core.add(Request(str(number_of), (1, 2, 3), params, frozenset({STOP_ID}), constraint))
    outcomes: Outcomes = {}
    for _ in range(4000):
        collect(core.step(), outcomes)
        check(core)
        if not core.has_work:
            break
    for outcome in outcomes.values():
        text = b"".join(TOKEN_BYTES[token_id] or b"" for token_id in outcome.token_ids)
        assert outcome.finished is not None and outcome.finished.error is None
        if outcome.reason == "stop" or closable:
            first, second = json.loads(text)
            assert first != second and len(set(first)) == len(first) and len(set(second)) == len(second)
    assert len(outcomes) == 60 and (core.stats().retracts > 10 or max_tokens == 4)
    assert core.stats().free_blocks == core.stats().num_blocks
