"""The language is that of Lark's Earley parser with dynamic_complete: exhaustively on short texts."""

from __future__ import annotations

import random

import pytest
from lark.exceptions import LarkError

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar import compile_grammar
from tests.grammars.lark_oracle import accepts, earley, is_small, random_grammar, random_text, words

SEED = 7


def assert_same_language(grammar: str, letters: str, longest: int) -> None:
    parser, program = earley(grammar), compile_grammar(grammar).program
    texts = list(words(letters, longest))
    ours = [text for text in texts if program.matches(text.encode())]
    assert ours == [text for text in texts if accepts(parser, text)], grammar


def check_random_grammar(seed: int, longest: int) -> bool:
    """Whether there was anything to compare."""
    rng = random.Random(f"{SEED} {seed}")
    with_ignore = seed % 3 == 0
    grammar, letters = random_grammar(rng, with_ignore), "ab " if with_ignore else "ab"
    try:
        parser = earley(grammar)
    except LarkError:
        return False
    if not is_small(parser):
        return False
    try:
        program = compile_grammar(grammar).program
    except GrammarError as error:
        if "No finite text" in str(error):
            assert not any(accepts(parser, text) for text in words(letters, 4)), grammar
        else:
            assert "ignored terminal" in str(error), grammar
        return False
    assert_same_language(grammar, letters, longest - with_ignore)
    for _ in range(3):
        text = random_text(program, rng, 12)
        assert accepts(parser, text), (grammar, text)
    return True


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_grammars_have_the_language_of_earley(first: int) -> None:
    assert sum(check_random_grammar(seed, 5) for seed in range(first, first + 10)) >= 4


@pytest.mark.full
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_many_random_grammars_have_the_language_of_earley(first: int) -> None:
    assert sum(check_random_grammar(seed, 6) for seed in range(first, first + 20)) >= 8


@pytest.mark.parametrize(
    "grammar",
    [
        'start: start start | "a" |',
        "start: x*\nx: y*\ny: /a/",
        'start: p "b" | "a"\np: q\nq: start? "a"',
        'start: n start "a" | "b"\nn: "a"?',
        'start: sep{"a", "b"}\nsep{x, s}: x (s x)*',
        'start: twice{"a"} | twice{twice{B}}\ntwice{x}: x x\nB: "b"',
        'start: ("a" | "b")~3..6',
        'start: [p] "a"~2 [p]\n?p: "b" -> b | p "b" -> more',
        'start: "a"~0..3 ("b" "a")~2..18',
        'start: p~2..19\np: "b" "a"? | "a" "b"',
        'start: "A"i "b"i',
        "start: /a+/ /a+/ /b/?",
        "start: A.. | B\nA: /a/\nB: /b/".replace("A..", '"a".."b" A'),
    ],
)
def test_grammar_has_the_language_of_earley(grammar: str) -> None:
    assert_same_language(grammar, "ab", 7)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" " b"\n%ignore / +/',
        'start: "a" "b"?\n%ignore " "',
        'start: ("a" "b")*\n%ignore / b?/',
        'start: "a"? \n%ignore / +/\n%ignore "b"',
        'start: /a+/ "b"\n%ignore /a /',
        'start: start "a" | "b"\n%ignore /  ?/',
    ],
)
def test_ignored_text_stands_where_earley_lets_it(grammar: str) -> None:
    assert_same_language(grammar, "ab ", 6)


@pytest.mark.parametrize(
    "terminal", ["/a|ab/", "/a+?b?/", "/(?:a|ab)+c/", "/b.*?b/", "/(?!aa)[abc]{2}/", "/a(?<!b)c*/"]
)
def test_terminal_stands_for_what_re_match_takes(terminal: str) -> None:
    assert_same_language(f"start: T*\nT: {terminal}", "abc", 5)


def test_priorities_do_not_change_membership() -> None:
    assert_same_language('start: A B? | B\nA.2: "a"\nB.-1: /[ab]/\nx.5: "a"', "ab", 5)


def test_list_of_any_length_stays_linear() -> None:
    program = compile_grammar('start: expr\nexpr: expr "+" term | term\nterm: /[0-9]+/ | "(" expr ")"').program
    assert program.matches(b"1" + b"+22" * 20_000)
    assert not program.matches(b"1" + b"+22" * 20_000 + b"+")
    assert program.matches(b"(" * 5000 + b"1" + b")" * 5000)


def test_counts_are_exact_and_not_multiplied_out() -> None:
    program = compile_grammar('start: (p | q)~30..70\np: "a" q?\nq: "b"').program
    assert [count for count in range(150) if program.matches(b"ab" * count)] == list(range(15, 71))
    assert [count for count in range(150) if program.matches(b"b" * count)] == list(range(30, 71))
    program = compile_grammar('start: "a"~0..1000000 ("b" "c"?)~1..1000000').program
    assert program.matches(b"a" * 500 + b"bcb" * 500)
    assert not program.matches(b"a" * 500)


def test_many_optional_parts_cost_linear_room() -> None:
    compiled = compile_grammar("start: " + " ".join(f'["{letter}"]' for letter in "abcdefghijklmnopqrstuvwxyz" * 4))
    assert compiled.num_productions < 1000
    assert compiled.program.matches(b"acezabcxyz")
    assert not compiled.program.matches(b"zzzzz")


def test_ambiguity_is_polynomial() -> None:
    program = compile_grammar('start: start start start | start start | "a" |').program
    assert program.matches(b"a" * 80)
    assert not program.matches(b"a" * 80 + b"b")


def test_ways_to_cut_a_text_into_parts_are_not_multiplied_out() -> None:
    program = compile_grammar("start: " + "n " * 20 + "\nn: N | /a/\nN: /[0-9]+/").program
    assert program.matches(b"12" * 40)
    assert program.matches(b"a" * 19 + b"123")
    assert not program.matches(b"1" * 19)
    assert not program.matches(b"a" * 21)
