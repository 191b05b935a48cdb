"""Tables for a device: along random walks their rows and states are the native machine's, bit by bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from safegen.grammars.constraint import MaskRows, TokenTable
from safegen.grammars.fsm import compile_fsm
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint, Program
from safegen.grammars.options import Limits
from safegen.grammars.regex import compile_choice, compile_regex
from safegen.grammars.token_table import TabledConstraint, explored
from tests.support.small_vocabulary import small_vocabulary

VOCABULARY = small_vocabulary()
STOP = VOCABULARY.size - 1
REGEXES = [r"a(bc)?", r"(a|b)*abb", r"\d{4}-\d{2}", r"(?:ab){2,5}c?", r"[^é]{1,3}", r"(?:é|😀)+", r"", r"a{2,}?b??"]
FLAT: list[Any] = [
    {"enum": ["ab", "aba", "é"]},
    {"type": "boolean"},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["ab", "bc", 1, None]}},
     "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"ab": {"type": "integer", "minimum": 0, "maximum": 12},
     "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}, "required": ["ab", "c"],
     "additionalProperties": False},
]  # fmt: skip


def choice_of(rng: random.Random) -> list[str]:
    return sorted({"".join(rng.choices("ab01_ -é😀", k=rng.randrange(1, 9))) for _ in range(rng.randrange(1, 30))})


def walk_together(table: TokenTable, constraint: Any, native: NativeConstraint, rng: random.Random) -> int:
    """Each row is the machine's, and so is where the constraint says that it stands. Returns how many tokens it was."""
    state, rows = 0, MaskRows.allocate(1, VOCABULARY.size)
    for count in range(200):
        native.fill((), rows)
        assert np.array_equal(rows.words[0], table.masks[state])
        assert constraint.table_state == state
        token = int(rng.choice(np.flatnonzero(rows.bools(0))))
        state = int(table.targets[state, table.classes[token]])
        native.advance([token])
        constraint.advance([token])
        if token == STOP:
            assert constraint.table_state == state
            assert np.flatnonzero(MaskRows(table.masks[state : state + 1], VOCABULARY.size).bools(0)).tolist() == [STOP]
            return count
    return 200


def refuses_what_is_illegal(table: TokenTable, rng: random.Random) -> None:
    """From everywhere an illegal token leads to an empty mask, and nothing leads away from there."""
    dead = len(table.masks) - 1
    assert not table.masks[dead].any() and (table.targets[dead] == dead).all()
    for state in range(dead):
        legal = MaskRows(table.masks[state : state + 1], VOCABULARY.size).bools(0)
        is_stopped = state == dead - 1
        assert ((table.targets[state, table.classes] == dead) == (~legal | is_stopped)).all()


@pytest.mark.parametrize("pattern", REGEXES)
def test_tables_of_regexes_are_the_machine(pattern: str) -> None:
    program = compile_regex(pattern)
    fsm = compile_fsm(pattern, program, Limits(max_fsm_states=400))
    table = fsm.table(VOCABULARY).token_table
    refuses_what_is_illegal(table, random.Random(1))
    for seed in range(25):
        walk_together(table, fsm.constraint(VOCABULARY), NativeConstraint(program, VOCABULARY), random.Random(seed))


def walk_explored(program: Program, walks: int) -> TokenTable:
    table = explored(program, VOCABULARY)
    assert table is not None
    refuses_what_is_illegal(table, random.Random(1))
    for seed in range(walks):
        constraint = TabledConstraint(program, VOCABULARY, table)
        walk_together(table, constraint, NativeConstraint(program, VOCABULARY), random.Random(seed))
    return table


@pytest.mark.parametrize("seed", range(12))
def test_tables_of_choices_are_the_machine(seed: int) -> None:
    walk_explored(compile_choice(choice_of(random.Random(seed))), 20)


@pytest.mark.parametrize("schema", FLAT, ids=range(len(FLAT)))
def test_tables_of_flat_schemas_are_the_machine(schema: Any) -> None:
    walk_explored(compile_json_schema(schema).program, 40)


def test_states_that_lead_to_the_same_places_are_one() -> None:
    """Of twelve values of two letters, what is left after the first letter is the same."""
    table = walk_explored(compile_choice([a + b for a in "0123" for b in "xyz"]), 5)
    assert len(table.masks) == 3 + 2
    assert table.targets.shape[1] < 8


@pytest.mark.parametrize(
    "program",
    [
        compile_choice(["_" * 129, "b"]),
        compile_regex(r"[^é]+"),
        compile_regex(r"\d{9}"),
        compile_json_schema({"type": "string"}).program,
    ],
    ids=["long", "endless", "too many", "free string"],
)
def test_large_languages_have_no_table(program: Program) -> None:
    assert explored(program, VOCABULARY) is None


def test_a_draft_is_masked_as_by_the_machine_and_forks_go_their_own_ways() -> None:
    program = compile_choice(["abab", "abc", "a01"])
    table = explored(program, VOCABULARY)
    assert table is not None
    tabled, native = TabledConstraint(program, VOCABULARY, table), NativeConstraint(program, VOCABULARY)
    for draft in ([97, 98, 99], [97, 99, 98], [98], [], [97, 48, 49, STOP]):
        ours, theirs = (
            MaskRows.allocate(len(draft) + 1, VOCABULARY.size),
            MaskRows.allocate(len(draft) + 1, VOCABULARY.size),
        )
        ours.words.fill(-1)
        assert tabled.fill(draft, ours) == native.fill(draft, theirs)
        assert np.array_equal(ours.words, theirs.words)
    fork = tabled.fork()
    fork.advance([97])
    assert (tabled.table_state, fork.table_state) == (0, int(table.targets[0, table.classes[97]]))
