"""Hypothesis draws a schema and a walk: `jsonschema` validates what was written. Then it changes the answer, as a value
and as a text: `matches` refuses exactly what `jsonschema` refuses."""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, note, settings

import safegen
from safegen import JsonSchema
from safegen.errors import SchemaError
from safegen.grammars.json_schema import compile_json_schema
from tests.grammars.random_schemas import NAMES, SIMPLE_FORMATS, SchemaGenerator
from tests.grammars.test_brute_force import FREE, PYTHON_PATTERNS, SchemaJudge, exact_json
from tests.grammars.walking import Walker, WalkStats

NUM_EXAMPLES = 1500 if os.environ.get("SAFEGEN_FULL") == "1" else 200
_PAST_BOUNDS = re.compile(r"(?:\d\.?){60}|[eE][+-]?\d{4}|\s{40}")
CHARS = '{}[]",:0159-+.eE\\untrfalsb \né'


class Change:
    """One change of a JSON value, somewhere inside."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values = SchemaGenerator(rng)

    def of(self, value: Any) -> Any:
        rng = self.rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            return self._of_object(value, rng.choice(list(value)))
        if isinstance(value, list) and value and rng.random() < 0.8:
            return self._of_array(value, rng.randrange(len(value)))
        if isinstance(value, dict):
            return {**value, rng.choice((*NAMES, "z")): self.values.value()}
        if isinstance(value, list):
            return [*value, self.values.value()]
        if isinstance(value, str) and rng.random() < 0.5:
            at = rng.randrange(len(value) + 1)
            return value[:at] + rng.choice(("", "a", "b", "é")) + value[at + rng.randrange(2) :]
        if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
            return value + rng.choice((-7, -1, 1, 2))
        return self.values.value()

    def _of_object(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        rest = {other: member for other, member in value.items() if other != name}
        match self.rng.randrange(4):
            case 0:
                return rest
            case 1:
                return {**rest, self.rng.choice((*NAMES, "z")): value[name]}
            case 2:
                return {**value, self.rng.choice((*NAMES, "z")): self.values.value()}
        return {**value, name: self.of(value[name])}

    def _of_array(self, value: list[Any], place: int) -> list[Any]:
        before, after = value[:place], value[place + 1 :]
        match self.rng.randrange(4):
            case 0:
                return before + after
            case 1:
                return [*before, value[place], value[place], *after]
            case 2:
                return [*before, self.values.value(), *value[place:]]
        return [*before, self.of(value[place]), *after]

    def of_text(self, text: str) -> str:
        at, other = self.rng.randrange(len(text) + 1), self.rng.randrange(len(text) + 1)
        piece = self.rng.choice((*CHARS, "", text[min(at, other) : max(at, other)]))
        return text[:at] + piece + text[at + self.rng.randrange(3) :]


def assert_agreement(verdict: bool, judge: SchemaJudge, text: str) -> None:
    """Numbers of many digits and long blanks may be refused: an answer's are bounded."""
    valid = judge(text.encode())
    assert verdict == valid or (valid and _PAST_BOUNDS.search(text)), (text, valid)


def drawn_schema(rng: random.Random) -> Any:
    return SchemaGenerator(rng, SIMPLE_FORMATS, PYTHON_PATTERNS, max_depth=2).document()


@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(rng=st.randoms(use_true_random=False), walk_seed=st.integers(0, 2**32 - 1), length=st.integers(0, 20))
def test_what_is_written_validates_and_what_does_not_validate_is_refused(
    rng: random.Random, walk_seed: int, length: int
) -> None:
    schema = drawn_schema(rng)
    note(json.dumps(schema, ensure_ascii=False))
    try:
        compiled = compile_json_schema(schema, FREE)
    except SchemaError:
        return
    judge = SchemaJudge(schema, flexible=True)
    may_verify = any(finding.handling == "verified" for finding in compiled.findings)
    text = Walker(compiled.program, random.Random(walk_seed), WalkStats(), may_verify=may_verify).walk(length, judge)
    if not text:  # every value of a verified node had failed
        return
    change, value = Change(rng), exact_json(text.decode())
    answer = JsonSchema(schema, **{name: getattr(FREE, name) for name in ("whitespace", "property_order", "spelling")})
    changed = json.dumps(change.of(value), ensure_ascii=False, default=float)
    assert_agreement(safegen.matches(answer, changed), judge, changed)
    for _ in range(6):
        changed = json.dumps(change.of(value), ensure_ascii=False, default=float)
        assert_agreement(compiled.program.matches(changed.encode()), judge, changed)
        changed = change.of_text(text.decode())
        assert_agreement(compiled.program.matches(changed.encode()), judge, changed)
