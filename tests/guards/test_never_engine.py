"""`Never` through the whole engine: whatever is fast about it, no answer holds a ban.

The logits steer to the banned texts in every step, and drafts propose them. What must not let a ban through: rows that
are drawn without a look at their mask, drafts cut to what is legal in one native call, forced bytes and completions
that are kept by state, values forced in place of what was redacted, and rows of other requests over the same schema.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from safegen.engine.speculate.base import Drafter
from safegen.engine.speculate.forced import ForcedDrafter
from safegen.engine.speculate.ngram import NgramDrafter
from safegen.engine.speculate.speculator import Speculator
from safegen.events import DeltaEvent
from safegen.guards import Never
from safegen.llm import LLM
from safegen.result import Result
from safegen.speculation import OFF, Speculation
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think
from tests.sdk.test_speculation import encode
from tests.support.guards import Email
from tests.support.plain_never import holds_ban, texts_of
from tests.support.sdk_fakes import TOKEN_BYTES, ScriptedBackend, make_llm
from tests.support.steering import SteeringBackend, drafting

ENDED = ("ok", "truncated")  # cut at max_tokens, and closed in the shortest way
BANNED = ["kill", "abcab", "ｋｉＬL"]
_OBJECT = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 2}
TYPES: dict[str, Any] = {
    "text": None,
    "values": JsonSchema(_OBJECT),
    "any JSON": JsonSchema({"type": "object"}),
    "short values": JsonSchema({"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 3}),
    "long values": JsonSchema({"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 3}),
    "patterns": JsonSchema({"type": "array", "items": {"pattern": "^[a-l]{4,9}$", "type": "string"}, "minItems": 2}),
    "unique": JsonSchema({"type": "array", "items": {"pattern": "^[kil]{3,5}$", "type": "string"}, "minItems": 3,
                          "uniqueItems": True}),
    "names": JsonSchema({"type": "object", "patternProperties": {"^k[il]+$": {"enum": ["kill", "kil", "ki"]}},
                         "additionalProperties": False, "minProperties": 2}),
    "listed": JsonSchema({"type": "array", "items": {"enum": ["killswitch", "king size", "abcabc", "abcd"]},
                          "minItems": 3}),
    "tools": Tools([{"name": "f", "parameters": _OBJECT}], max_calls=2),
    "regex": Regex("(ki?l*|abc?)+x"),
    "choice": Choice(["killer", "kilt", "abcab", "skilled worker"]),
    "think": Think(JsonSchema(_OBJECT), max_tokens=12),
    "grammar": Grammar('start: (WORD ("," | "."))+ "x"\nWORD: /[abcikl]{1,5}/'),
    "terminals": Grammar('start: ("ki" | "k" | "i" | "l" | "ab" | "c")+ "x"'),
}  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 3.0, "seed": 5},
]


def speculator(texts: list[str]) -> Speculator:
    drafters: list[Drafter] = [ForcedDrafter(encode, TOKEN_BYTES), drafting(texts), NgramDrafter()]
    return Speculator(drafters, max_tokens_a_draft=8, adaptive=False)


def steered_llm(texts: list[str], guards: Any = (), *, drafts: bool = False) -> LLM:
    if not drafts:
        return make_llm(SteeringBackend(texts), guards=guards)
    return make_llm(SteeringBackend(texts), guards=guards, speculator=speculator(texts), speculation=Speculation())


def values_of(result: Result[Any]) -> list[str]:
    """The decoded texts of an answer, and the whole of it where it is no JSON."""
    value: Any = result.value
    if hasattr(value, "calls"):
        return [result.text, *texts_of([call.arguments for call in value.calls])]
    whole = [result.text] if isinstance(value, str) else [result.thinking or ""]
    return [*texts_of(value), *whole]


def told(results: list[Result[Any]]) -> list[Any]:
    return [(one.status, one.text, one.finish_reason) for one in results]


@pytest.mark.parametrize("name", TYPES)
def test_logits_that_steer_to_a_ban_never_say_it_with_and_without_drafts(name: str) -> None:
    guard, num_drafted, answers = Never(phrases=BANNED), 0, []
    for settings in SETTINGS:
        for drafts in (False, True):
            with steered_llm(BANNED, [guard], drafts=drafts) as llm:
                rows = [(f"prompt {number}\n", TYPES[name]) for number in range(4)]
                results = llm.batch(rows, max_tokens=40, **settings)
            assert all(one.status in ENDED for one in results), results
            assert not [text for one in results for text in values_of(one) if holds_ban(text, BANNED, "compat")]
            num_drafted += sum(one.usage.drafted for one in results)
            answers.append(told(results))
    assert answers[0::2] == answers[1::2], "drafts change no answer"
    assert num_drafted > 0


@pytest.mark.parametrize("name", TYPES)
def test_the_same_logits_say_it_where_no_ban_holds(name: str) -> None:
    """Without this the test above would prove nothing."""
    with steered_llm(BANNED) as llm:
        results = llm.batch(
            [(f"prompt {number}\n", TYPES[name]) for number in range(4)], max_tokens=40, temperature=0.0
        )
    assert all(any(holds_ban(text, BANNED, "compat") for text in values_of(one)) for one in results)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", ["text", "values", "short values", "patterns", "listed", "tools", "regex", "think"])
def test_bans_of_several_requests_over_one_schema_hold_each_in_its_own(name: str, drafts: bool) -> None:
    bans = [["kill"], ["abcab"], ["kill", "abcab"], ["ki"], []]
    with steered_llm(BANNED[:2], drafts=drafts) as llm:
        types = [llm.compile(TYPES[name], guards=[Never(phrases=each)] if each else ()) for each in bans]
        for settings in SETTINGS[:2]:
            rows = [(f"prompt {number}\n", each) for number in range(3) for each in types]
            results = llm.batch(rows, max_tokens=40, **settings)
            for place, result in enumerate(results):
                held = bans[place % len(bans)]
                assert result.status in ENDED, result
                assert not [text for text in values_of(result) if held and holds_ban(text, held, "compat")], held
            free = [text for result in results[len(bans) - 1 :: len(bans)] for text in values_of(result)]
            assert any(holds_ban(text, BANNED, "compat") for text in free), "the bans of others hold here, too"


def test_guards_of_a_call_add_to_those_of_the_model() -> None:
    with steered_llm(["kill", "abc"], [Never(phrases=["kill"])]) as llm:
        first = llm.generate("go\n", TYPES["values"], max_tokens=40, temperature=0.0)
        both = llm.generate("go\n", TYPES["values"], max_tokens=40, temperature=0.0, guards=[Never(phrases=["abc"])])
    assert not holds_ban(first.text, ["kill"], "compat") and holds_ban(first.text, ["abc"], "compat")
    assert not holds_ban(both.text, ["kill", "abc"], "compat")


def test_a_stream_shows_no_ban_and_holds_nothing_back() -> None:
    guard = Never(phrases=BANNED)
    with steered_llm(BANNED, [guard], drafts=True) as llm:
        with llm.stream("go\n", max_tokens=30, temperature=0.0) as events:
            shown = [event.text for event in events if isinstance(event, DeltaEvent)]
        whole = llm.generate("go\n", max_tokens=30, temperature=0.0)
    assert "".join(shown) == whole.text and not holds_ban(whole.text, BANNED, "compat")
    assert len(shown) > 5


@pytest.mark.parametrize("speculation", [OFF, Speculation()])
def test_what_is_forced_in_place_of_a_match_holds_no_ban(speculation: Speculation) -> None:
    """The first placeholder would be `[EMAIL]`."""
    spec = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    guards = [Email(on_fail="redact"), Never(phrases=["email"])]
    for text in ("to a.b@c.com now", "a.b@c.com"):
        backend = ScriptedBackend(json.dumps({"a": text}, separators=(",", ":")))
        with make_llm(backend, guards=guards, speculator=speculator(["email"]), speculation=speculation) as llm:
            result = llm.generate("go", spec, max_tokens=80, temperature=0.0)
        assert result.status in ENDED, result
        answer: Any = result.value
        assert not holds_ban(answer["a"], ["email"], "compat")
        assert "a.b@c.com" not in result.text
