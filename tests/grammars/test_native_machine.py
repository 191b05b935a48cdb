"""The native machine against brute force: every token tried at every state, on a vocabulary that holds all bytes."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from safegen._native import Builder, LimitExceeded, Matcher, Program, Violation, Vocabulary
from safegen.grammars.constraint import MaskRows

STOP = 300


def vocabulary() -> tuple[Vocabulary, list[bytes | None]]:
    tokens: list[bytes | None] = [bytes([b]) for b in range(256)]
    words = [
        '{"',
        '":',
        '","',
        '"}',
        "],[",
        "tr",
        "true",
        "null",
        "12",
        "34",
        "0.",
        "e1",
        "ab",
        "abc",
        "name",
        '"a":',
        "é",
        "😀",
        "\\u",
        "00e9",
        '"],"',
        "1,",
        ",1",
        "}}",
        "[]",
        "{}",
        ":{",
        '{"a":1}',
        "b",
        "ba",
        " ",
        "  ",
        ", ",
        ': "',
    ]
    tokens += [w.encode() for w in words] + ["😀".encode()[:2], "é".encode()[1:]]
    tokens += [None] * (STOP - len(tokens)) + [b"never"]
    return Vocabulary(tokens, [STOP]), tokens


def any_value(b: Builder) -> int:
    text = b.any_text()
    value = b.reserve()
    scalar = b.lexeme(
        b.alternate(
            [b.json_string(text), b.number(integer=False, plain=False), *map(b.literal, (b"true", b"false", b"null"))]
        )
    )
    b.define(value, b.union([scalar, b.array([], value, 0, None), b.object([], [(text, value)], 0, None)]))
    return value


def person(b: Builder) -> int:
    name = b.lexeme(b.json_string(b.repeat(b.chars([(97, 122), (0xE9, 0xE9), (0x1F600, 0x1F64F)]), 1, 4)))
    age = b.lexeme(b.number(integer=True, plain=True, low="3", high="120"))
    return b.object(
        [(b"name", name, True), (b"age", age, False), (b"ab", age, True)], [(b.any_text(), any_value(b))], 0, 5
    )


def overlapping(b: Builder) -> int:
    one = b.object([(b"a", any_value(b), True)], [], 0, None)
    two = b.object(
        [(b"a", b.lexeme(b.number(integer=True, plain=True)), False), (b"abc", b.lexeme(b.literal(b"null")), False)],
        [],
        1,
        None,
    )
    return b.union([one, two, b.array([one], two, 1, 3), b.lexeme(b.strings([b"true", b"null", b"12", b'"ab"']))])


def tree(b: Builder) -> int:
    node = b.reserve()
    b.define(
        node,
        b.object(
            [(b"a", b.array([], node, 0, 2), True), (b"b", b.union([node, b.lexeme(b.literal(b"null"))]), False)],
            [],
            0,
            None,
        ),
    )
    return node


def numbers(b: Builder) -> int:
    return b.array(
        [],
        b.lexeme(b.number(integer=False, plain=False, low="-1.5", high="34", low_exclusive=True, multiple_of="0.5")),
        1,
        None,
    )


def text_pattern(b: Builder) -> int:
    letters = b.chars([(97, 122)])
    body = b.intersect(
        [
            b.concat([b.any_text(), b.literal(b"ab"), b.any_text()]),
            b.repeat(letters, 0, 6),
            b.complement(b.literal(b"abc")),
        ]
    )
    return b.lexeme(b.json_string(body))


SPECS = [any_value, person, overlapping, tree, numbers, text_pattern]
OPTIONS = [
    {},
    {"whitespace": 3},
    {"any_order": True},
    {"any_spelling": True},
    {"whitespace": 1, "any_order": True, "any_spelling": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=lambda f: f.__name__)
def test_masks_agree_with_trying_every_token(spec, options) -> None:
    b = Builder(**options)
    program = b.build(spec(b))
    vocab, tokens = vocabulary()
    rng = random.Random(7)
    rows = MaskRows.allocate(1, len(tokens))
    for _ in range(6):
        matcher = Matcher(program, vocab)
        for _ in range(14):
            matcher.fill([], rows.words)
            legal = rows.bools(0)
            text = matcher.text()
            for token, data in enumerate(tokens):
                expected = matcher.can_end() if token == STOP else data is not None and live(program, text + data)
                assert legal[token] == expected, (text, data)
            choices = [t for t in np.flatnonzero(legal) if t != STOP]
            if not choices:
                break
            matcher.advance([int(rng.choice(choices))])
        matcher.advance(matcher.shortest_completion())
        assert matcher.can_end()
        assert program.matches(matcher.text())
        json.loads(matcher.text())


def live(program: Program, text: bytes) -> bool:
    return program.longest_prefix(text) == len(text)


@pytest.mark.parametrize("spec", SPECS, ids=lambda f: f.__name__)
def test_every_live_prefix_reaches_an_answer(spec) -> None:
    """Liveness is checked from outside: whatever byte the machine allows, a shortest completion exists and matches."""
    b = Builder()
    program = b.build(spec(b))
    vocab, tokens = vocabulary()
    rng = random.Random(3)
    for _ in range(40):
        matcher = Matcher(program, vocab)
        for _ in range(rng.randrange(30)):
            follow = program.expected(matcher.text())
            if not follow:
                break
            matcher.advance([rng.choice(follow)])
        rest = b"".join(tokens[t] or b"" for t in matcher.shortest_completion())
        assert program.matches(matcher.text() + rest)


def test_fill_covers_drafts_up_to_the_first_illegal_one() -> None:
    b = Builder()
    program = b.build(b.lexeme(b.strings([b"abab", b"abc"])))
    vocab, tokens = vocabulary()
    matcher = Matcher(program, vocab)
    rows = MaskRows.allocate(5, len(tokens))
    ab, c = tokens.index(b"ab"), ord("c")
    assert matcher.fill([ab, c, STOP, ord("x")], rows.words) == 3
    assert rows.bools(1)[c] and rows.bools(1)[ab] and not rows.bools(1)[STOP]
    assert np.flatnonzero(rows.bools(2)).tolist() == [STOP]
    assert np.flatnonzero(rows.bools(3)).tolist() == [STOP]
    assert not rows.words[4].any()
    assert matcher.fill([ord("x"), ab], rows.words) == 0
    assert rows.bools(0)[ab] and not rows.words[1].any()
    assert matcher.text() == b""


def test_refused_token_leaves_the_state_as_it_was() -> None:
    b = Builder()
    program = b.build(b.lexeme(b.literal(b"abc")))
    vocab, _ = vocabulary()
    matcher = Matcher(program, vocab)
    matcher.advance([ord("a")])
    for bad in ([ord("b"), ord("x")], [STOP], [10_000], [299]):
        with pytest.raises(Violation):
            matcher.advance(bad)
    assert matcher.text() == b"a"
    fork = matcher.fork()
    fork.advance([ord("b"), ord("c")])
    assert fork.is_complete() and not matcher.can_end()
    assert matcher.forced() == b"bc"


def test_a_vocabulary_without_some_bytes_never_leads_into_a_dead_end() -> None:
    tokens: list[bytes | None] = [bytes([b]) for b in range(256) if b not in (0xC3, ord("b"))] + [b"b\xc3", b"ab", None]
    vocab = Vocabulary(tokens, [len(tokens) - 1])
    b = Builder()
    program = b.build(b.lexeme(b.json_string(b.alternate([b.literal("aé".encode()), b.literal(b"abc")]))))
    matcher = Matcher(program, vocab)
    rng = random.Random(1)
    seen = set()
    for _ in range(30):
        walk = matcher.fork()
        rows = MaskRows.allocate(1, len(tokens))
        while not walk.can_end():
            walk.fill([], rows.words)
            legal = np.flatnonzero(rows.bools(0))
            assert legal.size, walk.text()
            walk.advance([int(rng.choice(legal))])
        seen.add(json.loads(walk.text()))
    assert seen == {"aé", "abc"}


@pytest.mark.parametrize(
    ("arguments", "good", "bad"),
    [
        ({"integer": True, "plain": True}, "0 7 -12 1234567890123456789012", "-0 01 1.0 1e2 - +1"),
        ({"integer": True, "plain": False}, "1.0 1e2 -0 100e-2 0.0 1.50e1", "1.5 1e-1 1.05e1 100e-3"),
        (
            {"integer": False, "plain": False, "low": "10", "high": "1000"},
            "1e1 1e3 5.5e2 10.0 999.9 0.01e3",
            "1e0 1e4 9.99 1000.1 -10",
        ),
        ({"integer": False, "plain": False, "low": "0", "low_exclusive": True}, "0.1 0.00001 1e-9", "0 -1 0.0 -0 0e5"),
        (
            {
                "integer": False,
                "plain": False,
                "low": "-0.5",
                "high": "0.25",
                "low_exclusive": True,
                "high_exclusive": True,
            },
            "-0.49 0 0.249 -0.0",
            "-0.5 0.25 -0.50 1",
        ),
        ({"integer": False, "plain": False, "multiple_of": "0.1"}, "0.3 1 -2.50 3e-1 12e-1", "0.25 1.01 3e-2"),
        ({"integer": True, "plain": True, "multiple_of": "1.5"}, "0 3 -6 9", "1 2 4"),
        ({"integer": True, "plain": True, "multiple_of": "12", "low": "5", "high": "40"}, "12 24 36", "0 5 6 48"),
        ({"integer": True, "plain": True, "low": "98", "high": "1203"}, "98 99 100 999 1203", "97 9 1204 2000 12"),
        (
            {"integer": True, "plain": True, "high": "18446744073709551615", "low": "0"},
            "18446744073709551615",
            "18446744073709551616 -1",
        ),
        ({"integer": False, "plain": False, "low": "3", "high": "3"}, "3 3.0 30e-1 0.3e1", "3.01 2 30"),
        ({"integer": False, "plain": False, "multiple_of": "2"}, "2 -4 4.0 1e1 0.2e1", "3 2.5 5e0 1e-1"),
    ],
)
def test_numbers_compare_as_exact_decimals(arguments, good, bad) -> None:
    b = Builder()
    e = b.number(**arguments)
    for text in good.split():
        assert b.matches_expr(e, text.encode()), text
    for text in bad.split():
        assert not b.matches_expr(e, text.encode()), text


def decimal_verdict(arguments: dict, text: str) -> bool:
    if not re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", text):
        return False
    if arguments["plain"] and not re.fullmatch(r"0|-?[1-9][0-9]*", text):
        return False
    value = Fraction(Decimal(text))
    if arguments["integer"] and value.denominator != 1:
        return False
    low, high, step = (
        None if arguments.get(k) is None else Fraction(arguments[k]) for k in ("low", "high", "multiple_of")
    )
    if low is not None and (value < low or (value == low and arguments.get("low_exclusive"))):
        return False
    if high is not None and (value > high or (value == high and arguments.get("high_exclusive"))):
        return False
    return step is None or (value / step).denominator == 1


def random_number_arguments(rng: random.Random) -> dict:
    def literal() -> str | None:
        kind = rng.randrange(4)
        return (
            None
            if kind == 0
            else str(rng.randrange(-40, 140))
            if kind == 1
            else f"{rng.randrange(-300, 900) / 100}"
            if kind == 2
            else f"{rng.randrange(-9, 10)}e{rng.randrange(-3, 4)}"
        )

    plain = rng.random() < 0.4
    step = rng.choice([None, None, "0.01", "0.5", "3", "7", "12", "2.5", "1000", "86400", "0.3"])
    return {
        "integer": plain or rng.random() < 0.3,
        "plain": plain,
        "low": literal(),
        "high": literal(),
        "low_exclusive": rng.random() < 0.3,
        "high_exclusive": rng.random() < 0.3,
        "multiple_of": step,
    }


def test_number_automata_agree_with_fractions_and_never_dead_end() -> None:
    rng = random.Random(11)
    for _ in range(400):
        arguments = random_number_arguments(rng)
        b = Builder(max_digits=8)
        e = b.number(**arguments)
        if b.is_empty(e):
            for _ in range(300):
                assert not decimal_verdict(arguments, random_number_text(rng)), arguments
            continue
        program = b.build(b.lexeme(e))
        for _ in range(60):
            text = random_number_text(rng)
            assert program.matches(text.encode()) == decimal_verdict(arguments, text), (arguments, text)
        vocab, tokens = vocabulary()
        for _ in range(8):
            matcher = Matcher(program, vocab)
            for _ in range(rng.randrange(12)):
                follow = program.expected(matcher.text())
                if not follow:
                    break
                matcher.advance([rng.choice(follow)])
            rest = b"".join(tokens[t] or b"" for t in matcher.shortest_completion())
            final = (matcher.text() + rest).decode()
            assert decimal_verdict(arguments, final), (arguments, final)


def random_number_text(rng: random.Random) -> str:
    text = rng.choice(["", "", "-"]) + str(rng.choice([0, rng.randrange(10), rng.randrange(200), rng.randrange(10**6)]))
    if rng.random() < 0.5:
        text += "." + rng.choice(["0", "5", "50", "25", "01", "1", str(rng.randrange(100)), "00"])
    if rng.random() < 0.3:
        text += rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randrange(5))
    return text


def test_empty_ranges_are_seen_to_be_empty() -> None:
    b = Builder()
    assert b.is_empty(b.number(integer=True, plain=True, multiple_of="7", low="1", high="6"))
    assert b.is_empty(b.number(integer=False, plain=False, low="3", high="3", high_exclusive=True))
    assert b.is_empty(b.number(integer=True, plain=True, low="1.2", high="1.8"))
    assert not b.is_empty(b.number(integer=False, plain=False, low="1.2", high="1.8"))
    node = b.reserve()
    b.define(node, b.object([(b"a", node, True)], [], 0, None))
    assert b.node_is_empty(node)


def test_counts_are_never_unrolled() -> None:
    b = Builder()
    huge = b.repeat(b.repeat(b.repeat(b.literal(b"a"), 1000, 1000), 1000, 1000), 1000, 1000)
    assert not b.matches_expr(huge, b"a" * 50)
    with pytest.raises(LimitExceeded):
        b.build(b.lexeme(huge))


def test_ids_of_another_builder_are_refused() -> None:
    b = Builder()
    with pytest.raises(IndexError):
        b.concat([12345])
    with pytest.raises(IndexError):
        b.array([99], None, 0, None)
