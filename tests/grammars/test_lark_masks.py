"""Masks of grammars equal brute force: a token is legal exactly when the text with it can still become an answer."""

from __future__ import annotations

import random
from time import perf_counter

import pytest

from safegen.errors import GrammarError
from safegen.grammars.constraint import MaskRows, NoCompletion
from safegen.grammars.gbnf import from_gbnf
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from tests.grammars import walking
from tests.grammars.lark_oracle import random_grammar, words

TOKENS = [text.encode() for text in words("abA ", 3) if text]
STOP = len(TOKENS)
VOCABULARY = Vocabulary([*TOKENS, None], [STOP])


def check_walk(grammar: str, rng: random.Random) -> None:
    program = compile_grammar(grammar).program
    constraint = NativeConstraint(program, VOCABULARY)
    text = b""
    rows = MaskRows.allocate(1, VOCABULARY.size)
    for _ in range(6):
        constraint.fill((), rows)
        mask = rows.bools(0)
        legal = [index for index, token in enumerate(TOKENS) if mask[index]]
        wanted = [
            index for index, token in enumerate(TOKENS) if program.longest_prefix(text + token) == len(text + token)
        ]
        assert legal == wanted, (grammar, text)
        assert bool(mask[STOP]) == program.matches(text), (grammar, text)
        assert mask.any(), (grammar, text)
        rest = b"".join(TOKENS[token] for token in constraint.shortest_completion())
        assert program.matches(text + rest), (grammar, text)
        if not legal:
            return
        choice = rng.choice(legal)
        constraint.advance((choice,))
        text += TOKENS[choice]


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_masks_of_random_grammars_equal_brute_force(first: int) -> None:
    checked = 0
    for seed in range(first, first + 30):
        rng = random.Random(f"masks {seed}")
        grammar = random_grammar(rng, seed % 2 == 0)
        try:
            check_walk(grammar, rng)
            checked += 1
        except GrammarError:
            continue
    assert checked > 15


def test_calls_of_calls_with_exponentially_many_paths_cost_linear_time() -> None:
    depth = 60
    rules = "".join(f"r{i}: r{i + 1} | s{i + 1} | /q{i}/\ns{i}: r{i + 1} | s{i + 1} | /p{i}/\n" for i in range(depth))
    grammar = f'start: r0\n{rules}r{depth}: "x" t\ns{depth}: "x" t "z"\nt: "y" | "(" t ")"\n'
    program = compile_grammar(grammar).program
    assert program.matches(b"x((y))z")
    constraint = NativeConstraint(program, Vocabulary([b"x", b"(", b")", b"y", b"z", b"p", b"q", b"1", None], [8]))
    constraint.advance((0, 1))
    rows = MaskRows.allocate(1, 9)
    constraint.fill((), rows)
    assert [index for index in range(9) if rows.bools(0)[index]] == [1, 3]
    assert constraint.shortest_completion() == (3, 2)


def test_text_of_any_depth_costs_no_native_stack() -> None:
    program = compile_grammar('start: item\nitem: "(" item ")" | "a" item? | "[" item "]" item').program
    constraint = NativeConstraint(program, Vocabulary([b"(", b")", b"a", b"[", b"]", None], [5]))
    for _ in range(100):
        constraint.advance((0, 3) * 500)
    rows = MaskRows.allocate(1, 6)
    constraint.fill((), rows)
    assert [index for index in range(6) if rows.bools(0)[index]] == [0, 2, 3]
    assert len(constraint.shortest_completion()) == 1 + 150_000


CUT_IN_MANY_WAYS = "item ::= [a-z0-9]{1,3} | ."


def test_a_completion_that_an_ambiguous_grammar_makes_too_costly_is_given_up_in_bounded_time() -> None:
    program = compile_grammar(from_gbnf(f'root ::= root "," item{{2000}} | item\n{CUT_IN_MANY_WAYS}')).program
    constraint = NativeConstraint(program, Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256]))
    constraint.advance(list(b"x,"))
    started = perf_counter()
    with pytest.raises(NoCompletion, match="a fixed limit"):
        constraint.shortest_completion()
    assert perf_counter() - started < 60


@pytest.mark.timeout(120)
def test_parts_that_are_shared_are_derived_once() -> None:
    """Each optional part in front once multiplied the time of the first mask by seven, from 3 seconds on."""
    number = r"(\.[0-9]{1,17}(e-?[0-9]{1,2})?|255e-?[0-9]{1,2})"
    grammar = rf"""start: FLOAT
FLOAT: /-?([a-c]|d)?([e-g]|h)?(0|[1-9][0-9]{{0,17}}){number}/
"""
    vocabulary = walking.VOCABULARY
    constraint = NativeConstraint(compile_grammar(grammar).program, vocabulary)
    rows = MaskRows.allocate(1, vocabulary.size)
    constraint.fill((), rows)
    legal = {piece for piece, is_legal in zip(walking.TOKENS, rows.bools(0), strict=True) if is_legal}
    assert {b"-", b"0", b"9", b"a", b"h"} <= legal and b"." not in legal
