r"""`\p{...}`: scripts and binary properties, in the decoder and in the validator."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import regex

import safegen
from safegen import JsonSchema, Regex, SchemaError
from safegen.grammars import unicode_sets
from safegen.validation.ecma_classes import property_predicate

DATA = json.loads((Path(unicode_sets.__file__).parent / "unicode_properties.json").read_text("ascii"))
EXPRESSIONS = [
    *(f"Script={name}" for names in DATA["Script"] for name in names.split()),
    *(f"scx={names.split()[0]}" for names in DATA["Script"]),
    *(names.split()[0] for names in DATA["Binary"]),
]


def ranges_of(expression: str) -> unicode_sets.Ranges:
    ranges = unicode_sets.unicode_property(expression)
    assert ranges, expression
    assert unicode_sets.normalise(ranges) == ranges
    return ranges


def test_decoder_and_validator_agree_at_every_edge() -> None:
    for expression in EXPRESSIONS:
        name, equals, value = expression.partition("=")
        test = property_predicate(name, value if equals else None)
        assert test is not None, expression
        for low, high in ranges_of(expression):
            assert test(chr(low)) and test(chr(high)), expression
            assert not test(chr(high + 1)) and not (low and test(chr(low - 1))), expression


def test_scripts_do_not_overlap_and_extensions_hold_most_of_them() -> None:
    members = sum(high - low + 1 for names in DATA["Script"] for low, high in ranges_of(f"sc={names.split()[0]}"))
    union = unicode_sets.normalise(r for names in DATA["Script"] for r in ranges_of(f"sc={names.split()[0]}"))
    assert members == sum(high - low + 1 for low, high in union) > 150_000
    assert any(low <= ord("ー") <= high for low, high in ranges_of("scx=Hiragana"))
    assert not any(low <= ord("ー") <= high for low, high in ranges_of("sc=Hiragana"))


def test_sets_are_those_of_an_independent_library() -> None:
    known = {chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cs", "Cn")}
    every = "".join(sorted(known))
    for expression in EXPRESSIONS[::9]:
        found = {match.group() for match in regex.finditer(rf"\p{{{expression}}}", every)}
        listed = {chr(code) for low, high in ranges_of(expression) for code in range(low, min(high, 0x1FFFF) + 1)}
        assert found == listed & known, expression


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\p{Script=Cyrillic}+", "Москва", "Moskva"),
        (r"\p{sc=Greek}+", "αβγ", "abc"),
        (r"\p{scx=Hira}+", "らーめん", "ラメン"),
        (r"\P{Script=Latin}+", "123", "12a"),
        (r"[\p{Script=Han}\p{L}0-9]+", "漢字A1", "-"),
        (r"\p{Emoji_Presentation}", "😀", "a"),
        (r"\p{Uppercase}\p{Lower}+", "Éa", "éa"),
        (r"\p{ID_Start}\p{ID_Continue}*", "a1", "1a"),
    ],
)
def test_properties_decide(pattern: str, good: str, bad: str) -> None:
    assert safegen.matches(Regex(pattern), good)
    assert not safegen.matches(Regex(pattern), bad)
    schema = JsonSchema({"type": "string", "pattern": f"^{pattern}$"})
    assert safegen.matches(schema, json.dumps(good, ensure_ascii=False))
    assert not safegen.matches(schema, json.dumps(bad, ensure_ascii=False))


@pytest.mark.parametrize("name", ["Script=Klingon", "sc=latin", "Scripts=Latin", "Emojis", "Script="])
def test_unknown_properties_are_refused_by_name(name: str) -> None:
    with pytest.raises(SchemaError, match=name):
        safegen.matches(JsonSchema({"pattern": rf"\p{{{name}}}"}), '""')
