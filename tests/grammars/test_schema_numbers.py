"""Numbers that are multiples of some divisors and of no others: exact, live, and in closed form."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from safegen._native import Builder, Matcher, Vocabulary
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import SchemaOptions

DIVISORS = ["1", "2", "3", "5", "0.5", "0.25", "0.1", "0.3", "7", "10", "4", "6", "25", "1e2", "1e-3"]
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])
VALUES = [Fraction(numerator, 10**places) for places in range(3) for numerator in range(-310, 311)]


def random_spec(draw: random.Random) -> dict[str, Any]:
    low, high = sorted(Decimal(draw.randint(-300, 300)) / draw.choice([1, 1, 10, 100]) for _ in range(2))
    return {
        "integer": draw.random() < 0.4,
        "plain": False,
        "low": str(low) if draw.random() < 0.7 else None,
        "high": str(high) if draw.random() < 0.7 else None,
        "low_exclusive": draw.random() < 0.3,
        "high_exclusive": draw.random() < 0.3,
        "multiple_of": draw.choice(DIVISORS) if draw.random() < 0.5 else None,
        "not_multiples_of": draw.sample(DIVISORS, draw.randint(1, 3)),
    }


def holds(spec: dict[str, Any], value: Fraction) -> bool:
    low, high, divisor = (spec[key] and Fraction(spec[key]) for key in ("low", "high", "multiple_of"))
    if spec["low"] and (value < low or (spec["low_exclusive"] and value == low)):
        return False
    if spec["high"] and (value > high or (spec["high_exclusive"] and value == high)):
        return False
    if (spec["integer"] and value.denominator != 1) or (divisor and (value / divisor).denominator != 1):
        return False
    return all((value / Fraction(other)).denominator != 1 for other in spec["not_multiples_of"])


def spelled(value: Fraction) -> str:
    return format(Decimal(value.numerator) / value.denominator, "f")


def test_excluded_divisors_are_exact() -> None:
    draw = random.Random(5)
    for _ in range(150):
        spec, builder = random_spec(draw), Builder(max_digits=20)
        expr = builder.number(**spec)
        found = [value for value in VALUES if builder.matches_expr(expr, spelled(value).encode())]
        assert found == [value for value in VALUES if holds(spec, value)], spec
        assert not (found and builder.is_empty(expr))


def test_every_state_with_excluded_divisors_can_be_completed() -> None:
    draw = random.Random(6)
    for _ in range(150):
        spec = random_spec(draw)
        builder = Builder(max_digits=draw.choice([3, 6, 20]), max_exponent_digits=draw.choice([2, 3]))
        expr = builder.number(**spec)
        if builder.is_empty(expr):
            continue
        fresh = Matcher(builder.build(builder.lexeme(expr)), BYTES)
        for _ in range(4):
            matcher = fresh.fork()
            for _ in range(draw.randint(1, 12)):
                row = np.zeros((1, 9), np.int32)
                matcher.fill([], row)
                legal = [byte for byte in range(256) if (int(row[0][byte >> 5]) >> (byte & 31)) & 1]
                if not legal:
                    break
                matcher.advance([draw.choice(legal)])
            rest = bytes(byte for byte in matcher.shortest_completion() if byte < 256)
            assert holds(spec, Fraction((matcher.text() + rest).decode())), (spec, matcher.text(), rest)


@pytest.mark.parametrize(
    ("divisor", "others", "is_empty"),
    [
        ("6", ["3"], True),
        ("2", ["7", "2"], True),
        ("6", ["4", "9"], False),
        ("0.1", ["0.2", "0.3", "0.5", "0.7"], False),
    ],
)
def test_whether_any_multiple_is_left_is_decided_at_once(divisor: str, others: list[str], is_empty: bool) -> None:
    builder = Builder()
    expr = builder.number(integer=False, plain=False, multiple_of=divisor, not_multiples_of=others)
    assert builder.is_empty(expr) is is_empty


def test_divisors_that_share_no_automaton_are_still_exact() -> None:
    divisors = [10**17 + 3, 10**17 + 9, 3, 7]  # the common multiple passes 63 bits
    schema = {"type": "integer", "not": {"anyOf": [{"multipleOf": divisor} for divisor in divisors]}}
    program = compile_json_schema(schema, SchemaOptions()).program
    assert program.matches(b"100000000000000004")
    assert not any(program.matches(str(divisor * 2).encode()) for divisor in divisors)


def test_more_divisors_than_one_automaton_holds_are_exact() -> None:
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
    schema = {"type": "integer", "minimum": 2, "not": {"anyOf": [{"multipleOf": prime} for prime in primes]}}
    program = compile_json_schema(schema, SchemaOptions()).program
    assert program.matches(b"41")
    assert program.matches(b"1763")
    assert not any(program.matches(str(41 * prime).encode()) for prime in primes)
