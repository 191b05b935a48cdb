"""GBNF grammars mean in Lark what they mean in llama.cpp."""

from __future__ import annotations

import pytest

from safegen.errors import GrammarError
from safegen.grammars.gbnf import from_gbnf
from safegen.grammars.lark_grammar import compile_grammar

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "accepted", "rejected"),
    [
        (
            JSON,
            ['{"a": [1, -2.5e+1, true]}', "{}", '{"\\u00e9": "\\n"}'],
            ['{"a"}', "[]", "", '{"\x1f": 1}', "{'a': 1}"],
        ),
        ('root ::= "a"', ["a"], ["", "aa"]),
        ('root ::= a-b A-B\na-b ::= "x"\nA-B ::= "y"', ["xy"], ["xx", "yy"]),
        ("root ::= [a-c]{2,3} [^a-c\\n]", ["abd", "abcé"], ["ad", "abcad", "ab\n"]),
        ('root ::= "x"{2} | ("y" "z"){1,} | "w"{0,}', ["xx", "yz", "yzyz", "", "www"], ["x", "y", "xxw"]),
        ('root ::= "x"{3,}', ["xxx", "xxxxx"], ["xx"]),
        (r'root ::= "\x41\u00e9\U0001F600\"\\" [\]\-\\^]', ['Aé😀"\\]', 'Aé😀"\\-', 'Aé😀"\\^'], ["Aé😀"]),
        ("root ::= . .", ["a\n", "é/"], ["a", "abc"]),
        ('root ::= list\nlist ::= list "," item | item\nitem ::= [0-9]+', ["1", "1,22,3"], ["1,", ",1"]),
        ('root ::= "a" |\n  "b" # comment\n\n# more\n', ["a", "b"], [""]),
        ('root ::= ("a" ( | "b"))? ""', ["", "a", "ab"], ["b"]),
        ('root ::= start "/" \nstart ::= [/\\]]', ["//", "]/"], ["/"]),
        ('root ::= "a"+ "b"* "c"?', ["a", "aabbc"], ["b", "acc"]),
        ("root ::= [-a] [a-]", ["-a", "a-"], ["b"]),
    ],
)
def test_imported_grammar_accepts_what_llama_cpp_does(grammar: str, accepted: list[str], rejected: list[str]) -> None:
    program = compile_grammar(from_gbnf(grammar)).program
    assert [text for text in accepted if not program.matches(text.encode())] == []
    assert [text for text in rejected if program.matches(text.encode())] == []


@pytest.mark.parametrize(
    ("grammar", "line", "column", "reason"),
    [
        ('rule ::= "a"', None, None, "no rule 'root'"),
        ("root ::= other", 1, 10, "'other' is used"),
        ('root ::= ("a"', 1, 10, "never closed"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "defined twice"),
        ('root ::= "a', 1, 10, "never closed"),
        ("root ::= [a", 1, 10, "never closed"),
        ("root ::= [z-a]", 1, 10, "falls"),
        ('root ::= "a"{3,2}', 1, 13, "falls"),
        ('root ::= "a"{x}', 1, 13, "expecting {m}"),
        (r'root ::= "\q"', 1, 11, "unknown escape"),
        (r'root ::= "\ud800"', 1, 11, "no character"),
        ("root ::= <[12]>", 1, 10, "tokens are not supported"),
        ('root = "a"', 1, 5, "'::='"),
        ('root ::= "a")', 1, 13, "closes nothing"),
    ],
)
def test_refusal_names_the_place(grammar: str, line: int | None, column: int | None, reason: str) -> None:
    with pytest.raises(GrammarError) as refusal:
        from_gbnf(grammar)
    assert reason in str(refusal.value)
    assert (refusal.value.line, refusal.value.column) == (line, column)


def test_deep_groups_cost_no_recursion() -> None:
    with pytest.raises(GrammarError, match="max_depth"):
        compile_grammar(from_gbnf("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000))
