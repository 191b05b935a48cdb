"""Strict JSON: exact numbers in, everything that two readers could read differently out."""

from __future__ import annotations

import enum
import time
from decimal import Decimal
from typing import Any

import pytest

from safegen.errors import SchemaError
from safegen.validation.outcome import JsonSyntaxError
from safegen.validation.strict_json import exact_copy, parse_strict


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        (" [true, false]\n", [True, False]),
        ('{"a": {"b": [1, -2]}}', {"a": {"b": [1, -2]}}),
        ('"\\u00e9\\ud83d\\ude00\\n\\/"', "é😀\n/"),
        (b'"\xc3\xa9"', "é"),
        ("0.1", Decimal("0.1")),
        ("1.0", Decimal("1.0")),
        ("-0", 0),
        ("1E+2", Decimal(100)),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("0e99999999999999999999999", Decimal(0)),
    ],
)
def test_values_are_exact(text: str | bytes, value: Any) -> None:
    parsed = parse_strict(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_fractions_keep_every_digit() -> None:
    digits = "0." + "123456789" * 50
    assert str(parse_strict(digits)) == digits


def test_integers_beyond_python_s_digit_limit_are_exact() -> None:
    parsed = parse_strict("1" + "0" * 5000)
    assert parsed == 10**5000
    assert parsed != 10**5000 + 1


def test_huge_exponents_are_held_without_expanding_them() -> None:
    started = time.perf_counter()
    assert parse_strict("1e999999999") > parse_strict("9e999999998")
    assert parse_strict("1e-999999999") > 0
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":1}', "'a' occurs twice"),
        ('{"a":1,"\\u0061":2}', "'a' occurs twice"),
        ('[{"x":{"k":1,"k":1}}]', "'k' occurs twice"),
        ("NaN", "NaN"),
        ("[Infinity]", "Infinity"),
        ("-Infinity", "Infinity"),
        ("[1,]", "not JSON"),
        ("{'a':1}", "not JSON"),
        ("01", "not JSON"),
        ("1.", "not JSON"),
        (".5", "not JSON"),
        ("+1", "not JSON"),
        ("1 2", "not JSON"),
        ('"a" x', "not JSON"),
        ("", "not JSON"),
        ('"\t"', "not JSON"),
        ('"\\x41"', "not JSON"),
        ('"\\u00g0"', "not JSON"),
        ('"unfinished', "not JSON"),
        ("\u00a01", "not JSON"),
        ("١", "not JSON"),
        ('"\\ud800"', "lone surrogate"),
        ('["ok", {"\\uDC00": 1}]', "lone surrogate"),
        ('"\\ude00\\ud83d"', "lone surrogate"),
        ('"\ud800"', "lone surrogate"),
        (b'"\xff"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'"\xc0\xaf"', "UTF-8"),
        ("\ufeff1", "byte order mark"),
        (b"\xef\xbb\xbf1", "byte order mark"),
        ("1e99999999999999999999", "exponent out of range"),
        ("1e-99999999999999999999", "exponent out of range"),
        ("[" * 257 + "]" * 257, "256 deep"),
        ('{"a":' * 100_000, "256 deep"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_its_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(JsonSyntaxError, match=reason):
        parse_strict(text)


def test_lone_surrogates_are_located() -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        parse_strict('{"a/b": ["x", "\\ud800"]}')
    assert caught.value.instance_pointer == "/a~1b/1"


def test_nesting_is_counted_outside_strings_only() -> None:
    assert parse_strict('"' + "[" * 1000 + '\\"{"') == "[" * 1000 + '"{'
    assert len(parse_strict("[" + ",".join(["[]"] * 1000) + "]")) == 1000
    depth = 0
    value = parse_strict("[" * 256 + "]" * 256)
    while value:
        value, depth = value[0], depth + 1
    assert depth == 255


def test_python_schemas_become_exact_json() -> None:
    class Colour(str, enum.Enum):  # noqa: UP042 -- its str() is not its value
        RED = "red"

    copied = exact_copy({"multipleOf": 0.1, "enum": (Colour.RED, 1e22, 10**700), "b": True})
    assert copied == {"multipleOf": Decimal("0.1"), "enum": ["red", Decimal("1e22"), 10**700], "b": True}
    assert type(copied["enum"][0]) is str
    assert isinstance(copied["enum"][2], Decimal)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"a": {"b/c": float("nan")}}, "/a/b~1c"),
        ({"minimum": float("inf")}, "/minimum"),
        ({"const": {1, 2}}, "/const"),
        ({"const": b"x"}, "/const"),
        ({"properties": {1: {}}}, "/properties"),
        ({"const": "\ud800"}, "/const"),
    ],
)
def test_python_values_that_are_no_json_are_located(schema: Any, pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        exact_copy(schema)
    assert caught.value.pointer == pointer


def test_python_values_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safegen.validation.strict_json.MAX_NODES", 10_000)
    cyclic: dict[str, Any] = {}
    cyclic["items"] = cyclic
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    for value in (cyclic, shared):
        with pytest.raises(SchemaError, match=r"nested too deep|more than"):
            exact_copy(value)
