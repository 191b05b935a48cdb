"""A short fuzz of every front end; SAFEGEN_FUZZ_SECONDS sets how long each runs (`make fuzz`: ten minutes)."""

from __future__ import annotations

import os
import random

import pytest

from safegen.grammars.json_schema import check_json_schema
from tests.native.fuzzing import FRONT_ENDS, Fuzzer, outcome_of

FOUND = [
    (
        "schema",
        '{"$schema": "http://json-schema.org/draft-06/schema#", "maxContains": "location", "minLength": 2}',
        "walked",
    ),
    ("schema", '{"properties": {"a": {"$id": "http://[]/"}}}', "SchemaError"),
    ("schema", '{"$ref": "http://[/"}', "SchemaError"),
    ("schema", '{"minimum": 1e9999999999999999999}', "SchemaError"),
    ("regex", "(?:a){1,4294967296}?", "GrammarError"),
    ("regex", "a{4294967295}", "GrammarError"),
    ("regex", "a{1,3}?{2}", "GrammarError"),
    ("regex", "a+??", "GrammarError"),
    ("regex", "(?:[\\d_]{99999})?", "limit"),
    ("grammar", 'start: "x" ~ 4294967296 | "y"', "GrammarError"),
    ("gbnf", 'root ::= "x"{22222222222222222222222222} | ("y" "z"){1,}', "GrammarError"),
    ("gbnf", 'root ::= list\nlist ::= list "," item | item\nitem ::= [a-z0-9_-]{1,3} | .{99999}', "limit"),
    ("gbnf", 'root ::= "a" ("y" "z"){655361,} | "x"{2}', "limit"),
]


@pytest.mark.parametrize(("front_end", "text", "outcome"), FOUND)
def test_what_was_found_has_a_typed_outcome(front_end: str, text: str, outcome: str) -> None:
    assert outcome_of(front_end, text, random.Random(1)) == outcome


@pytest.mark.parametrize(
    "schema", ['{"anyOf": "a"}', '{"properties": [1]}', '{"items": 5, "allOf": [1]}', '{"not": "a"}']
)
def test_check_names_keywords_of_the_wrong_form(schema: str) -> None:
    findings = check_json_schema(schema)
    assert {finding.handling for finding in findings} <= {"refused", "enforced"}
    assert any(finding.handling == "refused" for finding in findings)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_front_end_gives_typed_errors_or_live_programs(front_end: str, full: bool) -> None:
    seconds = float(os.environ.get("SAFEGEN_FUZZ_SECONDS") or (60 if full else 4))
    outcomes = Fuzzer(front_end, int(os.environ.get("SAFEGEN_FUZZ_SEED") or 0)).run(seconds)
    print(front_end, dict(outcomes))
    assert outcomes["inputs"] >= 2 * seconds
    assert sum(outcomes[kind] for kind in ("walked", "matched")) >= outcomes["inputs"] / 50
