"""Masks of strings and keys on a vocabulary with many tokens that read past a quote: what is found for all of them at
once is what each gives alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from safegen._native import Builder, Matcher, Predicate, Program, Violation, Vocabulary
from safegen.grammars.constraint import MaskRows

HEADS = ["", "a", "ab", "abc", "name", "12", "z9", "é", "\\n", "a\\u0062", "\\u0061", "x" * 50]
TAILS = ['"', '":', '",', '"}', '"],', '":"', '":1,"', '":{"', '","a":', '","b":1', '":1,"name":', '":[]}', '"]']
INSIDE = ["a", "b", "ab", "name", "\\", "\\u", "0061", "n", "x" * 7, "12", "-", "a-b", "é", "\\u000", "a\\n"]
TOKENS: list[bytes | None] = [bytes([b]) for b in range(256)]
TOKENS += (
    [(head + tail).encode() for head in HEADS for tail in TAILS] + [text.encode() for text in INSIDE] + [b'{"', b'["']
)
STOP = len(TOKENS)
TOKENS.append(None)


def strings(content: Callable[[Builder], int]) -> Callable[[Builder], int]:
    def build(b: Builder) -> int:
        return b.array([], b.lexeme(b.json_string(content(b))), 1, 3)

    return build


def letters(b: Builder, low: int, high: int | None) -> int:
    return b.repeat(b.chars([(ord("a"), ord("z"))]), low, high)


def counted(b: Builder, low: int, high: int, content: int) -> int:
    return b.intersect([b.repeat(b.chars([(0, 0x10FFFF)]), low, high), content])


def words(b: Builder) -> int:
    blank, other = b.chars([(0x20, 0x20), (0x3000, 0x3000)]), b.chars([(0x21, 0x2FFF), (0x3001, 0x10FFFF)])
    word = b.repeat(other, 1, None)
    return b.concat([b.repeat(b.concat([word, b.repeat(blank, 1, None)]), 0, 3), word])


def ending(b: Builder) -> int:
    return b.concat([b.any_text(), b.alternate([b.literal(b"-abc"), b.literal("é9".encode())])])


def holding(b: Builder) -> int:
    return b.concat([b.any_text(), b.literal(b"ab"), b.any_text()])


CONTENTS: dict[str, Callable[[Builder], int]] = {
    "free": lambda b: b.any_text(),
    "short": lambda b: b.repeat(b.chars([(0, 0x10FFFF)]), 0, 4),
    "counted": lambda b: b.repeat(b.chars([(0, 0x10FFFF)]), 2, 60),
    "printable": lambda b: b.repeat(b.chars([(0x20, 0x10FFFF)]), 0, None),
    "ascii": lambda b: b.repeat(b.chars([(0x20, 0x7E)]), 1, None),
    "all but one": lambda b: b.repeat(b.chars([(0, 0xE8), (0xEA, 0x10FFFF)]), 0, None),
    "letters": lambda b: letters(b, 0, None),
    "parts": lambda b: b.concat([letters(b, 2, 4), b.literal(b"-"), letters(b, 0, None)]),
    "overlapping parts": lambda b: b.concat([letters(b, 0, 3), letters(b, 1, None), b.literal(b"b")]),
    "all but two": lambda b: b.intersect([letters(b, 0, None), b.complement(b.strings([b"ab", b"name"]))]),
    "words": words,
    "counted words": lambda b: counted(b, 2, 12, words(b)),
    "ending": ending,
    "counted ending": lambda b: counted(b, 7, 9, ending(b)),
    "holding": holding,
    "counted holding": lambda b: counted(b, 0, 60, holding(b)),
    "counted class": lambda b: counted(b, 3, 20, letters(b, 1, None)),
    "past digits": lambda b: b.concat([b.repeat(b.chars([(ord("0"), ord("9"))]), 1, None), b.any_text()]),
    "listed": lambda b: b.strings([b"a", b"ab", b"abc", b"name", "é".encode()]),
}


def open_object(b: Builder) -> int:
    names = [
        (b"a", b.lexeme(b.literal(b"1")), False),
        (b"name", b.lexeme(b.literal(b"1")), False),
        (b"abc", None, False),
    ]
    return b.object(names, [(b.any_text(), b.lexeme(b.json_string(b.any_text())))], 0, None)


def patterned_object(b: Builder) -> int:
    one, two = b.lexeme(b.literal(b"1")), b.lexeme(b.json_string(b.any_text()))
    word = letters(b, 1, None)
    return b.object(
        [(b"b", one, False)], [(word, one), (b.intersect([b.any_text(), b.complement(word)]), two)], 0, None
    )


def patterned_keys(b: Builder) -> int:
    return b.object([], [(letters(b, 0, None), b.lexeme(b.literal(b"1")))], 0, None)


def either(b: Builder) -> int:
    return b.array([], b.lexeme(b.alternate([b.json_string(holding(b)), b.json_string(letters(b, 0, 4))])), 1, 3)


SPECS: dict[str, Callable[[Builder], int]] = {
    "either": either,
    **{name: strings(content) for name, content in CONTENTS.items()},
    "open object": open_object,
    "patterned object": patterned_object,
    "patterned keys": patterned_keys,
}


def legal_by_trying(matcher: Matcher, token: int) -> bool:
    try:
        matcher.fork().advance([token])
    except Violation:
        return False
    return True


def walk(program: Program, seed: int, check: Callable[[Matcher, int, bool], None]) -> None:
    vocabulary = Vocabulary(TOKENS, [STOP])
    rng = random.Random(seed)
    rows = MaskRows.allocate(1, len(TOKENS))
    for _ in range(5):
        matcher = Matcher(program, vocabulary)
        for _ in range(9):
            matcher.fill([], rows.words)
            legal = rows.bools(0)
            for token in range(len(TOKENS)):
                check(matcher, token, bool(legal[token]))
            choices = [token for token in np.flatnonzero(legal) if token != STOP]
            if not choices:
                break
            longer = [token for token in choices if token >= 256]
            if matcher.advance([int(rng.choice(longer or choices))]) is not None:
                break


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_rows_are_what_each_token_gives_alone(name: str, any_order: bool) -> None:
    b = Builder(any_order=any_order)
    program = b.build(SPECS[name](b))

    def check(matcher: Matcher, token: int, legal: bool) -> None:
        if token == STOP:
            assert legal == matcher.can_end()
            return
        text = matcher.text() + (TOKENS[token] or b"")
        assert legal == (program.longest_prefix(text) == len(text)), text

    walk(program, 1, check)


@pytest.mark.parametrize("wrapped", [False, True])
def test_ends_of_a_string_that_is_judged_as_a_whole_are_told_apart(wrapped: bool) -> None:
    """What may follow one depends on its text, also among ends of the same length."""
    short = Builder()
    predicate = Predicate.matches(short.build(short.lexeme(short.json_string(short.strings([b"ab", b"name", b"12"])))))
    b = Builder()
    judged = b.verified(b.lexeme(b.json_string(b.any_text())), predicate)
    program = b.build(b.array([], judged, 1, 3) if wrapped else judged)

    def check(matcher: Matcher, token: int, legal: bool) -> None:
        assert legal == legal_by_trying(matcher, token), (matcher.text(), TOKENS[token])

    walk(program, 2, check)
