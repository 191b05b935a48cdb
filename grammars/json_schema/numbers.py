"""Canonical form of sets of numbers: listed values and pieces, closed under intersection, union and complement.

A piece is an interval, optionally of multiples of one divisor only ("integer" is divisor 1), minus the multiples of
some divisors and minus some values. All arithmetic is exact: bounds are decimals, divisors are fractions.
Listed values come from const and enum; they are kept apart because they have one spelling under "canonical".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm

Number = int | Decimal

# Bounded intervals with at most this many multiples are searched for a member.
_SEARCHED_MULTIPLES = 10_000


@dataclass(frozen=True, slots=True)
class NumberPiece:
    """plain: the schema's type admits integer but not number, so integers have one spelling under "canonical".
    digits: the text is written with digits alone (draft 4's integer), or, when False, with a fraction or an exponent.
    """

    low: Number | None = None
    low_exclusive: bool = False
    high: Number | None = None
    high_exclusive: bool = False
    divisor: Fraction | None = None
    plain: bool = False
    not_multiples: frozenset[Fraction] = frozenset()
    not_values: frozenset[Number] = frozenset()
    digits: bool | None = None

    def contains(self, value: Number) -> bool:
        if self.low is not None and (value < self.low or (self.low_exclusive and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_exclusive and value == self.high)):
            return False
        if self.divisor is None and not self.not_multiples:
            return value not in self.not_values
        exact = Fraction(value)
        if self.divisor is not None and not is_multiple(exact, self.divisor):
            return False
        return value not in self.not_values and not any(is_multiple(exact, other) for other in self.not_multiples)

    def intersect(self, other: NumberPiece) -> NumberPiece:
        low, low_exclusive = _tighter(self.low, self.low_exclusive, other.low, other.low_exclusive, upper=False)
        high, high_exclusive = _tighter(self.high, self.high_exclusive, other.high, other.high_exclusive, upper=True)
        divisor = self.divisor if other.divisor is None else other.divisor
        if self.divisor is not None and other.divisor is not None:
            divisor = common_multiple(self.divisor, other.divisor)
        return NumberPiece(
            low,
            low_exclusive,
            high,
            high_exclusive,
            divisor,
            self.plain or other.plain,
            self.not_multiples | other.not_multiples,
            self.not_values | other.not_values,
            other.digits if self.digits is None else self.digits,
        )

    def clashes(self, other: NumberPiece) -> bool:
        """No text is written both ways."""
        return self.digits is not None and other.digits is not None and self.digits is not other.digits

    def complement(self) -> list[NumberPiece]:
        """Pieces of all numbers outside of this one."""
        pieces = []
        if self.low is not None:
            pieces.append(NumberPiece(high=self.low, high_exclusive=not self.low_exclusive))
        if self.high is not None:
            pieces.append(NumberPiece(low=self.high, low_exclusive=not self.high_exclusive))
        inside = NumberPiece(self.low, self.low_exclusive, self.high, self.high_exclusive)
        if self.divisor is not None:
            pieces.append(replace(inside, not_multiples=frozenset((self.divisor,))))
        pieces += [replace(inside, divisor=other) for other in self.not_multiples]
        pieces += [NumberPiece(low=value, high=value) for value in self.not_values]
        if self.digits is not None:
            pieces.append(NumberPiece(digits=not self.digits))
        return pieces

    def intervals(self) -> list[NumberPiece]:
        """Pieces without excluded values that together are this one: it is cut at each of them."""
        pieces = [replace(self, not_values=frozenset())]
        for value in sorted(self.not_values):
            last = pieces.pop()
            if last.contains(value):
                pieces.append(last.intersect(NumberPiece(high=value, high_exclusive=True)))
                last = last.intersect(NumberPiece(low=value, low_exclusive=True))
            pieces.append(last)
        return [piece for piece in pieces if not piece.is_empty()]

    def is_empty(self) -> bool:
        """Exact, but for dense exclusions in long intervals, which count as inhabited."""
        if self.divisor is not None and any(is_multiple(self.divisor, other) for other in self.not_multiples):
            return True
        if self.low is None or self.high is None:
            return False
        if self.low > self.high or (self.low == self.high and not self.contains(self.low)):
            return True
        if self.low == self.high or self.divisor is None:
            return False
        first = -(-Fraction(self.low) // self.divisor)
        last = Fraction(self.high) // self.divisor
        if last - first > _SEARCHED_MULTIPLES:
            return False
        return not any(self.contains(to_decimal(self.divisor * k)) for k in range(first, last + 1))


def is_multiple(value: Fraction, divisor: Fraction) -> bool:
    return (value / divisor).denominator == 1


def common_multiple(a: Fraction, b: Fraction) -> Fraction:
    """The least common multiple: a number is a multiple of both exactly when it is one of this."""
    return Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))


def to_decimal(value: Fraction) -> Number:
    """A fraction whose denominator holds only twos and fives, as an exact number."""
    if value.denominator == 1:
        return value.numerator
    scale = 0
    scaled = value
    while scaled.denominator != 1:
        scaled *= 10
        scale += 1
    return Decimal((int(scaled < 0), tuple(int(d) for d in str(abs(scaled.numerator))), -scale))


def _tighter(
    a: Number | None, a_exclusive: bool, b: Number | None, b_exclusive: bool, *, upper: bool
) -> tuple[Number | None, bool]:
    if a is None or b is None:
        return (b, b_exclusive) if a is None else (a, a_exclusive)
    if a == b:
        return a, a_exclusive or b_exclusive
    return (a, a_exclusive) if (a < b) == upper else (b, b_exclusive)


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Union of listed values (in order) and pieces."""

    listed: tuple[Number, ...] = ()
    pieces: tuple[NumberPiece, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.listed or self.pieces)

    def has_every_text_of(self, value: Number) -> bool:
        """Whether a piece holds the value, however it is written."""
        return any(piece.digits is None and piece.contains(value) for piece in self.pieces)

    def intersect(self, other: NumberSet) -> NumberSet:
        theirs = frozenset(other.listed)
        mine = frozenset(self.listed)
        listed = [v for v in self.listed if v in theirs or other.has_every_text_of(v)]
        listed += [v for v in other.listed if v not in mine and self.has_every_text_of(v)]
        pieces = [a.intersect(b) for a in self.pieces for b in other.pieces if not a.clashes(b)]
        for values, pieces_met in ((self.listed, other.pieces), (other.listed, self.pieces)):
            for piece in pieces_met:
                if piece.digits is not None:
                    pieces += [replace(piece, low=v, high=v) for v in values if piece.contains(v)]
        return NumberSet(tuple(listed), _distinct(piece for piece in pieces if not piece.is_empty()))

    def union(self, other: NumberSet) -> NumberSet:
        return NumberSet(tuple(dict.fromkeys(self.listed + other.listed)), _distinct(self.pieces + other.pieces))

    def complement(self) -> NumberSet:
        result = NumberSet(pieces=(NumberPiece(not_values=frozenset(self.listed)),))
        for piece in self.pieces:
            result = result.intersect(NumberSet(pieces=tuple(piece.complement())))
        return result


def _distinct(pieces: Iterable[NumberPiece]) -> tuple[NumberPiece, ...]:
    return tuple(dict.fromkeys(pieces))


ALL_NUMBERS = NumberSet(pieces=(NumberPiece(),))
NO_NUMBERS = NumberSet()


def canonical_text(value: Number, max_digits: int) -> str:
    """The one spelling of a listed value: plain digits, or an exponent where those would pass max_digits."""
    if isinstance(value, int):
        plain = str(value)
    elif value == 0:
        return "0"
    else:
        plain = format(value, "f") if -max_digits < value.adjusted() < max_digits else ""
        if "." in plain:
            plain = plain.rstrip("0").rstrip(".")
    if plain and sum(char.isdecimal() for char in plain) <= max_digits:
        return plain
    digits = "".join(map(str, Decimal(value).as_tuple().digits))
    kept = digits.rstrip("0")
    exponent = Decimal(value).adjusted() - len(kept) + 1
    return f"{'-' if value < 0 else ''}{kept}" + (f"e{exponent}" if exponent else "")


def literal(value: Number | Fraction) -> str:
    """A decimal literal for the native builder."""
    if isinstance(value, Fraction):
        value = to_decimal(value)
    return str(value).lower().replace("+", "")
