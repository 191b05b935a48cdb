"""Masks of many sequences at once are those of each alone, on any number of threads, and in a forked child."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from safegen._native import fill_batch
from safegen.grammars.constraint import MaskRows
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint, buffer_of
from safegen.grammars.vocabulary import Vocabulary

TOKENS = (
    [bytes([b]) for b in range(256)] + [b'{"', b'":', b'", "', b"name", b"12", b"true", b'a"', b" ", b"]}"] + [None]
)
STOP = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, [STOP])
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "maximum": 99}}},
    {"type": "array", "items": {"enum": ["a", "ab", True, 12]}, "uniqueItems": True, "maxItems": 3},
    {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)*$"},
    {"type": "object", "additionalProperties": {"type": ["number", "null"]}, "minProperties": 1},
]


def legal_ids(rows: MaskRows, row: int) -> list[int]:
    return [token for token, legal in enumerate(rows.bools(row)) if legal]


def walked(seed: int, count: int) -> list[NativeConstraint]:
    """Constraints in random states, several of each program."""
    rng = random.Random(seed)
    programs = [compile_json_schema(schema).program for schema in SCHEMAS]
    rows = MaskRows.allocate(1, len(TOKENS))
    constraints = []
    for number in range(count):
        constraint = NativeConstraint(programs[number % len(programs)], VOCABULARY)
        for _ in range(rng.randrange(12)):
            constraint.fill((), rows)
            choices = [token for token in legal_ids(rows, 0) if token != STOP]
            if not choices or constraint.advance([rng.choice(choices)]) is not None:
                break
        constraints.append(constraint)
    return constraints


def drafts_for(constraints: list[NativeConstraint], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    rows = MaskRows.allocate(1, len(TOKENS))
    drafts = []
    for constraint in constraints:
        constraint.fill((), rows)
        legal = legal_ids(rows, 0)
        drafts.append([rng.choice(legal), rng.randrange(len(TOKENS))][: rng.randrange(3)])
    return drafts


def check_batch(constraints: list[NativeConstraint], drafts: list[list[int]]) -> None:
    first_rows, total = [], 0
    for draft in drafts:
        first_rows.append(total)
        total += len(draft) + 1
    together = MaskRows.allocate(total, len(TOKENS))
    together.words.fill(-1)
    fill = constraints[0].batch_fill
    assert fill is not None
    assert fill(constraints, drafts, together, first_rows) == [None] * len(constraints)
    for constraint, draft, first_row in zip(constraints, drafts, first_rows, strict=True):
        alone = MaskRows.allocate(len(draft) + 1, len(TOKENS))
        constraint.fill(draft, alone)
        assert (together.words[first_row : first_row + len(draft) + 1] == alone.words).all()


def test_a_batch_has_the_rows_of_each_alone() -> None:
    constraints = walked(seed=1, count=60)
    check_batch(constraints, drafts_for(constraints, seed=2))


def test_batches_of_several_threads_do_not_meet() -> None:
    def work(seed: int) -> None:
        constraints = walked(seed=seed, count=24)
        for turn in range(10):
            check_batch(constraints, drafts_for(constraints, seed=100 * seed + turn))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()


def test_a_row_outside_of_the_buffer_is_refused() -> None:
    constraints = walked(seed=3, count=2)
    rows = MaskRows.allocate(2, len(TOKENS))
    matchers = [constraint._matcher for constraint in constraints]
    with pytest.raises(ValueError, match="row"):
        fill_batch(matchers, [[], [1]], buffer_of(rows), [0, 1])
    with pytest.raises(ValueError, match="draft"):
        fill_batch(matchers, [[]], buffer_of(rows), [0, 1])


def test_a_subclass_that_fills_in_its_own_way_is_not_batched() -> None:
    class Own(NativeConstraint):
        pass

    assert Own(compile_json_schema(SCHEMAS[0]).program, VOCABULARY).batch_fill is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_fills_without_the_threads() -> None:
    constraints = walked(seed=4, count=8)
    drafts = drafts_for(constraints, seed=5)
    check_batch(constraints, drafts)
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (2,)).start()
        try:
            check_batch(constraints, drafts)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
