"""The format "regex": valid patterns are accepted and no others, and every state can be completed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from safegen._native import Builder, Matcher, Program, Vocabulary
from safegen.errors import GrammarError
from safegen.grammars.json_schema.regex_format import regex_expr
from safegen.grammars.regex_lowering import RegexLowering
from safegen.validation.ecma_syntax import is_ecma_regex

PIECES = [
    *"ab01-^$.*+?()[]{}|/,:=!<>é漢😀\\",
    *(r"\d", r"\b", r"\-", r"\u00e9", r"\u{1F600}", r"\uD83D\uDE00", r"\x41", r"\cA", r"\0", r"\1", r"\12", r"\k<a>"),
    *("(?<a>", "(?<b>", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?i-s:", "[^", "[a-z]", "{2}", "{2,}", "{2,3}"),
    *(
        "{3,2}",
        r"\p{L}",
        r"\P{gc=Lu}",
        r"\p{X}",
        ")",
        ")",
        "]",
        "+?",
        r"\B",
        r"\/",
        r"\e",
        "[à-ÿ]",
        "[ぁ-ん]",
        r"[\0-\x1f]",
    ),
]


@pytest.fixture(scope="module")
def program() -> Program:
    builder = Builder()
    return builder.build(builder.lexeme(regex_expr(RegexLowering(builder))))


def is_valid(text: str) -> bool:
    try:
        return is_ecma_regex(text)
    except GrammarError:
        return False


def test_random_texts_have_the_verdict_of_the_independent_parser(program: Program) -> None:
    draw = random.Random(3)
    accepted = 0
    for _ in range(20_000):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 9)))
        if r"\\uD83D\uDE00" not in text:  # leaves a lone surrogate escape, which the language leaves out
            assert program.matches(text.encode()) is is_valid(text), text
        accepted += is_valid(text)
    assert accepted > 2_000


@pytest.mark.parametrize(
    "text",
    [
        r"^[a-z0-9._-]+@(?:[a-z]+\.)+[a-z]{2,}$",
        r"^(?=.*[A-Z])(?!.*\s).{8,}$",
        r"(?<year>\d{4})-(?<month>\d\d)",
        r"(?<y>\d{4})-\k<y>",
        r"\k<l>(?<l>x)",
        r"\2(a)(b)",
        r"[А-Яа-яЁё]+",
        "(" * 32 + ")" * 32,
    ],
)
def test_patterns_of_every_kind_are_accepted(program: Program, text: str) -> None:
    assert is_valid(text)
    assert program.matches(text.encode())


@pytest.mark.parametrize(
    "text", ["[z-a]", "a{3,2}", r"\1", r"\k<a>", "(?<a>)(?<a>)", "(", ")", "*", r"[\d-z]", "(?=a)*"]
)
def test_invalid_patterns_are_refused(program: Program, text: str) -> None:
    assert not is_valid(text)
    assert not program.matches(text.encode())


def test_every_state_of_random_walks_can_be_completed(program: Program) -> None:
    draw = random.Random(4)
    fresh = Matcher(program, Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256]))
    telling = [*b"()(?<:=!\\\\kpu{}[]-^ab01234567,x>dD*+"]
    for _ in range(250):
        matcher = fresh.fork()
        for _ in range(draw.randint(1, 25)):
            row = np.zeros((1, 9), np.int32)
            matcher.fill([], row)
            legal = [byte for byte in range(256) if (int(row[0][byte >> 5]) >> (byte & 31)) & 1]
            assert legal, matcher.text()
            wanted = [byte for byte in telling if byte in legal] if draw.random() < 0.8 else legal
            matcher.advance([draw.choice(wanted or legal)])
        closed = matcher.text() + bytes(byte for byte in matcher.shortest_completion() if byte < 256)
        assert is_valid(closed.decode()), closed


def test_a_class_range_over_the_whole_vocabulary_costs_few_states() -> None:
    """Characters of a block share their states, so that a mask behind `[` does not grow with the script."""
    builder = Builder(max_states=5_000)
    program = builder.build(builder.lexeme(regex_expr(RegexLowering(builder))))
    tokens = [chr(code).encode() * 2 for code in range(0x3000, 0xA000)]
    matcher = Matcher(program, Vocabulary([*tokens, *(bytes([byte]) for byte in range(256))], []))
    matcher.advance([len(tokens) + ord("[")])
    row = np.zeros((1, (len(tokens) + 256 + 31) // 32), np.int32)
    matcher.fill([], row)
    assert np.unpackbits(row.view(np.uint8)).sum() > len(tokens)
