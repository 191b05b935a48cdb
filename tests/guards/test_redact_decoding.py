"""Redaction while decoding: what comes out is JSON of its schema and holds no match; the model goes on from there."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from safegen.engine.speculate.base import Ask, Draft
from safegen.engine.speculate.forced import ForcedDrafter
from safegen.engine.speculate.speculator import Speculator
from safegen.events import DeltaEvent, SnapshotEvent
from safegen.guards.audit import differences
from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.placeholders import candidates, declared_fallback
from safegen.llm import LLM
from safegen.result import Result
from safegen.speculation import Speculation
from safegen.tools import Tools
from safegen.types import JsonSchema, Think
from tests.support.drafters import FunctionDrafter
from tests.support.guards import Email, Ssn, Word
from tests.support.sdk_fakes import TOKEN_BYTES, ScriptedBackend, make_llm

_EMAIL = "a.b@c.com"


def _field(field: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}, "required": ["a"], "additionalProperties": False}


def _generate(text: str, schema: dict[str, Any], guards: Any, **options: Any) -> Any:
    with make_llm(ScriptedBackend(text)) as llm:
        return llm.generate("go", JsonSchema(schema), guards=guards, max_tokens=300, **options)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ({"type": "string", "maxLength": 30}, f"to {_EMAIL} now", "to [EMAIL]"),
        ({"type": "string", "format": "email"}, _EMAIL, "x@redacted.invalid"),
        ({"type": "string", "maxLength": 6}, "x@y.zz", None),
        ({"type": "string", "pattern": "^[a-z.@]{9}$"}, _EMAIL, None),
        ({"type": "string", "pattern": "^[a-z.]+@[a-z.]+$"}, _EMAIL, "x@redacted.invalid"),
        ({"enum": [_EMAIL, "none"]}, _EMAIL, "none"),
        ({"type": "string", "pattern": "^[a-d.@]{9}$", "default": "aaaaaaaaa"}, "a.b@c.dda", "aaaaaaaaa"),
        ({"enum": [_EMAIL, "nobody", None], "default": None}, _EMAIL, None),
        ({"anyOf": [{"const": _EMAIL}, {"type": "null"}]}, _EMAIL, None),
    ],
)
def test_what_comes_out_fits_the_field_and_holds_no_match(field: dict[str, Any], value: str, expected: Any) -> None:
    schema = _field(field)
    result = _generate(json.dumps({"a": value}, separators=(",", ":")), schema, Email(on_fail="redact"))
    assert result.status == "ok", result
    jsonschema.validate(json.loads(result.text), schema)
    assert value not in result.text
    found = json.loads(result.text)["a"]
    if isinstance(expected, str):
        assert found.startswith(expected)
    elif (expected is None and "anyOf" in field) or field.get("default", "") is None:
        assert found is None


@pytest.mark.parametrize("field", [{"const": _EMAIL}, {"enum": [_EMAIL, "x@y.zz"]}])
def test_where_nothing_fits_the_answer_is_blocked(field: dict[str, Any]) -> None:
    result = _generate(json.dumps({"a": _EMAIL}), _field(field), Email(on_fail="redact"))
    assert (result.status, result.value, result.text) == ("blocked", None, "")
    assert (result.error.guard, result.error.rule, result.error.path) == ("email", "email", "$.a")
    assert [(r.action, r.stage) for r in result.audit if r.rule == "email"] == [("block", "decoding")]


def test_a_number_is_replaced_by_one_that_is_legal() -> None:
    schema = _field({"enum": [4111, 7]})
    result = _generate('{"a":4111}', schema, Word("4111", on_fail="redact"))
    assert (result.status, result.value) == ("ok", {"a": 7})
    result = _generate('{"a":4111}', _field({"const": 4111}), Word("4111", on_fail="redact"))
    assert result.status == "blocked"


def test_an_escape_hides_nothing_and_the_text_before_the_match_stays() -> None:
    text = r'{"a":"\"to\" a.b\u0040c.com"}'
    result = _generate(text, _field({"type": "string", "maxLength": 40}), Email(on_fail="redact"))
    assert result.value["a"].startswith('"to" [EMAIL]')


def test_a_value_that_is_found_again_is_closed_behind_its_placeholder() -> None:
    class Brackets(Guard):
        """Also claims its own placeholder as soon as something follows it."""

        inline = True
        max_match = 40
        look_behind = 0

        def find(self, view: GuardView) -> Sequence[Match]:
            return [Match(m.start(), m.end(), "word") for m in re.finditer(r"secret|\[WORD\].+", view.text)]

    result = _generate('{"a":"secret and more text"}', _field({"type": "string"}), Brackets(on_fail="redact"))
    assert (result.status, result.value) == ("ok", {"a": "[WORD]"})


def test_the_record_says_that_it_was_done_while_decoding() -> None:
    result = _generate(f'{{"a":"{_EMAIL}"}}', _field({"type": "string", "maxLength": 30}), Email(on_fail="redact"))
    records = [r for r in result.audit if r.rule == "email"]
    assert [(r.action, r.stage, r.path, r.start, r.end) for r in records] == [("redact", "decoding", "$.a", 0, 9)]
    assert records[0].digest


def test_a_scope_that_does_not_cover_the_field_leaves_it_alone() -> None:
    result = _generate(
        json.dumps({"a": _EMAIL}, separators=(",", ":")),
        _field({"type": "string"}),
        Email(on_fail="redact", where="$.b"),
    )
    assert result.value == {"a": _EMAIL}


@pytest.mark.parametrize("unbounded", [False, True])
@pytest.mark.parametrize("text", ['{"a":"the secret is secret"}', '{"a":"secretsecret"}', '{"a":"\\u0073ecret"}'])
def test_a_stream_shows_what_a_plain_call_gives(text: str, unbounded: bool) -> None:
    schema, guard = _field({"type": "string", "maxLength": 40}), Word(on_fail="redact", unbounded=unbounded)
    plain = _generate(text, schema, guard)
    with (
        make_llm(ScriptedBackend(text)) as llm,
        llm.stream("go", JsonSchema(schema), guards=guard, max_tokens=300) as events,
    ):
        listed = list(events)
        result = events.result()
    shown = "".join(event.text for event in listed if isinstance(event, DeltaEvent))
    assert shown == result.text == plain.text
    assert result.status == plain.status == "ok"
    assert "secret" not in shown
    assert [e.value for e in listed if isinstance(e, SnapshotEvent)][-1] == result.value


def test_tool_arguments_and_answers_after_reasoning_are_redacted() -> None:
    tool = {"name": "f", "parameters": _field({"type": "string", "maxLength": 20})}
    with make_llm(ScriptedBackend('<|python_tag|>{"name":"f","parameters":{"a":"secret"}}')) as llm:
        result = llm.generate(
            "go", Tools([tool], format="llama", max_calls=1), guards=Word(on_fail="redact"), max_tokens=300
        )
    assert result.unwrap().calls[0].arguments["a"].startswith("[SECRET]")
    with make_llm(ScriptedBackend('<think>x</think>{"a":"secret"}')) as llm:
        think = Think(JsonSchema(_field({"type": "string", "maxLength": 20})), max_tokens=20)
        result = llm.generate("go", think, guards=Word(on_fail="redact"), max_tokens=300)
    assert result.unwrap()["a"].startswith("[SECRET]")


_FIELDS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 12},
    {"type": "string", "pattern": "^[a-z]{3,8}$"},
    {"enum": ["aab", "cab", "dd", "ee"]},
    {"type": "integer", "minimum": 0, "maximum": 5000},
    {"type": "array", "items": {"type": "string", "pattern": "^[ab]{1,4}$"}, "maxItems": 3},
    {"anyOf": [{"type": "null"}, {"const": "ab"}]},
]


_GUARDS = [Word(word, on_fail="redact", where="$..*") for word in ("ab", "e", "1")]  # not the names: they hold a 1


def _random_schema(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    names = [f"f{number}" for number in range(3)]
    return {
        "type": "object",
        "properties": {name: draw.choice(_FIELDS) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _samples(llm: LLM, seed: int) -> list[Result[Any]]:
    schema = JsonSchema(_random_schema(seed))
    result = llm.generate("go", schema, guards=_GUARDS, max_tokens=200, temperature=1.0, seed=seed, n=2)
    return [result, *result.alternatives]


def test_random_answers_are_valid_and_hold_no_match() -> None:
    statuses = set()
    with make_llm() as llm:
        for seed in range(30):
            for result in _samples(llm, seed):
                statuses.add(result.status)
                if result.status != "ok":
                    assert result.status in ("blocked", "truncated"), result
                    continue
                jsonschema.validate(json.loads(result.text), _random_schema(seed))
                for value in result.value.values():
                    for text in value if isinstance(value, list) else [value]:
                        left = re.sub(r"\[(AB|E|1)\]|REDACTED|redacted", "", str(text))
                        assert not re.search(r"ab|e|1", left) or text is None, result.text
    assert "ok" in statuses


def test_speculation_changes_nothing_about_what_is_replaced() -> None:
    """Drafts run past a match: the forced text, what was seen before, and random tokens, legal or not."""
    draw = random.Random(1)

    def propose(ask: Ask) -> Draft:
        return Draft(tuple(draw.randrange(len(TOKEN_BYTES)) for _ in range(draw.randrange(4))))

    drafters = [ForcedDrafter(lambda text: list(text.encode()), TOKEN_BYTES), FunctionDrafter(propose, "ngram")]
    speculator = Speculator(drafters, max_tokens_a_draft=8, adaptive=False)
    with make_llm() as plain, make_llm(speculator=speculator, speculation=Speculation()) as drafting:
        accepted = 0
        for seed in range(12):
            wanted, found = _samples(plain, seed), _samples(drafting, seed)
            assert [(r.status, r.text) for r in found] == [(r.status, r.text) for r in wanted]
            accepted += sum(r.usage.accepted for r in found)
    assert accepted > 0


def test_candidates_begin_with_the_guards_own_and_then_the_rules() -> None:
    listed = list(candidates("email_address", "[EMAIL]"))
    assert listed[:2] == ["[EMAIL]", "x@redacted.invalid"]
    assert len(listed) == len(set(listed))


def test_a_declared_default_is_found_by_its_place() -> None:
    schema = {
        "$defs": {"item": {"type": "string", "default": "d"}},
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/item"}},
            "b": {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"default": 3}}]},
            "c": {"default": {"no": "scalar"}},
        },
    }
    text = json.dumps(schema)
    assert declared_fallback(text, ("a", 5)) == '"d"'
    assert declared_fallback(text, ("b", "x")) == "3"
    assert declared_fallback(text, ("c",)) is None
    assert declared_fallback(text, ("z",)) is None
    assert declared_fallback(None, ("a", 5)) is None


@pytest.mark.parametrize("max_tokens", [30, 36, 47, 55])
def test_max_tokens_cut_a_plain_call_where_they_cut_a_stream(max_tokens: int) -> None:
    text = '{"a":"mail a.b@c.com and 123-45-6789 here","b":"so c.d@e.fr x"}'
    schema = _field({"type": "string", "maxLength": 60})
    schema["properties"]["b"] = {"type": "string"}
    schema["required"].append("b")
    guards = [Email(on_fail="redact", stages=["output"]), Ssn(on_fail="redact", stages=["output"])]
    options: dict[str, Any] = {"guards": guards, "max_tokens": max_tokens}
    with make_llm(ScriptedBackend(text)) as llm:
        plain = llm.generate("go", JsonSchema(schema), **options)
        with llm.stream("go", JsonSchema(schema), **options) as events:
            streamed = events.result()
    assert (plain.status, plain.text) == (streamed.status, streamed.text)
    assert plain.status == "truncated"
    assert "[EMAIL]" in plain.text
    assert differences(plain.audit, streamed.audit) == []


@pytest.mark.parametrize("word", ["a", "1", "e", "x"])
def test_a_placeholder_that_comes_token_by_token_is_let_pass_as_a_whole(word: str) -> None:
    """A guard that finds something in a beginning of the placeholder changes a stream no more than a plain call."""
    schema = _field({"type": "string", "pattern": "^[a-z0-9]{2,12}$"})
    guard = Word(word, on_fail="redact", where="$..*")
    text = f'{{"a":"q{word}q"}}'
    plain = _generate(text, schema, guard)
    with (
        make_llm(ScriptedBackend(text)) as llm,
        llm.stream("go", JsonSchema(schema), guards=guard, max_tokens=300) as events,
    ):
        shown = "".join(event.text for event in events if isinstance(event, DeltaEvent))
        streamed = events.result()
    assert (streamed.status, streamed.text) == (plain.status, plain.text)
    assert shown == plain.text
