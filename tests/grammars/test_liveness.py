"""Liveness: in every state of random walks some token is legal, and the shortest completion leads to the end.

Random schemas, regexes and grammars; what comes out is judged by the validators, which share no code with the machine.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from lark.exceptions import LarkError

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError, RetractsExhausted, SchemaError, UnsatisfiableSchema
from safegen.grammars import library
from safegen.grammars.constraint import MaskRows
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.regex import compile_regex
from safegen.validation import EcmaRegex, SchemaValidator, ValidationFailure
from tests.grammars.lark_oracle import accepts, earley, is_small, random_grammar
from tests.grammars.random_schemas import KEYWORDS, SchemaGenerator, keywords_of
from tests.grammars.walking import VOCABULARY, Walker, WalkStats
from tests.support.regex_generation import ATOMS, CLASSES, UNICODE_ATOMS, random_pattern

WALKS_OF_ONE = 4
OPTIONS = (
    SchemaOptions(),
    SchemaOptions("flexible", "any", "any"),
    SchemaOptions(property_order="any"),
    SchemaOptions("flexible", spelling="any"),
)
NARROW = Limits(max_alternatives=4)  # what passes it is verified


@dataclass(slots=True)
class SchemaRun:
    stats: WalkStats = field(default_factory=WalkStats)
    keywords: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def walk(self, seed: int, length: int = 24) -> None:
        schema = SchemaGenerator(random.Random(seed)).document()
        self.keywords.update(keywords_of(schema) & KEYWORDS)
        try:
            compiled = compile_json_schema(schema, OPTIONS[seed % 4], NARROW if seed % 5 == 0 else None)
        except UnsatisfiableSchema:
            self.outcomes["unsatisfiable"] += 1
            return
        except SchemaError:
            self.outcomes["refused"] += 1
            return
        may_verify = any(finding.handling == "verified" for finding in compiled.findings)
        self.outcomes["verified" if may_verify else "enforced"] += 1
        validator = SchemaValidator(schema)

        def judge(text: bytes) -> bool:
            try:
                validator.validate(text)
            except ValidationFailure:
                return False
            return True

        for number in range(WALKS_OF_ONE):
            rng = random.Random(f"{seed} {number}")
            try:
                Walker(compiled.program, rng, self.stats, may_verify=may_verify).walk(rng.randrange(length), judge)
            except (AssertionError, LimitExceeded) as error:
                error.add_note(f"seed {seed}, {OPTIONS[seed % 4]}: {json.dumps(schema, ensure_ascii=False)}")
                raise


def test_every_state_of_random_schemas_is_live(full: bool) -> None:
    run = SchemaRun()
    for seed in range(2600 if full else 300):
        run.walk(seed)
    assert run.stats.walks >= (7500 if full else 800)
    assert run.stats.states >= 7 * run.stats.walks
    assert set(run.keywords) == KEYWORDS
    assert run.outcomes["enforced"] > run.outcomes["unsatisfiable"]
    assert run.outcomes["refused"] < run.outcomes["enforced"] / 20
    assert run.outcomes["verified"] >= 8
    assert run.stats.exhausted + run.stats.stuck + run.stats.unclosed == 0


def walk_text(program: Program, rng: random.Random, stats: WalkStats) -> str:
    return Walker(program, rng, stats, may_verify=False).walk(rng.randrange(20)).decode()


def test_every_state_of_random_regexes_is_live(full: bool) -> None:
    stats, rng, num_refused = WalkStats(), random.Random("liveness of regexes"), 0
    atoms, looks = ATOMS + CLASSES + UNICODE_ATOMS, ["^(?=.*a)", "^(?!.*b)"]
    while stats.walks < (1500 if full else 500):
        pattern = random_pattern(rng, 3, atoms=atoms, looks=[], anchors=["^", "$"])
        if rng.random() < 0.3:
            pattern = rng.choice(looks) + pattern
        try:
            program = compile_regex(pattern)
        except GrammarError as error:
            assert re.search("matches no text|nothing to repeat|inside a repeated group", str(error)), pattern
            num_refused += 1
            continue
        judge = EcmaRegex(f"^(?:{pattern})$", lenient=False)
        for _ in range(3):
            assert judge.search(walk_text(program, rng, stats)), pattern
    assert num_refused < stats.walks / 3


def test_every_state_of_random_grammars_is_live(full: bool) -> None:
    stats = WalkStats()
    seed = 0
    while stats.walks < (1500 if full else 120):
        seed += 1
        rng = random.Random(f"liveness of grammars {seed}")
        grammar = random_grammar(rng, with_ignore=seed % 3 == 0)
        try:
            program = compile_grammar(grammar).program
        except GrammarError as error:
            assert "No finite text" in str(error) or "ignored terminal" in str(error), grammar
            continue
        texts = [walk_text(program, rng, stats) for _ in range(3)]
        try:
            parser = earley(grammar)
        except LarkError:  # options that multiply out to the same production twice
            continue
        assert not is_small(parser) or all(accepts(parser, text) for text in texts), grammar


@pytest.mark.parametrize("name", library.names())
def test_every_state_of_the_librarys_grammars_is_live(name: str, full: bool) -> None:
    program, stats = compile_grammar(library.load(name)).program, WalkStats()
    for number in range(100 if full else 6):
        walk_text(program, random.Random(f"liveness of {name} {number}"), stats)


EXTENDED = 'start: v "=" NAME\nv: %json {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}\n' \
    'NAME: /[a-z]{2,6}/ & ~/.*x.*/'  # fmt: skip


def test_every_state_of_a_grammar_with_a_schema_is_live() -> None:
    program, stats, rng = compile_grammar(EXTENDED).program, WalkStats(), random.Random(3)
    for _ in range(40):
        items, _, name = Walker(program, rng, stats, may_verify=True).walk(rng.randrange(12)).decode().partition("=")
        assert len(set(json.loads(items))) == len(json.loads(items))
        assert re.fullmatch("[a-wyz]{2,6}", name)


def test_numbers_that_are_no_multiples_stay_within_the_automatons_limit() -> None:
    """Each mantissa once had an automaton of its own for every exponent: a walk of a few digits passed max_states."""
    schema = {
        "type": "number",
        "exclusiveMinimum": -1.5,
        "multipleOf": 0.25,
        "not": {"type": "integer", "multipleOf": 7},
    }
    program = compile_json_schema(schema, SchemaOptions("flexible", "any", "any"), Limits(max_states=20_000)).program
    rows = MaskRows.allocate(1, VOCABULARY.size)
    for text in ("1.6137200090E1", "120000000000000000000.000e-3", "-0.25000000000000000000000000e00"):
        constraint = NativeConstraint(program, VOCABULARY)
        for byte in text.encode():
            constraint.fill((), rows)
            assert rows.bools(0)[byte], text
            constraint.advance([byte])
    assert not program.matches(b"7e3")
    assert not program.matches(b"7000000e-4")
    assert program.matches(b"1775e-2")


COMPLETIONS = {
    "of items that count": (
        {"type": "array", "items": {"additionalProperties": {"type": "integer"}}, "contains": {"minProperties": 2},
         "minContains": 2}, b""),
    "of a key beside one that differs from the shortest by no letter": (
        {"type": "object", "properties": {"\u00e9": False}, "patternProperties": {"\u00e9": True},
         "additionalProperties": False}, '{"a\u00e9":1,'.encode()),
    "of many keys of one pattern": (
        {"type": "object", "patternProperties": {"^[0-9]{2}$": {"const": 1}}, "additionalProperties": False,
         "minProperties": 40}, b""),
    "of items that must differ": (
        {"type": "array", "uniqueItems": True, "minItems": 4, "items": {"type": "object", "required": ["a"],
         "properties": {"a": {"type": "array", "items": {"type": "number"}}}, "additionalProperties": False}}, b"  \n"),
    "of the digits of a multiple": ({"type": "integer", "multipleOf": 0.123456789}, b"101."),
    "of a large count": (
        {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "string"}, "minContains": 300},
        b"[1,"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completion_is_found_at_once(name: str) -> None:
    schema, begun = COMPLETIONS[name]
    program = compile_json_schema(schema, SchemaOptions("flexible", "any", "any")).program
    constraint = NativeConstraint(program, VOCABULARY)
    constraint.advance(list(begun))
    started = time.perf_counter()
    constraint.advance(constraint.shortest_completion())
    assert constraint.can_end()
    assert time.perf_counter() - started < 5
    SchemaValidator(schema).validate(constraint.text())


def test_what_was_settled_stays_even_where_nothing_is_left() -> None:
    """An array of different items whose only item is []: too few; blanks before it were settled."""
    builder = Builder(whitespace=40)
    item = builder.array([], None, 0, 0)
    program = builder.build(builder.array([], item, 2, None, unique=True))
    constraint = NativeConstraint(program, VOCABULARY)
    rows = MaskRows.allocate(1, VOCABULARY.size)
    rng, settled = random.Random(1), 0
    with pytest.raises(RetractsExhausted):
        for _ in range(500):
            constraint.fill((), rows)
            retract = constraint.advance([rng.choice(np.flatnonzero(rows.bools(0)).tolist())])
            assert retract is None or retract.kept_tokens >= settled
            assert constraint.settled() >= settled
            settled = constraint.settled()


def test_keys_read_before_leave_nothing_behind() -> None:
    """Each set of keys once had an automaton of its own: a program of long use passed max_states, and stayed so."""
    schema = {"type": "object", "patternProperties": {"^[a-z]+$": {"const": 1}}, "additionalProperties": False}
    program, rng = compile_json_schema(schema).program, random.Random(2)
    sizes = []
    for _ in range(2):
        for _ in range(150):
            names = {"".join(rng.choices("abcdef", k=6)) for _ in range(6)}
            text = json.dumps(dict.fromkeys(names, 1), separators=(",", ":"))
            assert program.matches(text.encode())
            assert not program.matches(text.replace("}", "," + text[1:]).encode())
        sizes.append(program.memory_bytes())
    assert sizes[1] < sizes[0] + 20_000
