"""What the grammar front end takes beyond Lark, what it refuses, and where it says so."""

from __future__ import annotations

import random

import pytest

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.options import Limits
from tests.grammars.lark_oracle import accepts, earley, random_text, words


def language(grammar: str, letters: str, longest: int) -> set[str]:
    program = compile_grammar(grammar).program
    return {text for text in words(letters, longest) if program.matches(text.encode())}


def test_common_terminals_match_as_in_lark() -> None:
    names = ["ESCAPED_STRING", "SIGNED_NUMBER", "CNAME", "WS", "C_COMMENT", "SH_COMMENT", "NEWLINE"]
    grammar = "\n".join(f"%import common.{name}" for name in names) + "\nstart: " + " | ".join(names)
    parser, program = earley(grammar), compile_grammar(grammar).program
    texts = ['"a"', '"a\\"b"', '"a"b"', '"\\\\"', '"\\"', '"a\nb"', '"\\\\\\""', "-1.5e+3", "1.", ".5", "1e", "_a9",
             "9a", " \t\n", "/* a */", "/* a */ */", "/**/", "# x", "# x\n", "\r\n\n", "\r"]  # fmt: skip
    assert [program.matches(text.encode()) for text in texts] == [accepts(parser, text) for text in texts]
    rng = random.Random(3)
    assert all(accepts(parser, random_text(program, rng, 8)) for _ in range(40))


def test_intersection_and_complement_of_terminals() -> None:
    assert language("start: A\nA: /[ab]+/ & ~/.*bb.*/ & ~/a/", "ab", 4) == {
        text for text in words("ab", 4) if text and "bb" not in text and text != "a"
    }
    # "&" binds tighter than "|" and looser than a sequence; "~" binds tightest.
    assert language('start: A\nA: "a" | B & ~("b" | "bb") "b"? | "bab"\nB: /b+/', "ab", 4) == {
        "a", "b", "bbb", "bbbb", "bab",  # "b" is the empty text, no "b" or "bb", then the "b"
    }  # fmt: skip
    assert language('start: A+\nA: /[ab]{2}/ & (~"ab")\n', "ab", 2) == {"aa", "ba", "bb"}
    assert language('start: (A ",")+\nA: /[ab]/ ~ 1..2\n & ~"ab"\n', "ab,", 3) == {
        text
        for text in words("ab,", 3)
        if text.endswith(",") and {"a", "b", "aa", "ba", "bb"}.issuperset(text[:-1].split(","))
    }


def test_embedded_schema_is_enforced() -> None:
    program = compile_grammar(
        'start: "call" NAME %json {\n  "type": "object", "properties": {"x": {"type": "integer"}},\n'
        '  "required": ["x"], "additionalProperties": false} ";"?\nNAME: /[a-z]+/\n%ignore " "\n'
    ).program
    assert program.matches(b'call f {"x":1};')
    assert program.matches(b'callf{"x":1}')
    assert not program.matches(b'call f {"x":1.5};')
    assert not program.matches(b'call f {"x":1')


@pytest.mark.parametrize(
    ("grammar", "line", "column", "words_of_reason"),
    [
        ('start: "a"\n  | "b" (\n', 2, 10, "Expecting a value"),
        ("start: a\nb: /x/\n", 1, 8, "'a' used but not defined"),
        ('start: A\nB: "x"\nA: /(a)\\1/\n', 3, 1, "back-reference"),
        ("start: A\nA: /a$/\n", 2, 1, "anchor"),
        ("start: A\nA: /a++/\n", 2, 1, "possessive"),
        ("start: A\nA: /x*/\n", 2, 1, "zero width"),
        ("start: A\n%declare A\n", 2, 1, "%declare"),
        ("%import secret.A\nstart: A\n", 1, 1, "secret"),
        ("start: A\n%import ..x.A\n", 2, 1, "no file is read"),
        ('start: "x" %json {"type": 7}\n', 1, 12, "type"),
        ('start: "x"\n  %json {"a" 7}\n', 2, 14, "delimiter"),
        ("start: A\nA: /a/ & \n", None, None, "both sides"),
        ("start: A\nA: /a/ & ~A\n", 2, 1, "refers to itself"),
        ("start: A\nA: /[a-z]+(?!x)/\n", 2, 1, "look past the end"),
        ('start: "a"\nstart: "b"\n', 2, 1, "more than once"),
        ('start: "a" start\n', None, None, "No finite text"),
        ("start: /a/ & /b/\n", None, None, ""),
    ],
)
def test_refusal_names_the_place_and_the_reason(
    grammar: str, line: int | None, column: int | None, words_of_reason: str
) -> None:
    with pytest.raises(GrammarError) as refusal:
        compile_grammar(grammar)
    assert words_of_reason in str(refusal.value)
    if line is not None:
        assert refusal.value.line == line
    if column is not None:
        assert refusal.value.column == column


def test_another_rule_can_be_the_start() -> None:
    assert compile_grammar('a: "x"\nb: a a', start="b").program.matches(b"xx")
    with pytest.raises(GrammarError, match="no rule 'start'"):
        compile_grammar('a: "x"\n')


@pytest.mark.parametrize(
    "grammar",
    [
        "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        'start: "' + "k" * 2_000_000 + '"',
        'start: t{"a"}\nt{x}: t{u{x}} "b" | x\nu{x}: x x',
        'start: "a" ~ 5..2',
        "start: A\nA: /(?:a{1000}){1000}b{1000}|.{1,5000}?(a|b){1,3000}?x/",
        "\n".join(f"r{i}: {' | '.join(f'r{j} /x/' for j in range(400))}" for i in range(400)).replace("r0", "start"),
        "start: a\na: b\nb: a",
        "start",
        "%",
        'start: "a"\x00',
        "start: \ud800",
    ],
)
def test_hostile_grammar_ends_in_a_typed_error(grammar: str) -> None:
    with pytest.raises(GrammarError):
        compile_grammar(grammar)


def test_ten_thousand_rules_compile() -> None:
    chain = "".join(f'r{i}: "x" r{i + 1} | "y{i}"\n' for i in range(3000)) + 'r3000: "end"\n'
    program = compile_grammar("start: r0\n" + chain).program
    assert program.matches(b"xxxy3")
    assert program.matches(b"x" * 3000 + b"end")


def test_limits_are_named() -> None:
    with pytest.raises(GrammarError, match="max_grammar_chars"):
        compile_grammar('start: "a"', limits=Limits(max_grammar_chars=5))
    with pytest.raises(GrammarError, match="max_productions"):
        compile_grammar('start: "a" | "b" | start "c"', limits=Limits(max_productions=2))


@pytest.mark.parametrize(
    "grammar",
    ['start: "a" "\\r" "\\n"\n%ignore /(\\r?\\n)+/', 'start: "a" "b" "c"\n%ignore /c(bc)*/'],
)
def test_ignored_text_that_ties_tokens_together_is_refused(grammar: str) -> None:
    with pytest.raises(GrammarError, match="ignored terminal may go on"):
        compile_grammar(grammar)
