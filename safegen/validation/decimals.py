"""Exact JSON numbers: every literal is an int or a `decimal.Decimal` that holds its value digit for digit.

`jsonschema` sees both as numbers. Nothing here rounds: Decimal construction and comparison are exact whatever the
context, and everything else is integer arithmetic on coefficient and exponent. Powers of ten are taken modulo the
divisor, so `1e999999999` costs no more than `1`. Integers too long for Python's integer-string limit stay Decimals,
which print without one.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

MAX_INT_DIGITS = 600  # below any value that sys.set_int_max_str_digits accepts

Number = int | Decimal


class NumberRangeError(ValueError):
    """A literal whose exponent is beyond what an exact decimal can hold (about 10**18)."""


def parse_number(literal: str) -> Number:
    """The exact value of a JSON number literal."""
    if len(literal) <= MAX_INT_DIGITS and literal.lstrip("-").isdigit():
        return int(literal)
    try:
        return Decimal(literal)
    except InvalidOperation:
        mantissa = literal.lower().partition("e")[0]
        if not mantissa.strip("-0."):
            return Decimal(0)
        raise NumberRangeError(f"number with an exponent out of range: {literal[:40]}") from None


def from_python(number: int | float | Decimal) -> Number:
    """The exact value of a Python number; a float stands for its shortest decimal. NaN and infinities: ValueError."""
    if isinstance(number, float):
        number = Decimal(repr(number))
    if isinstance(number, Decimal):
        if not number.is_finite():
            raise ValueError(f"{number} is not a JSON number")
        return number
    return int(number) if abs(number) < 10**MAX_INT_DIGITS else Decimal(number)


def is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    """JSON Schema's integer: a number without a fractional part, however it is written (`1.0`, `1e2`)."""
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def is_written_as_integer(value: object) -> bool:
    """Draft 4's integer: written with digits alone. Integers too long for int are Decimals without an exponent."""
    if isinstance(value, Decimal):
        return value.as_tuple().exponent == 0 and value.adjusted() >= MAX_INT_DIGITS
    return isinstance(value, int) and not isinstance(value, bool)


def is_multiple(value: Number, divisor: Number) -> bool:
    """Whether value / divisor is an integer. divisor must not be zero."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value % divisor == 0
    value_coefficient, value_exponent = _split(value)
    divisor_coefficient, divisor_exponent = _split(divisor)
    if value_coefficient == 0:
        return True
    shift = value_exponent - divisor_exponent
    if shift >= 0:
        power: int = pow(10, shift, divisor_coefficient)
        return value_coefficient * power % divisor_coefficient == 0
    if -shift > _digits_bound(value_coefficient):
        return False  # |value| is below 10**-shift, hence below |divisor|, and not zero
    scale: int = 10**-shift
    return value_coefficient % (divisor_coefficient * scale) == 0


def _split(value: Number) -> tuple[int, int]:
    """(coefficient >= 0, exponent) with |value| = coefficient * 10**exponent."""
    if isinstance(value, int):
        return abs(value), 0
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return int(Decimal((0, digits, 0))), exponent


def _digits_bound(coefficient: int) -> int:
    """At least the number of decimal digits of coefficient."""
    return coefficient.bit_length() * 30103 // 100000 + 1


def equality_key(value: Any) -> Any:
    """Hashable key, equal for exactly those JSON values that JSON Schema calls equal.

    Numbers compare by value (1 == 1.0), booleans are no numbers, strings compare by code points, objects regardless of
    key order. Python promises equal hashes for equal ints and Decimals.
    """
    if isinstance(value, bool) or value is None:
        return ("literal", value is True, value is None)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ("array", tuple([equality_key(item) for item in value]))
    if isinstance(value, dict):
        return ("object", frozenset([(key, equality_key(item)) for key, item in value.items()]))
    return ("number", value)
