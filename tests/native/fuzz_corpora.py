"""What the fuzzer starts from: texts of each front end, pieces of its language, the shared corpora where they are."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from safegen.grammars import library
from tests.grammars.lark_oracle import random_grammar
from tests.grammars.random_schemas import SchemaGenerator
from tests.support.regex_generation import ATOMS, CLASSES, COUNTS, UNICODE_ATOMS, random_pattern
from tests.support.suites import CASES, DATA, suite_groups

MAX_SEED_CHARS = 3000

EMBEDDED = r"""
start: "v=" v | NAME
v: %json {"type": "array", "items": {"type": "integer"}}
NAME: /[a-z]{2,6}/ & ~/.*x.*/
"""

GBNF_JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def case_specs(kind: str) -> list[Any]:
    path = CASES / "constraints.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [row["spec"] for row in rows if row["kind"] == kind]


def schemas() -> list[str]:
    found = [*case_specs("schema"), *(SchemaGenerator(random.Random(seed)).document() for seed in range(200))]
    if DATA.is_dir():
        found += [group.schema for group in suite_groups(with_apart=True)]
        with gzip.open(DATA / "maskbench-dev.jsonl.gz", "rt", encoding="utf-8") as lines:
            found += [json.loads(line)["schema"] for line in lines]
    texts = (json.dumps(schema, ensure_ascii=False) for schema in found)
    return [text for text in texts if len(text) <= MAX_SEED_CHARS]


def regexes() -> list[str]:
    rng = random.Random("regexes")
    atoms = ATOMS + CLASSES + UNICODE_ATOMS
    drawn = [random_pattern(rng, 4, atoms=atoms, looks=["(?=", "(?!"], anchors=["^", "$", r"\b"]) for _ in range(300)]
    return [*case_specs("regex"), *drawn]


def grammars() -> list[str]:
    rng = random.Random("grammars")
    drawn = [random_grammar(rng, with_ignore=number % 3 == 0) for number in range(100)]
    return [*case_specs("grammar"), *drawn, EMBEDDED, *map(library.load, library.names())]


def gbnf() -> list[str]:
    return [
        GBNF_JSON,
        'root ::= "x"{2} | ("y" "z"){1,} | "w"{0,} # counts',
        'root ::= list\nlist ::= list "," item | item\nitem ::= [a-z0-9_-]{1,3} | .',
        'root ::= ("a" ( | "b"))? ""\n',
        r'root ::= "\x41\u00e9\U0001F600\"\\" [\]\-\\^] [^a-c\n]',
    ]


CORPORA: dict[str, Callable[[], list[str]]] = {
    "schema": schemas,
    "regex": regexes,
    "grammar": grammars,
    "gbnf": gbnf,
}

_SCHEMA_WORDS = r"""
{" ": "} [] {} null true false 1e999 -0.0 1e-400 "\ud800" \u0000 "$ref":"#" "$ref":"#/$defs/a" "$defs": "type":"object"
"type":"array" "enum":[] "uniqueItems":true "pattern":"(a|b)*" "not":{} "allOf":[ "oneOf":[ "minContains":2
"contains":{} "unevaluatedProperties":false "maxItems":99999999999 "multipleOf":1e-9 "propertyNames": "const":
"dependentSchemas":{"a": "format":"date-time" "minimum":1e308 "$dynamicRef":"#a" "$anchor":"a" "$id":"http://a/b"
99999999999999999999
"""
_REGEX_WORDS = r"""
(?= (?! (?<= (?<n> \k<n> \1 {99999} {0,4294967296} (?i: [^ \p{ \u{110000} \uD800 | ) $ ^ \b \c
"""
_GRAMMAR_WORDS = r"""
start: %ignore %import common.NUMBER %declare %json { ~0..99 ~2 & ~/a/ -> ?start: ! _x: x{y}: x{a} "a".."z" /a/i .5: [ ]
( ) | * + ? %override %extend //c /(?<!a)b/ /[/ "\x0 start
"""
_GBNF_WORDS = r"""
root ::= [^ ] {1,} {,3} {99999} ( ) | * + ? "\x <[12]> . # " [a- \u12
"""
WORDS: dict[str, tuple[str, ...]] = {
    "schema": tuple(_SCHEMA_WORDS.split()),
    "regex": (*_REGEX_WORDS.split(), *COUNTS, *ATOMS, *CLASSES, *UNICODE_ATOMS, "\x00"),
    "grammar": (*_GRAMMAR_WORDS.split(), "\n%ignore ", "\nstart: ", " "),
    "gbnf": (*_GBNF_WORDS.split(), "\nroot ::= ", "\n", " "),
}
