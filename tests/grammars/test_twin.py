"""The twin is an oracle only if it is right itself: compare its exprs with Python's `re` on all short texts."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tests.support.twin import Builder
from tests.support.twin_exprs import utf8_sequences

ALPHABET = "ab\u00e9"
TEXTS = ["".join(chars) for n in range(5) for chars in product(ALPHABET, repeat=n)]


def language(builder: Builder, expr: int) -> set[str]:
    return {text for text in TEXTS if builder.matches_expr(expr, text.encode())}


def matching(pattern: str) -> set[str]:
    return {text for text in TEXTS if re.fullmatch(pattern, text)}


def test_operators_denote_the_languages_that_re_denotes() -> None:
    b = Builder()
    a_expr, b_expr, accent = b.literal(b"a"), b.literal(b"b"), b.chars([(0xE9, 0xE9)])
    either = b.alternate([a_expr, accent])
    assert language(b, b.concat([either, b_expr])) == matching("(a|é)b")
    assert language(b, b.repeat(either, 1, 3)) == matching("(a|é){1,3}")
    assert language(b, b.repeat(b.concat([a_expr, b.repeat(b_expr, 0, 1)]), 2, None)) == matching("(ab?){2,}")
    assert language(b, b.repeat(b.repeat(a_expr, 0, None), 3, 3)) == matching("(a*){3}")
    assert language(b, b.strings([b"ab", b"a", b"abb"])) == {"a", "ab", "abb"}
    starts, ends = b.concat([a_expr, b.any_text()]), b.concat([b.any_text(), b_expr])
    assert language(b, b.intersect([starts, ends])) == matching("(?s)a.*b")
    assert language(b, b.intersect([b.any_text(), b.complement(starts)])) == matching("(?s)(?!a).*")


def test_emptiness_is_found_and_not_invented() -> None:
    b = Builder()
    starts_a, starts_b = (b.concat([b.literal(char), b.any_text()]) for char in (b"a", b"b"))
    assert b.is_empty(b.intersect([starts_a, starts_b]))
    assert not b.is_empty(b.intersect([starts_a, b.repeat(b.chars([(0, 0x10FFFF)]), 30, 30)]))
    assert b.is_empty(b.intersect([b.strings([b"aa", b"ab"]), b.complement(b.repeat(b.byte_set([(97, 98)]), 2, 2))]))


@pytest.mark.parametrize("edge", [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF])
def test_utf8_ranges_hold_exactly_their_characters(edge: int) -> None:
    low = max(0, edge - 70)
    ranges = utf8_sequences(low, edge)
    for code in range(max(0, low - 3), min(edge + 4, 0x110000)):
        if not 0xD800 <= code < 0xE000:
            encoded = chr(code).encode()
            inside = any(len(s) == len(encoded) and all(a <= x <= z for (a, z), x in zip(s, encoded)) for s in ranges)
            assert inside == (low <= code <= edge), hex(code)


def test_numbers_are_exact_decimals_in_every_spelling() -> None:
    b = Builder()
    tenth = b.number(integer=False, plain=False, low="0.3", high="1e1", high_exclusive=True, multiple_of="0.1")
    for text, legal in [("0.3", 1), ("3e-1", 1), ("9.90", 1), ("10", 0), ("0.35", 0), ("0.2", 0), ("00.3", 0)]:
        assert b.matches_expr(tenth, text.encode()) == bool(legal), text
    plain = b.number(integer=True, plain=True)
    assert [b.matches_expr(plain, t) for t in (b"0", b"-7", b"-0", b"1.0", b"1e1")] == [True, True, False, False, False]
