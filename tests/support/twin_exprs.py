"""Exprs of the twin: Brzozowski derivatives over interned tuples, numbers judged whole by decimal arithmetic.

Emptiness of exprs that hold numbers is decided by trying the numbers at and around every bound and divisor in them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

from safegen._native import LimitExceeded
from safegen.errors import GrammarError
from safegen.validation.ecma_syntax import is_ecma_regex

Key = tuple[Any, ...]
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_SHORT_ESCAPES = {b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_EXPLORED_STATES = 20_000


def utf8_sequences(low: int, high: int) -> list[list[tuple[int, int]]]:
    """Byte ranges of UTF-8 for the code points low..high, surrogates left out."""
    cuts = [0, 0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x110000]
    found: list[list[tuple[int, int]]] = []
    for start, stop in zip(cuts, cuts[1:]):
        if start != 0xD800 and low < stop and high >= start:
            found += _split(chr(max(low, start)).encode(), chr(min(high, stop - 1)).encode())
    return found


def _split(low: bytes, high: bytes) -> list[list[tuple[int, int]]]:
    if len(low) == 1:
        return [[(low[0], high[0])]]
    if low[0] == high[0]:
        return [[(low[0], low[0]), *rest] for rest in _split(low[1:], high[1:])]
    tail = len(low) - 1
    if low[1:] != b"\x80" * tail:
        return _split(low, bytes([low[0]]) + b"\xbf" * tail) + _split(bytes([low[0] + 1]) + b"\x80" * tail, high)
    if high[1:] != b"\xbf" * tail:
        return _split(low, bytes([high[0] - 1]) + b"\xbf" * tail) + _split(bytes([high[0]]) + b"\x80" * tail, high)
    return [[(low[0], high[0]), *[(0x80, 0xBF)] * tail]]


class Exprs:
    """Interned exprs and their derivatives."""

    def __init__(self, max_digits: int, max_exponent_digits: int) -> None:
        self.max_digits = max_digits
        self.max_exponent_digits = max_exponent_digits
        self.keys: list[Key] = []
        self.ids: dict[Key, int] = {}
        self.derivatives: dict[tuple[int, int], int] = {}
        self.nullables: dict[int, bool] = {}
        self.cut_points: dict[int, frozenset[int]] = {}
        self.empties: dict[int, bool] = {}
        self.empty = self.intern(("empty",))
        self.epsilon = self.intern(("epsilon",))
        self.everything = self.intern(("not", self.empty))
        self.any_text = self.repeat(self.chars([(0, 0x10FFFF)]), 0, None)

    def intern(self, key: Key) -> int:
        known = self.ids.get(key)
        if known is None:
            known = self.ids[key] = len(self.keys)
            self.keys.append(key)
        return known

    def bytes_of(self, ranges: Iterable[tuple[int, int]]) -> int:
        members = frozenset(byte for low, high in ranges for byte in range(low, high + 1))
        return self.intern(("bytes", members)) if members else self.empty

    def chars(self, ranges: Sequence[tuple[int, int]]) -> int:
        sequences = [seq for low, high in ranges for seq in utf8_sequences(low, high)]
        return self.alternate([self.concat([self.bytes_of([r]) for r in seq]) for seq in sequences])

    def literal(self, text: bytes) -> int:
        return self.strings([text])

    def strings(self, values: Sequence[bytes]) -> int:
        ordered = tuple(sorted(set(values)))
        return self._strings(ordered, 0, len(ordered), 0)

    def _strings(self, values: tuple[bytes, ...], start: int, stop: int, depth: int) -> int:
        if start == stop:
            return self.empty
        if stop - start == 1 and len(values[start]) == depth:
            return self.epsilon
        rest = tuple(value[depth:] for value in values[start:stop]) if stop - start < 50 else None
        if rest is not None:
            values, start, stop, depth = rest, 0, len(rest), 0
        return self.intern(("strings", values, start, stop, depth))

    def concat(self, parts: Sequence[int]) -> int:
        result = self.epsilon
        for part in reversed(parts):
            result = self._join(part, result)
        return result

    def _join(self, first: int, rest: int) -> int:
        if self.empty in (first, rest):
            return self.empty
        if first == self.epsilon:
            return rest
        if rest == self.epsilon:
            return first
        key = self.keys[first]
        if key[0] == "concat":
            return self._join(key[1], self._join(key[2], rest))
        return self.intern(("concat", first, rest))

    def alternate(self, parts: Sequence[int]) -> int:
        flat: set[int] = set()
        for part in parts:
            key = self.keys[part]
            flat |= key[1] if key[0] == "alternate" else {part}
        flat.discard(self.empty)
        if self.everything in flat:
            return self.everything
        if len(flat) < 2:
            return flat.pop() if flat else self.empty
        return self.intern(("alternate", frozenset(flat)))

    def intersect(self, parts: Sequence[int]) -> int:
        flat: set[int] = set()
        for part in parts:
            key = self.keys[part]
            flat |= key[1] if key[0] == "intersect" else {part}
        flat.discard(self.everything)
        if self.empty in flat:
            return self.empty
        if len(flat) < 2:
            return flat.pop() if flat else self.everything
        return self.intern(("intersect", frozenset(flat)))

    def complement(self, part: int) -> int:
        key = self.keys[part]
        return key[1] if key[0] == "not" else self.intern(("not", part))

    def repeat(self, part: int, low: int, high: int | None) -> int:
        if high == 0 or (high is not None and high < low):
            return self.epsilon if high == 0 and low == 0 else self.empty
        if part in (self.empty, self.epsilon):
            return self.epsilon if low == 0 or part == self.epsilon else self.empty
        if (low, high) == (1, 1):
            return part
        return self.intern(("repeat", part, 0 if self.nullable(part) else low, high))

    def ecma_pattern(self, properties: Sequence[bytes]) -> int:
        """Texts of regular expressions, by the validator's parser."""
        return self.intern(("pattern", frozenset(properties), b""))

    def nullable(self, expr: int) -> bool:
        known = self.nullables.get(expr)
        if known is None:
            known = self.nullables[expr] = self._nullable(self.keys[expr])
        return known

    def _nullable(self, key: Key) -> bool:
        match key:
            case ("epsilon",):
                return True
            case ("strings", values, start, stop, depth):
                return any(len(value) == depth for value in values[start:stop])
            case ("concat", first, rest):
                return self.nullable(first) and self.nullable(rest)
            case ("alternate", parts):
                return any(map(self.nullable, parts))
            case ("intersect", parts):
                return all(map(self.nullable, parts))
            case ("not", part):
                return not self.nullable(part)
            case ("repeat", part, low, _):
                return low == 0 or self.nullable(part)
            case ("number", spec, text):
                return self.number_holds(spec, text)
            case ("pattern", properties, text):
                return _is_pattern(text, properties)
        return False

    def derive(self, expr: int, byte: int) -> int:
        known = self.derivatives.get((expr, byte))
        if known is None:
            known = self.derivatives[expr, byte] = self._derive(self.keys[expr], byte)
        return known

    def _derive(self, key: Key, byte: int) -> int:
        match key:
            case ("bytes", members):
                return self.epsilon if byte in members else self.empty
            case ("strings", values, start, stop, depth):
                return self._derive_strings(values, start, stop, depth, byte)
            case ("concat", first, rest):
                joined = self._join(self.derive(first, byte), rest)
                if not self.nullable(first):
                    return joined
                return self.alternate([joined, self.derive(rest, byte)])
            case ("alternate", parts):
                return self.alternate([self.derive(part, byte) for part in parts])
            case ("intersect", parts):
                return self.intersect([self.derive(part, byte) for part in parts])
            case ("not", part):
                return self.complement(self.derive(part, byte))
            case ("repeat", part, low, high):
                rest = self.repeat(part, max(0, low - 1), None if high is None else high - 1)
                return self._join(self.derive(part, byte), rest)
            case ("number", spec, text):
                longer = text + bytes([byte])
                too_long = len(longer) > self.max_digits + self.max_exponent_digits + 4
                return (
                    self.empty if too_long or byte not in b"0123456789.eE+-" else self.intern(("number", spec, longer))
                )
            case ("pattern", properties, text):
                return self.intern(("pattern", properties, text + bytes([byte])))
            case ("string", content, pending):
                return self._derive_string(content, pending, byte)
        return self.empty

    def _derive_strings(self, values: tuple[bytes, ...], start: int, stop: int, depth: int, byte: int) -> int:
        prefix = values[start][:depth]
        low = bisect_left(values, prefix + bytes([byte]), start, stop)
        above = prefix + bytes([byte + 1]) if byte < 255 else None
        high = stop if above is None else bisect_left(values, above, start, stop)
        return self._strings(values, low, high, depth + 1)

    # JSON strings. pending: None before the opening quote, else the bytes of an unfinished escape.

    def json_string(self, content: int) -> int:
        return self.intern(("string", self.intersect([content, self.any_text]), None))

    def _string(self, content: int, pending: bytes) -> int:
        return self.empty if content == self.empty else self.intern(("string", content, pending))

    def _derive_string(self, content: int, pending: bytes | None, byte: int) -> int:
        char = bytes([byte])
        if pending is None:
            return self._string(content, b"") if char == b'"' else self.empty
        if pending == b"":
            if char == b'"':
                return self.epsilon if self.nullable(content) else self.empty
            if char == b"\\":
                return self._string(content, char)
            return self.empty if byte < 0x20 else self._string(self.derive(content, byte), b"")
        if pending == b"\\" and char in _SHORT_ESCAPES:
            return self._string(self.derive(content, _SHORT_ESCAPES[char][0]), b"")
        return self._unicode_escape(content, pending + char)

    def _unicode_escape(self, content: int, pending: bytes) -> int:
        if re.fullmatch(rb"\\(u([0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(\\(u([0-9a-fA-F]{0,3}))?)?))", pending):
            return self._string(content, pending)
        if not re.fullmatch(rb"\\u[0-9a-fA-F]{4}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?", pending):
            return self.empty
        code = int(pending[2:6], 16)
        if len(pending) == 12:
            code = 0x10000 + ((code - 0xD800) << 10) + int(pending[8:12], 16) - 0xDC00
        if 0xD800 <= code < 0xE000:
            return self.empty
        for decoded in chr(code).encode():
            content = self.derive(content, decoded)
        return self._string(content, b"")

    # Numbers. spec: (integer, plain, low, low_exclusive, high, high_exclusive, multiple_of, not_multiples_of).

    def number_holds(self, spec: Key, text: bytes) -> bool:
        integer, plain, low, low_exclusive, high, high_exclusive, divisor, excluded = spec
        found = _NUMBER.fullmatch(text.decode("ascii"))
        if found is None:
            return False
        _, whole, fraction, _, exponent = found.groups()
        if len(whole) + len(fraction or "") > self.max_digits or len(exponent or "") > self.max_exponent_digits:
            return False
        if plain and (fraction is not None or exponent is not None or text == b"-0"):
            return False
        value = Decimal(text.decode("ascii"))
        if low is not None and (value < low or (low_exclusive and value == low)):
            return False
        if high is not None and (value > high or (high_exclusive and value == high)):
            return False
        if integer and Fraction(value).denominator != 1:
            return False
        if any((Fraction(value) / Fraction(other)).denominator == 1 for other in excluded):
            return False
        return divisor is None or (Fraction(value) / Fraction(divisor)).denominator == 1

    def count_up_to(self, expr: int, limit: int) -> int:
        """How many texts there are, at most `limit`, level by level."""
        count, level = 0, [] if self.is_empty(expr) else [expr]
        while level and count + len(level) < limit:  # each state leads to a text of its own
            count += sum(map(self.nullable, level))
            deeper: list[int] = []
            for state in level:
                following = (self.derive(state, byte) for byte in range(256))
                deeper += (each for each in following if each != self.empty and not self.is_empty(each))
                if count + len(deeper) >= limit:
                    return limit
            level = deeper
        return limit if level else count

    def texts(self, expr: int, limit: int) -> list[bytes] | None:
        if self.count_up_to(expr, limit + 1) > limit:
            return None
        found: list[bytes] = []
        open_ = [(expr, b"")]
        while open_:
            state, text = open_.pop()
            found += [text] if self.nullable(state) else []
            following = ((self.derive(state, byte), text + bytes([byte])) for byte in range(256))
            open_ += (each for each in following if not self.is_empty(each[0]))
        return found

    # Emptiness.

    def is_empty(self, expr: int) -> bool:
        known = self.empties.get(expr)
        if known is None:
            known = self.empties[expr] = self._is_empty(expr)
        return known

    def _is_empty(self, expr: int) -> bool:
        key = self.keys[expr]
        match key:
            case ("alternate", parts):
                return all(map(self.is_empty, parts))
            case ("concat", first, rest):
                return self.is_empty(first) or self.is_empty(rest)
            case ("repeat", part, low, _):
                return low != 0 and self.is_empty(part)
            case ("string", content, None):
                return self.is_empty(content)
            case ("pattern", *_):  # dead ends are not told apart
                return False
        specs = self._number_specs(expr)
        if specs:
            return not any(self.matches(expr, text) for text in self._number_samples(specs))
        return self._explores_to_nothing(expr)

    def _explores_to_nothing(self, expr: int) -> bool:
        seen, stack = {expr}, [expr]
        while stack:
            state = stack.pop()
            if self.nullable(state):
                return False
            cuts = sorted(self.cuts(state))
            for byte in cuts:
                following = self.derive(state, byte)
                if following != self.empty and following not in seen:
                    seen.add(following)
                    stack.append(following)
            if len(seen) > _EXPLORED_STATES:
                raise LimitExceeded("the twin explored too many states")
        return True

    def cuts(self, expr: int) -> frozenset[int]:
        """One byte of every class of bytes that the expr treats alike (perhaps more)."""
        known = self.cut_points.get(expr)
        if known is None:
            known = self.cut_points[expr] = frozenset((0,)) | self._cuts(self.keys[expr])
        return known

    def _cuts(self, key: Key) -> frozenset[int]:
        match key:
            case ("bytes", members):
                edges = {byte for byte in members if byte - 1 not in members}
                edges |= {byte + 1 for byte in members if byte + 1 not in members}
                return frozenset(edges - {256})
            case ("strings", values, start, stop, depth):
                firsts = {value[depth] for value in values[start:stop] if len(value) > depth}
                return frozenset(firsts | {byte + 1 for byte in firsts if byte < 255})
            case ("concat", first, rest):
                return self.cuts(first) | (self.cuts(rest) if self.nullable(first) else frozenset())
            case ("alternate" | "intersect", parts):
                return frozenset().union(*map(self.cuts, parts))
            case ("not" | "repeat", part, *_):
                return self.cuts(part)
            case ("string" | "number" | "pattern", *_):
                return frozenset(range(256))
        return frozenset()

    def _number_specs(self, expr: int) -> list[Key]:
        key = self.keys[expr]
        if key[0] == "number":
            return [key[1]]
        if key[0] in ("intersect", "alternate"):
            return [spec for part in key[1] for spec in self._number_specs(part)]
        return self._number_specs(key[1]) if key[0] == "not" else []

    def _number_samples(self, specs: list[Key]) -> list[bytes]:
        bounds = {Decimal(0)} | {bound for spec in specs for bound in (spec[2], spec[4]) if bound is not None}
        steps = {Decimal(1), Decimal("0.001")} | {spec[6] for spec in specs if spec[6] is not None}
        values = set(bounds)
        for bound, step in product(bounds, steps):
            aligned = (bound // step) * step
            values |= {base + k * step for base in (bound, aligned) for k in range(-40, 41)}
        values |= {(a + b) / 2 for a, b in product(bounds, bounds)}
        return [format(value.normalize(), "f").encode() for value in values if abs(value.adjusted()) < 60]

    def matches(self, expr: int, text: bytes) -> bool:
        for byte in text:
            expr = self.derive(expr, byte)
            if expr == self.empty:
                return False
        return self.nullable(expr)


def _is_pattern(text: bytes, properties: frozenset[bytes]) -> bool:
    if any(name not in properties for name in re.findall(rb"\\[pP]\{([^}]*)\}", text)):
        return False
    try:
        return is_ecma_regex(text.decode())
    except (UnicodeDecodeError, GrammarError):
        return False
