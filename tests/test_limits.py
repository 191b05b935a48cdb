"""Each limit holds, by name; and the page about them tells the defaults as they are."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from safegen import Choice, Grammar, JsonSchema, Limits, Regex, SafegenError, check, explain, matches
from safegen.errors import GrammarError, RequestError, SchemaError, UnsatisfiableSchema
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.output_type import compile_type

PAGE = Path(__file__).parents[1] / "docs" / "limits.md"
# Bounds on what an LLM does, tested with it: tests/sdk and tests/engine.
RUNNING = {
    "disk_cache_bytes",
    "max_queue",
    "max_retracts",
    "max_cached_types",
    "max_choice_nodes",
    "grammar_check_deadline_s",
}


def nested(levels: int, keyword: str = "items") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"allOf": [schema]} if keyword == "allOf" else {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[str, float, Callable[[], Any]]] = [
    ("compile_deadline_s", 1e-6, lambda: JsonSchema({"pattern": "(a|b)*a(a|b){8}"})),
    ("compile_deadline_s", 1e-6, lambda: Regex("(a|b)*a(a|b){8}")),
    ("compile_deadline_s", 1e-6, lambda: Grammar("start: /(a|b)*a(a|b){8}/")),
    ("max_schema_bytes", 10, lambda: JsonSchema({"type": "integer"})),
    ("max_schema_nodes", 10, lambda: JsonSchema({"enum": list(range(20))})),
    ("max_depth", 5, lambda: JsonSchema(nested(6))),
    ("max_depth", 5, lambda: Regex("(a(b(c(d(e(f|g)*)*)*)*)*)*")),
    ("max_inline_depth", 5, lambda: JsonSchema(nested(6, "allOf"))),
    ("max_pattern_chars", 5, lambda: JsonSchema({"pattern": "abcdef"})),
    ("max_pattern_chars", 5, lambda: Regex("abcdef")),
    ("max_pattern_chars", 5, lambda: Grammar("start: /abcdef/")),
    ("max_count_product", 99, lambda: Regex("(a{10}){10}")),
    ("max_count_product", 99, lambda: JsonSchema({"pattern": "(a{10}){10}"})),
    ("max_grammar_chars", 11, lambda: Grammar('start: "abc"')),
    ("max_productions", 2, lambda: Grammar('start: a | b | c\na: "a" b\nb: "b" c\nc: "c"')),
    ("max_states", 50, lambda: Choice(["x" * 100, "y" * 100])),
    ("max_states", 50, lambda: JsonSchema({"pattern": "^(a{29})*b$", "allOf": [{"pattern": "^a(a{31})*b$"}]})),
    ("max_fsm_states", 20, lambda: Regex("[a-z]{30}", fsm=True)),
    ("max_exponent_digits", 3, lambda: JsonSchema('{"minimum": 1e1200}')),
    ("max_nesting", 3, lambda: JsonSchema({"const": [[[[1]]]]})),
]


@pytest.mark.parametrize(("name", "value", "make"), REFUSED)
def test_type_past_a_limit_is_refused_by_its_name(name: str, value: float, make: Callable[[], Any]) -> None:
    with pytest.raises((SchemaError, GrammarError), match=name):
        compile_type(make(), Limits(**{name: value}))  # type: ignore[arg-type]
    refused = check(make(), limits=Limits(**{name: value}))  # type: ignore[arg-type]
    assert any(finding.handling == "refused" and name in finding.note for finding in refused)


@pytest.mark.parametrize(
    ("name", "value", "spec", "within", "beyond"),
    [
        ("max_digits", 3, JsonSchema({"type": "integer"}), "123", "1234"),
        ("max_exponent_digits", 3, JsonSchema({"type": "number"}), "1e555", "1e5555"),
        ("max_whitespace", 2, JsonSchema({"type": "array"}, whitespace="flexible"), "[  ]", "[   ]"),
        ("max_nesting", 2, JsonSchema({"type": "array"}), "[[]]", "[[[]]]"),
    ],
)  # fmt: skip
def test_text_past_a_limit_is_not_legal(name: str, value: int, spec: Any, within: str, beyond: str) -> None:
    limits = Limits(**{name: value})  # type: ignore[arg-type]
    assert matches(spec, within, limits=limits) and not matches(spec, beyond, limits=limits)
    assert matches(spec, beyond, limits=Limits(**{name: value + 1}))  # type: ignore[arg-type]
    assert "within the limits" in explain(spec, beyond, limits=limits).reason


def test_schema_that_needs_more_digits_than_are_legal_is_unsatisfiable() -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_type(JsonSchema({"type": "integer", "minimum": 10_000}), Limits(max_digits=3))


def test_alternatives_past_the_limit_are_verified_and_still_exact() -> None:
    either = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(4)]
    spec, limits = JsonSchema({"type": "object", "allOf": either}, property_order="any"), Limits(max_alternatives=4)
    assert {finding.handling for finding in check(spec, limits=limits)} == {"enforced", "verified"}
    assert matches(spec, '{"a0":1,"b1":1,"a2":1,"b3":1}', limits=limits)
    assert not matches(spec, '{"a0":1,"b0":1,"a2":1,"b3":1}', limits=limits)


def test_text_that_takes_too_many_states_is_a_typed_error() -> None:
    many = Regex("(a|b)*a(a|b){12}c")
    text = "".join(random.Random(3).choices("ab", k=500))
    with pytest.raises(SchemaError, match="max_states"):
        matches(many, text + "c", limits=Limits(max_states=60))
    with pytest.raises(SchemaError, match="max_states"):
        explain(many, text + "d", limits=Limits(max_states=60))
    assert matches(many, text + "a" * 13 + "c")


def test_mask_cache_keeps_to_its_bytes() -> None:
    program = compile_type(JsonSchema({"type": "object"})).program
    assert program is not None
    before = program.memory_bytes()
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary([*tokens, *(f"t{i}".encode() for i in range(20_000)), None], [20_256])
    constraint = NativeConstraint(program, vocabulary, cache_bytes=100_000)
    rows = MaskRows.allocate(1, vocabulary.size)
    for byte in ('{"' + "".join(f'k{i}":{i},"' for i in range(60))).encode():
        constraint.fill([], rows)
        constraint.advance([byte])
    assert program.memory_bytes() - before < 100_000 + 4_000_000  # the automaton grows as well


@pytest.mark.parametrize("field", fields(Limits), ids=lambda field: field.name)
@pytest.mark.parametrize("value", [0, -1, True, "5", None, float("nan")])
def test_limit_that_is_no_positive_number_is_a_request_error(field: Any, value: Any) -> None:
    with pytest.raises(RequestError, match=field.name) as caught:
        Limits(**{field.name: value})
    assert caught.value.field == field.name


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_digits", 10_001), ("max_exponent_digits", 7), ("max_nesting", 60_001), ("max_states", 1 << 40),
     ("compile_deadline_s", 1e12), ("cache_bytes", 1 << 70)],
)  # fmt: skip
def test_limit_beyond_the_machine_is_a_request_error(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name}.* at most"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_exponents_must_reach_across_all_digits() -> None:
    with pytest.raises(RequestError, match="max_exponent_digits=2 are too few for max_digits=64"):
        Limits(max_exponent_digits=2)
    limits = Limits(max_exponent_digits=2, max_digits=20)
    assert matches(JsonSchema({"type": "number", "minimum": 3}), "0.5e1", limits=limits)


def test_no_deadline_at_all_is_infinity() -> None:
    assert matches(int, "3", limits=Limits(compile_deadline_s=math.inf))
    assert explain(int, "x", limits=Limits(compile_deadline_s=math.inf)).byte == 0


def test_every_limit_is_tested_somewhere() -> None:
    texts = {"max_digits", "max_exponent_digits", "max_whitespace", "max_nesting"}
    tested = {name for name, *_ in REFUSED} | texts | {"max_alternatives", "cache_bytes"} | RUNNING
    assert tested == {field.name for field in fields(Limits)}


def test_page_tells_every_limit_with_its_default() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert told.keys() == {field.name for field in fields(Limits)}
    for name, value in told.items():
        assert float(value.replace(",", "")) == getattr(Limits(), name), name


def test_numbers_beyond_the_machine_are_typed_errors() -> None:
    for word in ("minimum", "maximum", "multipleOf"):
        for number in ("1e1200", "1e-1200"):
            try:
                compile_type(JsonSchema(f'{{"{word}": {number}}}'))
            except SafegenError as error:
                assert isinstance(error, SchemaError)
    with pytest.raises(SchemaError, match="18 significant digits") as caught:
        compile_type(JsonSchema('{"properties": {"a": {"multipleOf": 1.2345678901234567891}}}'))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a", "multipleOf")
