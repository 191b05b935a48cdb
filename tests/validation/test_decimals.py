"""Exact decimal arithmetic against fractions.Fraction, and bounded work on hostile exponents."""

from __future__ import annotations

import random
import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from safegen.validation.decimals import equality_key, is_integer, is_multiple, parse_number


def random_literal(rng: random.Random) -> str:
    literal = rng.choice(["", "-"]) + str(rng.choice([0, 1, 3, 7, 25, 100, 1000, 12345, rng.randrange(10**20)]))
    if rng.random() < 0.5:
        literal += "." + "".join(rng.choice("0012579") for _ in range(rng.randrange(1, 6)))
    if rng.random() < 0.4:
        literal += rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randrange(12))
    return literal


def test_multiples_integers_and_equality_agree_with_fractions() -> None:
    rng = random.Random(7)
    literals = [random_literal(rng) for _ in range(3000)]
    for first, second in zip(literals, literals[1:]):
        one, two = parse_number(first), parse_number(second)
        exact_one, exact_two = Fraction(first), Fraction(second)
        assert is_integer(one) == (exact_one.denominator == 1), first
        assert (equality_key(one) == equality_key(two)) == (exact_one == exact_two)
        assert (one < two) == (exact_one < exact_two), (first, second)
        if exact_two:
            assert is_multiple(one, two) == ((exact_one / exact_two).denominator == 1), (first, second)


@pytest.mark.parametrize(
    ("value", "divisor", "expected"),
    [
        ("0.3", "0.1", True),
        ("1.15", "0.05", True),
        ("1e308", "0.5", True),
        ("1e999999999", "7", False),
        ("7e999999999", "7", True),
        ("1e-999999999", "1", False),
        ("0e5", "1e999999999", True),
        ("1", "1e999999999", False),
        ("1e999999999", "1e-999999999", True),
        ("1e-999999999", "1e999999999", False),
        ("-9", "3", True),
    ],
)
def test_multiples_of_any_exponent_cost_no_expansion(value: str, divisor: str, expected: bool) -> None:
    started = time.perf_counter()
    assert is_multiple(parse_number(value), parse_number(divisor)) is expected
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        (1, Decimal("1.0"), True),
        (True, 1, False),
        (False, 0, False),
        (None, 0, False),
        ([1, {"a": Decimal("2.50")}], [Decimal("1e0"), {"a": Decimal("2.5")}], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ({"a": [True]}, {"a": [1]}, False),
        ("é", "e\u0301", False),
        ("1", 1, False),
        ([], {}, False),
        ("array", [], False),
        (10**700, Decimal("1e700"), True),
        (Decimal("1e999999999"), Decimal("10e999999998"), True),
        (Decimal("0.1"), 0.1, False),
    ],
)
def test_equality_is_json_schema_s(one: Any, two: Any, equal: bool) -> None:
    assert (equality_key(one) == equality_key(two)) is equal
    if equal:
        assert hash(equality_key(one)) == hash(equality_key(two))
