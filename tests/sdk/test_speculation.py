"""Speculation through the public API: the option, the statistics, and the same answers for every output type."""

from __future__ import annotations

import random
from typing import Any

import pytest

from safegen.engine.speculate.base import Ask, Draft
from safegen.engine.speculate.forced import ForcedDrafter
from safegen.engine.speculate.ngram import NgramDrafter
from safegen.engine.speculate.speculator import Speculator
from safegen.errors import RequestError
from safegen.events import DeltaEvent
from safegen.llm import LLM
from safegen.result import Result
from safegen.speculation import OFF, Speculation, resolve, resolve_call
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think
from tests.support.drafters import FunctionDrafter
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import LONGER, STOP, TOKEN_BYTES, ScriptedBackend, make_llm, make_runtime

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TYPES: dict[str, Any] = {
    "text": None,
    "object": JsonSchema(PERSON),
    "object with spaces": JsonSchema(PERSON, whitespace="flexible"),
    "any order": JsonSchema(PERSON, property_order="any"),
    "regex": Regex("(ab|abc)+-positive-(true|false)"),
    "tables": Regex("(ab|abc){1,4}-end", fsm=True),
    "choice": Choice(["positive", "position", "pos", "negative"]),
    "grammar": Grammar('start: "(" start* ")" | "abc"'),
    "unique items": JsonSchema({"type": "array", "items": {"enum": [1, 2, 1.5, "a"]}, "uniqueItems": True}),
    "verified items": JsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": {"enum": [True, False]}, "maxItems": 2},
            "uniqueItems": True,
            "minItems": 2,
            "maxItems": 3,
        }
    ),
    "think": Think(JsonSchema(PERSON), max_tokens=6),
}


def encode(text: str) -> list[int]:
    """The fake tokenizer's longer tokens, too."""
    left, ids = text.encode(), list[int]()
    while left:
        longer = [STOP + 2 + number for number, piece in enumerate(LONGER) if left.startswith(piece.encode())]
        ids.append(max(longer, key=lambda token: len(TOKEN_BYTES[token] or b""), default=left[0]))
        left = left[len(TOKEN_BYTES[ids[-1]] or b"") :]
    return ids


def at_random(seed: int) -> FunctionDrafter:
    rng = random.Random(seed)

    def propose(ask: Ask) -> Draft:
        return Draft(tuple(rng.randrange(len(TOKEN_BYTES)) for _ in range(rng.randrange(4))))

    return FunctionDrafter(propose, "ngram")  # a name that requests take drafts of


def drafting(seed: int = 0, *, adaptive: bool = False) -> Speculator:
    drafters = [ForcedDrafter(encode, TOKEN_BYTES), NgramDrafter(), at_random(seed)]
    return Speculator(drafters, max_tokens_a_draft=8, adaptive=adaptive)


ALL = Speculation()


def told(results: list[Result[Any]]) -> list[Any]:
    return [(one.status, one.text, one.finish_reason, one.usage.completion_tokens, one.logprobs) for one in results]


@pytest.mark.parametrize("name", TYPES)
def test_answers_of_every_type_are_those_without_speculation(name: str) -> None:
    rows = [(f"prompt {number} abc abc true", TYPES[name]) for number in range(10)]
    num_accepted = 0
    for options in ({"temperature": 0.0}, {"temperature": 1.5, "seed": 3}, {"temperature": 1.0, "seed": 1, "n": 2}):
        with make_llm() as llm:
            wanted = told(llm.batch(rows, max_tokens=48, **options))
        with LLM.from_runtime(make_runtime_with(drafting())) as llm:
            results = llm.batch(rows, max_tokens=48, **options)
            found = told(results)
            num_accepted += sum(one.usage.accepted for one in results)
        assert found == wanted
    assert num_accepted > 0 or name == "text"


def make_runtime_with(speculator: Speculator, backend: FakeBackend | None = None) -> Any:
    return make_runtime(backend, speculator=speculator, speculation=ALL)


THOUGHT = '<think>hm</think>{"name":"ab","age":3}'


@pytest.mark.parametrize("length", [3, 5, 12])
def test_a_draft_across_the_switch_from_reasoning_to_the_answer_is_verified_under_both(length: int) -> None:
    spec = Think(JsonSchema(PERSON), max_tokens=30)

    def along_the_text(ask: Ask) -> Draft:
        sequence = ask.sequence
        text = [*THOUGHT.encode(), STOP]
        place = sequence.num_output_tokens + len(ask.prefix)
        return Draft(tuple(text[place : place + length]))

    speculator = Speculator([FunctionDrafter(along_the_text, "forced")], adaptive=False)
    with LLM.from_runtime(make_runtime_with(speculator, ScriptedBackend(THOUGHT))) as llm:
        result = llm.generate("go", spec, max_tokens=60)
    assert (result.status, result.text, result.thinking) == ("ok", THOUGHT, "hm")
    assert result.usage.forwards <= len(THOUGHT) // length + 1
    assert result.usage.accepted >= len(THOUGHT) - result.usage.forwards - 1


@pytest.mark.parametrize(
    "wrong", ["</think>[1]", '</think>{"nom":', "</think></think>", '</think>{"name":"ab","age":x']
)
def test_a_draft_that_is_wrong_past_the_switch_is_rejected_there(wrong: str) -> None:
    spec = Think(JsonSchema(PERSON), max_tokens=30)
    switch = THOUGHT.index("</think>")

    def wrong_past_the_switch(ask: Ask) -> Draft:
        place = ask.sequence.num_output_tokens
        return Draft(tuple(wrong.encode()[place - switch :][:12])) if place >= switch else Draft(())

    speculator = Speculator([FunctionDrafter(wrong_past_the_switch, "forced")], adaptive=False)
    with LLM.from_runtime(make_runtime_with(speculator, ScriptedBackend(THOUGHT))) as llm:
        result = llm.generate("go", spec, max_tokens=60)
    assert (result.status, result.text) == ("ok", THOUGHT)
    assert result.usage.accepted < result.usage.drafted


def test_a_stream_shows_the_same_text_in_fewer_pieces() -> None:
    with LLM.from_runtime(make_runtime_with(drafting(), ScriptedBackend('{"name":"ab","age":3}'))) as llm:
        with llm.stream("go", TYPES["object"], max_tokens=40) as events:
            text = "".join(event.text for event in events if isinstance(event, DeltaEvent))
        assert text == events.result().text == '{"name":"ab","age":3}'


# --- the option -----------------------------------------------------------------------------------------------------


def test_a_call_may_turn_speculation_off_or_name_its_drafters() -> None:
    with LLM.from_runtime(make_runtime_with(drafting())) as llm:
        off = llm.generate("go", TYPES["object"], speculation=False).usage
        assert (off.drafted, off.accepted, off.by_drafter) == (0, 0, {})
        forced = llm.generate("go", TYPES["object"], speculation=Speculation(drafters=["forced"])).usage
        assert set(forced.by_drafter) == {"forced"}
        stats = llm._runtime._engine.stats()  # type: ignore[attr-defined]
        assert stats.drafted_tokens == forced.drafted and stats.by_drafter["forced"].accepted == forced.accepted


@pytest.mark.parametrize("value", [True, 1, "always", "ngram", ["ngram"], {"drafters": ["ngram"]}, object()])
def test_what_is_no_speculation_is_refused_by_name(value: Any) -> None:
    for refuse in (resolve, lambda value: resolve_call(value, ALL)):
        with pytest.raises(RequestError) as caught:
            refuse(value)
        assert caught.value.field == "speculation"


@pytest.mark.parametrize(
    "fields",
    [{"drafters": "forced"}, {"drafters": ["eagle"]}, {"drafters": 3}, {"drafters": [[]]}, {"share_outputs": 1}],
)
def test_wrong_fields_of_speculation_are_refused_by_name(fields: Any) -> None:
    with pytest.raises(RequestError) as caught:
        Speculation(**fields)
    assert caught.value.field == "speculation"


def test_a_drafter_that_the_llm_does_not_have_is_refused_with_the_fix() -> None:
    with make_llm() as llm, pytest.raises(RequestError, match="LLM\\(speculation="):
        llm.generate("go", speculation=Speculation(drafters=("ngram",)))
    assert resolve_call(None, OFF) is OFF
    assert resolve_call("auto", OFF) is OFF
    assert resolve_call(False, ALL) == OFF
    assert resolve("auto") == Speculation(drafters=("forced", "ngram"))
