"""The regex front end: what is understood, what is refused by name and place, and that no input overflows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from safegen.errors import GrammarError
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.options import Limits
from safegen.grammars.regex import compile_choice, compile_regex
from safegen.grammars.regex_syntax import parse_regex
from safegen.grammars.regex_tree import Kind

Factory = Callable[..., Any]
TEXTS = ["".join(chars) for length in range(5) for chars in product("ab-", repeat=length)]
# Patterns on which Python's re and ECMA-262 agree for these texts, as full match and as search.
AGREED = [
    "ab|-", "a*b?-+", "(a|b-)+", "[^a]b", "[a-b]{2,3}", "a{2}", "(?:a|)b", "^ab", "b$", "^$", "a^b", "a$b", "(^a|b)-",
    "(a|^)b", "(b|$)", r"\ba", r"b\b", r"\Ba", r"a\B", r"\b", r"\b-\b", "(?=ab)a", "(?!ab)[ab]", "a(?=b)",
    "a(?!b)", "^(?=.*a)(?!.*--).{2,3}$", "(?=a|b-)..", r"(?=\bb)b", "a(?=b$)b", r"(?:a\b-){2}", r"(?:-?\bb){1,2}",
    r"\w\W", r"\d|\D", "(?:^a?)?b", "(?:a|b$)", "x?(?:^|-)a", r"(?!^)a", r"a(?!$)", "(?<first>a)b", "(?P<x>a)b",
    "a+?b??", "a?ab", "a*aab?b", "(?:a?-)*a?a?aa", "b?b?bb|a",
]  # fmt: skip


def fullmatches(pattern: str, make_builder: Factory) -> set[str]:
    program = compile_regex(pattern, make_builder=make_builder)
    return {text for text in TEXTS if program.matches(text.encode())}


@pytest.mark.parametrize("pattern", AGREED)
def test_full_match_is_that_of_python_on_all_short_texts(pattern: str, make_builder: Factory) -> None:
    python = pattern.replace("(?<first>", "(?P<first>").replace("$", r"\Z")
    expected = {text for text in TEXTS if re.fullmatch(python, text)}
    if expected:
        assert fullmatches(pattern, make_builder) == expected
    else:
        assert compiles_to_nothing(pattern, make_builder)


def compiles_to_nothing(pattern: str, make_builder: Factory) -> bool:
    try:
        compile_regex(pattern, make_builder=make_builder)
    except GrammarError as error:
        return "matches no text" in str(error)
    return False


@pytest.mark.parametrize("pattern", [pattern for pattern in AGREED if pattern not in ("a^b", "a$b")])
def test_schema_pattern_is_a_search_on_all_short_texts(pattern: str, make_builder: Factory) -> None:
    python = pattern.replace("(?<first>", "(?P<first>").replace("$", r"\Z")
    program = compile_json_schema({"type": "string", "pattern": pattern}, make_builder=make_builder).program
    assert {text for text in TEXTS if program.matches(b'"%s"' % text.encode())} == {
        text for text in TEXTS if re.search(python, text)
    }


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        (r"\d", ["7"], ["٣", "x"]),
        (r"\w+", ["a_1"], ["é"]),
        (r"\s", ["\u00a0", "\ufeff", "\t"], ["\u200b", "\u0085"]),
        (".", ["é", "😀", "\u0085"], ["\n", "\r", "\u2028", ""]),
        ("(?s).", ["\n"], [""]),
        (r"\p{L}\P{L}", ["ß1"], ["11", "ßß"]),
        (r"\p{Lu}\p{General_Category=Decimal_Number}", ["Ä٣"], ["ä3"]),
        (r"[\p{Nd}_-]+", ["٣-_"], ["a"]),
        (r"\p{ASCII}\p{White_Space}", ["a\u0085"], ["é "]),
        (r"\u0041\x42\u{1F600}\cJ\0", ["AB😀\n\0"], ["AB😀\n0"]),
        (r"\ud83d\ude00", ["😀"], ["\ud83d"]),
        (r"[\ud83d\ude00-\ud83d\ude02]", ["😁"], ["😃"]),
        (r"[\w-.]+", ["a-.", "-"], ["+"]),
        (r"[]a]|x", ["x"], ["a", "]", "]a"]),
        (r"[^]", ["\n", "a"], ["", "ab"]),
        (r"[\b]", ["\b"], ["b"]),
        ("a]}{b", ["a]}{b"], ["ab"]),
        (r"\-\@\ \"\/", ['-@ "/'], ["\\-"]),
        ("(?i)straße", ["STRAßE", "strasse"[:4] + "ẞe"], ["strasse"]),
        ("(?i:k)k", ["Kk", "\u212ak"], ["KK"]),
        ("(?i)[^k]", ["x"], ["K", "\u212a"]),
        ("(?i:a(?-i:b))", ["Ab"], ["AB"]),
        ("a{2}{", ["aa{"], ["aa"]),
        (r"\B", [""], ["a", " "]),
    ],
)
def test_classes_escapes_and_flags(
    pattern: str, accepted: list[str], rejected: list[str], make_builder: Factory
) -> None:
    program = compile_regex(pattern, make_builder=make_builder)
    assert [text for text in accepted if not program.matches(text.encode())] == []
    assert [text for text in rejected if program.matches(text.encode(errors="surrogatepass"))] == []


@pytest.mark.parametrize(
    ("pattern", "column", "reason"),
    [
        ("foo**", 5, "nothing to repeat"),
        ("*a", 1, "nothing to repeat"),
        ("a|+", 3, "nothing to repeat"),
        ("^*", 2, "nothing to repeat"),
        ("a{3,1}", 2, "reversed"),
        ("a{,3}", 2, "dialects"),
        ("ab(c", 3, "never closed"),
        ("ab)c", 3, "closes no group"),
        ("x[ab", 2, "never closed"),
        ("[b-a]", 2, "reversed"),
        ("a\\", 2, "backslash"),
        (r"(a)\1", 4, "back-reference"),
        (r"(?<n>a)\k<n>", 8, "back-reference"),
        ("(?P<n>a)(?P=n)", 9, "back-reference"),
        ("(?<=a)b", 1, "look-behind"),
        ("(?<!a)b", 1, "look-behind"),
        ("(?>a)", 1, "group"),
        ("a++", 3, "possessive"),
        (r"a\Z", 2, "use ^ and $"),
        (r"\q", 1, "no escape"),
        (r"\u12", 1, "hexadecimal"),
        (r"\u{110000}", 1, "10FFFF"),
        (r"\p{Script=Klingon}", 1, "'Script=Klingon'"),
        (r"\07", 1, "octal"),
        ("(?m)^a", 3, "flag 'm'"),
        ("a(?i)b", 2, "very start"),
        ("\ud800", 1, "lone surrogate"),
        ("((a{1000}){1000}){2}", 18, "max_count_product"),
    ],
)
def test_bad_regex_is_refused_with_its_column(pattern: str, column: int, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)) as refusal:
        compile_regex(pattern)
    assert refusal.value.column == column


@pytest.mark.parametrize("pattern", [r"(?:\bfoo\b\s*)+", "(?:(?!--).)*x", "(?:^a)*"])
def test_assertion_inside_an_open_repetition_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(GrammarError, match="inside a repeated group"):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", [r"[^\s\S]", "a^b", "(?!)", "a(?=b)c"])
def test_regex_that_matches_nothing_is_an_error(pattern: str, make_builder: Factory) -> None:
    assert compiles_to_nothing(pattern, make_builder)


def test_nesting_costs_no_recursion() -> None:
    assert parse_regex("(" * 40_000 + "a" + ")" * 40_000).kind is Kind.TEXT
    with pytest.raises(GrammarError, match="never closed"):
        parse_regex("(" * 90_000)
    with pytest.raises(GrammarError, match="max_depth"):
        parse_regex("(?:a" * 2_000 + ")*" * 2_000)


def test_long_regex_is_refused_by_its_limit() -> None:
    with pytest.raises(GrammarError, match="max_pattern_chars is 10"):
        compile_regex("x" * 11, Limits(max_pattern_chars=10))


@pytest.mark.parametrize("pattern", [None, 5, b"a"])
def test_regex_that_is_no_str_is_a_typed_error(pattern: object) -> None:
    with pytest.raises(GrammarError, match="must be a str"):
        compile_regex(pattern)  # type: ignore[arg-type]


def test_counts_are_not_unrolled() -> None:
    program = compile_regex("[ab]{0,20000}")
    assert program.matches(b"ab" * 10_000)
    assert not program.matches(b"ab" * 10_001)


def test_equal_repetitions_in_a_row_become_one_count() -> None:
    program = compile_regex("a?" * 2000 + "a" * 2000)
    assert program.matches(b"a" * 3000)
    assert not program.matches(b"a" * 1999)
    assert not program.matches(b"a" * 4001)


def test_choice_holds_exactly_its_values(make_builder: Factory) -> None:
    program = compile_choice(["yes", "no", "yesno", "é.*", ""], make_builder=make_builder)
    assert [t for t in ("yes", "no", "yesno", "é.*", "") if not program.matches(t.encode())] == []
    assert [t for t in ("y", "noyes", "éx", "e.*", "yes ") if program.matches(t.encode())] == []


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "at least one"),
        (["a", "b", "a"], "twice"),
        (["a", 1], "value 1"),
        ("ab", "list"),
        (["\ud800"], "surrogate"),
    ],
)
def test_bad_choice_is_refused(values: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compile_choice(values)


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?:(?!--)[a-c-])*$",
        "^((?!ab).)*$",
        "^(?:(?=[ab]).)*$",
        "^a(?:(?!bc).){2,}$",
        "^(?:(?!bbb)b)+$",
        "^(?:(?!a)(?!.b)[abc-](?=c|$|b))*$",
        "(?:(?!ab).)*$",
        "x(?:(?!a$).)+$",
    ],
)
def test_look_aheads_at_every_place_up_to_the_end(pattern: str) -> None:
    whole, part = compile_regex(pattern), compile_json_schema({"type": "string", "pattern": pattern}).program
    texts = ["".join(chars) for size in range(6) for chars in product("abc-x", repeat=size)]
    assert [text for text in texts if whole.matches(text.encode())] == [t for t in texts if re.fullmatch(pattern, t)]
    assert [text for text in texts if part.matches(f'"{text}"'.encode())] == [t for t in texts if re.search(pattern, t)]
