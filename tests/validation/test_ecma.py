"""The ECMA-262 matcher: exact against Python's `re` on the common subset and against node.js on all of it."""

from __future__ import annotations

import random
import re
import time
import unicodedata

import pytest

from safegen.validation.ecma import EcmaRegex
from safegen.validation.ecma_syntax import parse_regex
from safegen.validation.ecma_tree import RegexSyntaxError, RegexUnsupported
from safegen.validation.outcome import ValidatorError
from tests.support.regex_generation import (
    ALPHABET,
    ATOMS,
    CLASSES,
    UNICODE_ATOMS,
    node_available,
    node_search,
    random_pattern,
    random_text,
)

needs_node = pytest.mark.skipif(not node_available(), reason="node.js is not installed")


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("ell", ["hello", "ell"], ["el", ""]),
        ("^abc$", ["abc"], ["abc\n", "xabc", "abcx"]),
        ("a.c", ["abc", "a😀c", "a\u0085c"], ["a\nc", "a\rc", "a\u2028c", "a\u2029c", "ac"]),
        (r"^\d+$", ["42"], ["৪২", "4a", ""]),
        (r"^\w$", ["a", "_", "0"], ["é", "\u017f", "-"]),
        (r"^\s$", [" ", "\ufeff", "\u00a0", "\u2028"], ["\u0085", "\u200b", "a"]),
        (r"\bcat\b", ["a cat.", "cat", "écaté"], ["concat", "cats"]),
        (r"a\Bb", ["ab"], ["a b"]),
        (r"^\p{Lu}\p{Nd}$", ["É৪", "A1"], ["é1", "AA"]),
        (r"^\p{General_Category=Decimal_Number}\P{L}$", ["11"], ["1a"]),
        (r"^[^\p{L}\d]$", ["-", "😀"], ["a", "é", "1"]),
        (r"^\u{1F432}\uD83D\uDC32*$", ["🐲", "🐲🐲", "🐲🐲🐲"], ["🐉", "D"]),
        (r"^[\u{1F600}-\u{1F602}]{2}$", ["😀😂"], ["😀", "😀😃"]),
        (r"^\x41\cJ\t\0$", ["A\n\t\0"], ["A\n\t"]),
        (r"^(?=.*[A-Z])(?=.*\d).{4,}$", ["aaA1"], ["aaaa", "A1"]),
        (r"^(?!.*--)[a-z-]+$", ["a-b", "-"], ["a--b"]),
        (r"(?<=\$)\d", ["$5"], ["5", "$a5"]),
        (r"(?<!\$)\d", ["5", "$55"], ["$5"]),
        (r"^a(?=b(?!c))", ["abd", "ab"], ["abc", "a"]),
        (r"^(?<=(?=a).)b|c", ["c"], ["b", "ab"]),
        (r"^(?i:straSSe)x$", ["STRASSEx", "stra\u017fsex"], ["STRASSEX", "straßex"]),
        (r"^(?i:[k-l])$", ["K", "\u212a"], ["m"]),
        (r"^(?i:[^k])$", ["x"], ["k", "K", "\u212a"]),
        (r"(?m:^b$)", ["a\nb", "b\nc"], ["ab"]),
        (r"^(?s:.)$", ["\n"], [""]),
        ("(a|^b)$", ["a", "b", "ca"], ["cb"]),
        ("a^b", [], ["ab", "a", "b", "a^b"]),
        ("a$b", [], ["ab", "a$b"]),
        ("[]", [], ["", "a"]),
        ("^[^]$", ["\n"], [""]),
        ("", ["", "a"], []),
        ("^(?:){1000000}$", [""], ["a"]),
        ("^(?:a{0}b)$", ["b"], ["ab"]),
        ("^a{1000,}$", ["a" * 1000, "a" * 1001], ["a" * 999]),
        (r"^[\]^-]+$", ["]^-"], ["a"]),
        (r"^(?<year>\d{4})-(\d\d)$", ["2024-01"], ["24-01"]),
    ],
)
def test_search_follows_ecma_262(pattern: str, accepted: list[str], refused: list[str]) -> None:
    regex = EcmaRegex(pattern, lenient=False)
    assert [text for text in accepted if not regex.search(text)] == []
    assert [text for text in refused if regex.search(text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "(" * 5000, "[a", "a**", "*", "{1}", "a{2,1}", "a{99999999999,99999999998}", r"\a", r"\-", r"\_", "a{",
     "}", "]", r"[b-a]", r"[\d-a]", r"\u{110000}", r"\u12", r"\x1", r"\c1", r"\01", "(?i)a", "(?ii:a)",
     "(?-:a)", "(?<1>a)", "(?<a>x)(?<a>y)", "\\", r"\p", "(?=a)*", "^*", r"\Z"],
)  # fmt: skip
def test_invalid_patterns_are_syntax_errors_with_a_column(pattern: str) -> None:
    with pytest.raises(RegexSyntaxError) as caught:
        parse_regex(pattern)
    assert caught.value.line == 1
    assert caught.value.column is not None


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [(r"(a)\1", "back-reference"), (r"(?<n>a)\k<n>", "back-reference"), (r"\p{Script=Klingon}", "Script=Klingon"),
     (r"\p{Emojis}", "Emojis"), ("((a{1000}){1000}){1000}", "states"), ("a{1000000000}", "states"),
     ("x" * 1_000_000, "characters"), ("(?:" * 400 + "a" + ")*" * 400, "deep")],
)  # fmt: skip
def test_unsupported_patterns_are_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(RegexUnsupported, match=reason):
        EcmaRegex(pattern)


def test_lenient_mode_reads_what_schema_authors_mean() -> None:
    for pattern, text in [
        (r"^\-\@\"\_$", '-@"_'),
        (r"^\{\{.+}}$", "{{x}}"),
        ("^a{,2}$", "a{,2}"),
        (r"^[\w-.]+$", "a-."),
    ]:
        with pytest.raises(RegexSyntaxError):
            EcmaRegex(pattern, lenient=False)
        assert EcmaRegex(pattern).search(text)
    for pattern in [r"\a", r"\Z", r"\z", "a(?i)b", "(?x)a", "(?)a"]:
        with pytest.raises(RegexSyntaxError):
            EcmaRegex(pattern)
    assert EcmaRegex("(?i)^abc$").search("ABC")
    assert EcmaRegex("^(?P<year>[0-9]{4})$").search("2024")
    assert EcmaRegex("(?s)^.$").search("\n")


def test_whole_patterns_span_the_text() -> None:
    for pattern, accepted, refused in [
        ("a|bc", "bc", "abc"),
        ("", "", "a"),
        ("(?i)a*", "aAa", "ab"),
        (r"\d\n", "1\n", "1\n\n"),
    ]:
        assert EcmaRegex(pattern, whole=True).search(accepted)
        assert not EcmaRegex(pattern, whole=True).search(refused)
    with pytest.raises(RegexSyntaxError):
        EcmaRegex("a)|(?:b", whole=True)


def test_deeply_nested_groups_without_effect_cost_nothing() -> None:
    assert EcmaRegex("(" * 20_000 + "a" + ")" * 20_000).search("bab")


def test_hostile_patterns_take_linear_time() -> None:
    started = time.perf_counter()
    assert not EcmaRegex("^(a*)*$").search("a" * 5000 + "b")
    assert not EcmaRegex("^(a|aa)+$").search("a" * 5000 + "b")
    assert not EcmaRegex("(a|b)*a(a|b){12}c").search("ab" * 1000)
    assert EcmaRegex("^(?=(a+)+b)(a|b)+$").search("a" * 2000 + "b")
    assert time.perf_counter() - started < 5


def test_exhausted_step_budget_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safegen.validation.ecma.MAX_STEPS", 1000)
    with pytest.raises(ValidatorError, match="1000 steps"):
        EcmaRegex("a?" * 300 + "b").search("a" * 300)


def test_caches_stay_bounded_and_correct_when_they_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safegen.validation.ecma.MAX_CACHED_STATES", 3)
    monkeypatch.setattr("safegen.validation.ecma.MAX_CACHED_CHARS", 2)
    regex = EcmaRegex("^(?:[a-m]{3}|[n-z]{2})+$")
    rng = random.Random(3)
    for _ in range(300):
        text = random_text(rng, "abmnz")
        assert regex.search(text) == bool(re.search(regex.pattern, text))
    assert len(regex._automaton._states) <= 3


def test_agrees_with_python_re_on_the_common_subset() -> None:
    rng = random.Random(1)
    atoms = ["a", "b", "0", "_", "ab", "[ab]", "[^a]", "[a-z]", "[0-9a]", "[^\n\r\u2028\u2029]", r"[\]-a]"]
    for _ in range(1500):
        pattern = random_pattern(rng, 4, atoms=atoms, looks=["(?=", "(?!"], anchors=["^", r"\Z", r"\b"])
        regex = EcmaRegex(pattern.replace(r"\Z", "$"))
        for _ in range(6):
            text = random_text(rng)
            assert regex.search(text) == bool(re.search(pattern, text, re.ASCII)), (pattern, text)


@needs_node
def test_agrees_with_node_on_random_patterns() -> None:
    rng = random.Random(2)
    looks = ["(?=", "(?!", "(?<=", "(?<!"]
    rows = []
    for _ in range(1500):
        pattern = random_pattern(
            rng, 4, atoms=ATOMS + CLASSES + UNICODE_ATOMS, looks=looks, anchors=["^", "$", r"\b", r"\B"]
        )
        # V8 lets an empty match such as \B begin between the halves of a surrogate pair; ECMA-262 does not.
        alphabet = ALPHABET.replace("😀", "") if r"\B" in pattern else ALPHABET
        rows.append((pattern, "u", [random_text(rng, alphabet) for _ in range(8)]))
    for (pattern, _, texts), verdicts in zip(rows, node_search(rows)):
        assert verdicts is not None, pattern
        regex = EcmaRegex(pattern, lenient=False)
        assert [regex.search(text) for text in texts] == verdicts, (pattern, texts)


@needs_node
def test_agrees_with_node_on_what_is_a_pattern() -> None:
    rng = random.Random(4)
    pieces = [*"ab01(){}[]|*+?^$.\\-,:=!<>/_", "(?:", "(?=", "(?<n>", "\\u", "{2,", "\\p{L}", "[^", "\\d", "\\x4"]
    rows = [("".join(rng.choice(pieces) for _ in range(rng.randrange(1, 7))), "u", ["ab1"]) for _ in range(4000)]
    for (pattern, _, texts), verdicts in zip(rows, node_search(rows)):
        try:
            found = [EcmaRegex(pattern, lenient=False).search(text) for text in texts]
        except RegexSyntaxError:
            assert verdicts is None, pattern
        except RegexUnsupported:
            assert "\\" in pattern, pattern
        else:
            assert found == verdicts, pattern


# Characters whose properties differ between the Unicode versions of supported Pythons (14 to 16) and of node.
REVISED = set("ƛɤꟓꟕʕჼꟲꟳꟴꭩ\u200c\u200d・･≭𑜞")


def disagreements_with_node(pattern: str, flags: str = "") -> set[str]:
    """Characters, assigned in this Python's and in node's version of Unicode, on which the verdicts differ."""
    points = [*range(0x3100), *range(0x3100, 0x1FFFF, 7)]
    chars = [chr(point) for point in points if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")]
    rows = [(rf"^(?:{pattern})$", "u" + flags, chars), (r"\p{Assigned}", "u", chars)]
    verdicts, assigned = node_search(rows)
    assert verdicts is not None
    assert assigned is not None
    regex = EcmaRegex(f"^(?{flags}:{pattern})$", lenient=False)
    rows_of_char = zip(chars, verdicts, assigned)
    return {char for char, expected, known in rows_of_char if known and regex.search(char) != expected} - REVISED


@needs_node
@pytest.mark.parametrize("flags", ["", "i"])
@pytest.mark.parametrize("pattern", [r"\w", r"\s", r"\d", r"\p{Lu}", r"[^\W_]", "[k-s]", "[^à-þ]"])
def test_agrees_with_node_on_every_code_point(pattern: str, flags: str) -> None:
    assert disagreements_with_node(pattern, flags) == set()


@needs_node
@pytest.mark.parametrize("name", ["White_Space", "Uppercase", "Lowercase", "XID_Start", "XID_Continue", "Bidi_Mirrored",
                                  "ASCII_Hex_Digit", "Hex_Digit", "Cased_Letter", "punct", "Mn", "gc=Lm"])  # fmt: skip
def test_unicode_properties_agree_with_node(name: str) -> None:
    assert disagreements_with_node(rf"\p{{{name}}}") == set()
