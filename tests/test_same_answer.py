"""Greedy answers of the default model do not depend on company, cache, chunks or preemption: through the public API,
with real output types, logits bitwise. (tests/engine/test_runner.py holds the same for sampled and forked requests,
tests/test_speculation.py for drafts.)
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from safegen.engine.core import EngineCore
from safegen.engine.sequence import Sequence
from safegen.engine.step import StepMasks, StepPlan
from safegen.llm import LLM
from safegen.types import Choice, JsonSchema, Regex

Rows = dict[tuple[tuple[int, ...], int], bytes]
TOKEN_BYTES = 23_040  # of the default model's cache, in float16


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)


KINDS: list[Any] = [
    Person, None, Regex(r"(19|20)\d\d"), Choice(["good", "bad"]), Literal["yes", "no"], None,
    JsonSchema({"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3}),
    JsonSchema({"type": "object", "additionalProperties": {"type": "boolean"}}),
]  # fmt: skip
ROWS: list[Any] = [(f"Number {place}: Maria Lopez, 34, Lisbon", KINDS[place % 8]) for place in range(32)]


def looked_at(row: NDArray[np.float32], sequence: Sequence, plan: StepPlan, masks: StepMasks) -> NDArray[np.float32]:
    place = masks.row(sequence, 0, plan.step_id)
    if place is None:
        return row
    bits = np.unpackbits(masks.rows.words[place].view(np.uint8), bitorder="little")
    legal = np.flatnonzero(bits)
    return row[legal] if len(legal) > 1 else row[:0]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Digests of the logits of every sampled row that somebody looks at, by prompt and output position: of legal ids,
    where there is more than one."""
    rows: Rows = {}
    finish = EngineCore._finish

    def record_and_finish(core: EngineCore, plan: Any, logits: Any, masks: Any) -> Any:
        sampled = [span.sequence for span in plan.spans for _ in range(span.num_sampled)]
        for sequence, row in zip(sampled, logits, strict=True):
            key = (sequence.request.prompt_ids, sequence.num_output_tokens)
            digest = hashlib.blake2b(looked_at(row, sequence, plan, masks).tobytes()).digest()
            assert rows.setdefault(key, digest) == digest, f"logits differ at output token {key[1]}"
        return finish(core, plan, logits, masks)

    monkeypatch.setattr(EngineCore, "_finish", record_and_finish)
    monkeypatch.setattr("safegen.engine.ahead._MAX_STEPS", 1)  # of steps computed ahead only the last shows its rows
    return rows


def answers(rows: list[Any], max_tokens: int, **settings: Any) -> tuple[list[tuple[str, str]], int]:
    """(status, text) of each row, and how often a sequence was preempted."""
    with LLM(speculation=False, **settings) as llm:  # a row a token, to compare
        results = llm.batch(rows, max_tokens=max_tokens, show_schema=False)
        engine: Any = llm._runtime._engine
        return [(result.status, result.text) for result in results], engine.stats().preemptions


def test_greedy_answers_and_logits_are_those_of_the_request_alone(recorded: Rows) -> None:
    alone, _ = answers(ROWS, 8, max_num_seqs=1, enable_prefix_caching=False)
    assert {status for status, _ in alone} == {"ok", "truncated"}
    num_rows = len(recorded)
    together, _ = answers(ROWS, 8)
    chunked, _ = answers(ROWS[:12], 8, max_num_seqs=5, max_num_batched_tokens=7)
    assert together == alone
    assert chunked == alone[:12]
    assert len(recorded) == num_rows, "a row was computed that the request alone had no need of"


def test_preempted_greedy_answers_and_logits_are_those_of_the_request_alone(recorded: Rows) -> None:
    rows = [row for row in ROWS if row[1] in (Person, None)][:6]  # each grows from 42 tokens to 66
    alone, _ = answers(rows, 24, max_num_seqs=1)
    for caching in (True, False):
        preempted, num_preemptions = answers(
            rows, 24, block_size=4, kv_cache_memory=140 * TOKEN_BYTES, enable_prefix_caching=caching
        )
        assert preempted == alone
        assert num_preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.3])
def test_answers_computed_ahead_are_those_of_single_steps(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in ROWS if row[1] is None][:3]
    sampling: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 30, "show_schema": False}
    found = []
    with LLM() as llm:
        engine: Any = llm._runtime._engine
        lookahead = engine._loop.core._ahead
        forward, calls = lookahead.forward, []
        monkeypatch.setattr(lookahead, "forward", lambda *args: calls.append(1) or forward(*args))
        monkeypatch.setattr("safegen.engine.ahead._SECONDS_AHEAD", 10.0)
        for most in (1, 8):
            monkeypatch.setattr("safegen.engine.ahead._MAX_STEPS", most)
            results = llm.batch(rows, **sampling) + llm.batch(rows[:1], n=2, **sampling)
            found.append([(result.status, result.text) for result in results])
            assert bool(calls) == (most > 1)
    assert found[0] == found[1]
