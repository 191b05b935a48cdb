"""The judge of grammar answers has Lark's verdicts, in bounded time, and shares no code with the decoder."""

from __future__ import annotations

import random
import re
import time

import pytest
from lark.exceptions import LarkError

from safegen.errors import EngineError, GrammarError, InvalidOutput
from safegen.grammars.lark_grammar.source import prepare
from safegen.grammars.options import Limits
from safegen.validation.grammar_validator import GrammarValidator
from safegen.validation.terminal_words import TerminalWords
from tests.grammars.lark_oracle import accepts, earley, is_small, random_grammar, words


def validator(grammar: str, deadline_s: float = 10.0) -> GrammarValidator:
    source = prepare(grammar, Limits())
    return GrammarValidator(
        source.text,
        "start",
        schemas=source.schemas,
        expressions=source.plain_expressions(),
        deadline_s=deadline_s,
    )


def verdict(judge: GrammarValidator, text: str) -> bool:
    try:
        judge.check(text)
    except InvalidOutput:
        return False
    return True


@pytest.mark.parametrize("first", range(500, 560, 15))
def test_verdicts_are_those_of_lark(first: int) -> None:
    compared = 0
    for seed in range(first, first + 15):
        rng = random.Random(seed)
        with_ignore = seed % 3 == 0
        grammar = random_grammar(rng, with_ignore)
        try:
            parser = earley(grammar)
        except LarkError:
            continue
        if not is_small(parser):
            continue
        judge = validator(grammar)
        for text in words("ab " if with_ignore else "ab", 4):
            assert verdict(judge, text) == accepts(parser, text), (grammar, text)
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize(
    "pattern",
    [
        "a|ab",
        "a+?b?",
        "(a|ab)*c?",
        r"b.*?b",
        r"(?i:[a-b]+)C",
        r"(?!aa)[ab]{2}",
        r"c(?<!b)a*",
        r"[^\W\d]+",
        r"(?s:.)b|.",
    ],
)
def test_ends_of_a_terminal_are_those_of_re(pattern: str) -> None:
    ours, theirs = TerminalWords(pattern), re.compile(pattern)
    for text in words("abc", 5):
        whole = theirs.match(text)
        longest = whole.end() if whole else -1
        expected = {match.end() for end in range(longest + 1) if (match := theirs.match(text[:end]))}
        assert set(ours.ends(text, 0)) == expected, text


def test_extensions_are_judged() -> None:
    judge = validator(
        'start: A B %json {"type": "integer", "minimum": 10}\nA: /[ab]+/ & ~/.*bb.*/\nB: "(" A ")"\n%ignore " "\n'
    )
    assert verdict(judge, "aba (b) 12")
    assert verdict(judge, "a(ab)10")
    assert not verdict(judge, "abba (b) 12")
    assert not verdict(judge, "a (bb) 12")
    assert not verdict(judge, "a (b) 9")


def test_hostile_regex_and_grammar_stay_bounded() -> None:
    started = time.monotonic()
    assert not verdict(validator("start: A\nA: /(a+)+b/"), "a" * 2000)
    assert verdict(validator('start: ("a" | "b")~3..2000'), "ab" * 200)
    assert verdict(validator('start: start "," N | N\nN: /[0-9]+/'), "12," * 3000 + "1")
    with pytest.raises(EngineError, match="took longer"):
        validator('start: start start start | "a" |', deadline_s=0.2).check("a" * 2000)
    assert time.monotonic() - started < 30


def test_tree_is_larks() -> None:
    judge = validator('start: sum\n?sum: sum "+" N -> add | N\nN: /[0-9]+/')
    judge.require_tree()
    assert judge.tree("1+2+3") == earley_tree('start: sum\n?sum: sum "+" N -> add | N\nN: /[0-9]+/', "1+2+3")


def earley_tree(grammar: str, text: str) -> object:
    from lark import Lark

    return Lark(grammar, parser="earley", lexer="dynamic_complete").parse(text)


def test_tree_that_lark_cannot_hold_is_refused_at_the_door() -> None:
    with pytest.raises(GrammarError, match="multiply"):
        validator('start: ("a" | "b")~3..40').require_tree()
