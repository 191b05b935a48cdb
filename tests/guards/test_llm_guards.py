"""Guards around real calls: prompts by message, answers by decoded value, streams, batches, retries, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from safegen.errors import GuardBlocked
from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent
from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.guards import Guards
from safegen.guards.refusal import Refusal
from safegen.llm import LLM
from safegen.tools import Tools
from safegen.types import Choice, Regex, Think
from tests.support.guards import Email, Raising, Ssn, Word
from tests.support.sdk_fakes import ScriptedBackend, make_llm


class Note(BaseModel):
    title: str
    body: str


def scripted(text: str, guards: Any = (), **settings: Any) -> LLM:
    return make_llm(ScriptedBackend(text), guards=guards, **settings)


def _blocked(result: Any) -> GuardBlocked:
    assert result.status == "blocked", result
    assert isinstance(result.error, GuardBlocked)
    return result.error


# --- input ------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_a_guard_blocks_never_reaches_the_model() -> None:
    with scripted("fine", Ssn()) as llm:
        result = llm.generate("my ssn is 123-45-6789")
        error = _blocked(result)
        assert (error.guard, error.rule, error.path, error.stage) == ("ssn", "ssn", "$[0]", "input")
        assert (result.value, result.text, result.usage.prompt_tokens) == (None, "", 0)
        assert "6789" not in repr(result) + str(error)
        with pytest.raises(GuardBlocked, match="ssn") as caught:
            result.unwrap()
        assert (caught.value.guard, caught.value.path) == ("ssn", "$[0]")
        assert llm.generate("no number").unwrap() == "fine"


def test_a_prompt_is_redacted_message_by_message_and_by_role() -> None:
    seen: list[tuple[str | None, str, str]] = []

    class Watching(Guard):
        default_stages = ("input",)

        def find(self, view: GuardView) -> Sequence[Match]:
            seen.append((view.role, view.path, view.text))
            return [Match(0, 6, "start")] if view.role == "user" else []

    with scripted("x") as llm:
        messages = [
            {"role": "system", "content": "be good"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "secret plan"},
        ]
        result = llm.generate(messages, guards=Watching(on_fail="redact"))
        shorter = llm.generate(messages)
    assert seen == [("assistant", "$[1]", "hello"), ("user", "$[2]", "secret plan")]
    assert result.usage.prompt_tokens == shorter.usage.prompt_tokens + len("[START]") - len("secret")


def test_a_row_that_is_blocked_leaves_the_others_alone() -> None:
    with scripted("fine", Ssn()) as llm:
        results = llm.batch(["one", "123-45-6789", "two", ("three", Regex("fine")), ""], max_tokens=10)
    assert [result.status for result in results] == ["ok", "blocked", "ok", "ok", "refused"]


def test_a_guard_that_fails_blocks_and_does_not_tell_the_text() -> None:
    with scripted("fine") as llm:
        error = _blocked(llm.generate("my secret", guards=Raising()))
        assert error.rule == "error"
        assert "my secret" not in str(error)
        assert llm.generate("my secret", guards=Raising(on_fail="log")).unwrap() == "fine"


# --- output -----------------------------------------------------------------------------------------------------------


def test_an_answer_that_a_guard_blocks_does_not_come_out() -> None:
    with scripted("the secret is 42", Word(stages=["output"])) as llm:
        result = llm.generate("go")
        assert (_blocked(result).guard, result.value, result.text) == ("word", None, "")
        assert "the secret" not in repr(result)


def test_an_answer_is_redacted_and_its_value_is_the_redacted_one() -> None:
    with scripted("mail a@b.co or c@d.eu", Email(on_fail="redact")) as llm:
        result = llm.generate("go", logprobs=1)
    assert result.status == "ok"
    assert result.value == result.text == "mail [EMAIL] or [EMAIL]"
    assert result.logprobs is None


def test_a_guard_that_only_logs_changes_nothing() -> None:
    with scripted("mail a@b.co", Email(on_fail="log")) as llm:
        result = llm.generate("go", logprobs=0)
    assert result.unwrap() == "mail a@b.co"
    assert result.logprobs is not None
    assert [(record.action, record.rule) for record in result.audit if record.stage == "output"] == [("log", "email")]


def test_fields_are_guarded_by_their_decoded_value() -> None:
    text = r'{"title":"\u0073ecret","body":"secret"}'
    with scripted(text) as llm:
        error = _blocked(llm.generate("go", Note, guards=Word(where="$.title")))
        assert (error.path, error.rule) == ("$.title", "secret")
        assert llm.generate("go", Note, guards=Word(where="$.other")).status == "ok"


def test_a_pattern_that_no_placeholder_fits_is_blocked_not_invalid() -> None:
    with scripted("secret") as llm:
        result = llm.generate("go", Regex("[a-z]{6}"), guards=Word(on_fail="redact"))
        assert _blocked(result).guard == "word"
        assert result.text == ""


def test_tool_arguments_are_fields() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}
    text = '<|python_tag|>{"name":"f","parameters":{"q":"secret"}}'
    with scripted(text) as llm:
        tools = Tools([tool], format="llama", max_calls=1)
        assert llm.generate("go", tools, guards=Word(where="$.text")).status == "ok"
        assert _blocked(llm.generate("go", tools, guards=Word(where="$..q"))).path == "$.calls[0].arguments.q"


def test_reasoning_is_guarded_too() -> None:
    with scripted('<think>the secret</think>"x"') as llm:
        think = Think(str, max_tokens=50)
        assert _blocked(llm.generate("go", think, guards=Word())).path == "$thinking"
        result = llm.generate("go", think, guards=Word(on_fail="redact"))
    assert (result.status, result.value, result.thinking) == ("ok", "x", "the [SECRET]")


def test_labels_with_probabilities_are_guarded() -> None:
    with scripted("pos") as llm:
        choice = Choice(["pos", "neg"], probabilities=True)
        assert llm.generate("go", choice, guards=Word("xyz")).choices is not None
        for guard in (Word("pos"), Word("neg")):
            result = llm.generate("go", choice, guards=guard)
            assert (result.status, result.choices is None) == ("blocked", True) or guard.word not in result.text


def test_each_sample_is_judged_by_itself() -> None:
    with make_llm() as llm:
        result = llm.generate("go", Regex("[ab]{3}"), n=6, temperature=1.0, seed=3, guards=Word("ab"))
    samples = [result, *result.alternatives]
    assert {sample.status for sample in samples} == {"ok", "blocked"}
    assert all("ab" not in sample.text for sample in samples)


def test_a_truncated_answer_is_redacted_as_well() -> None:
    with scripted("mail a@b.co and more") as llm:
        result = llm.generate("go", max_tokens=12, guards=Email(on_fail="redact"))
    assert (result.status, result.text) == ("truncated", "mail [EMAIL] ")


# --- retry and refusal ------------------------------------------------------------------------------------------------


class Asked(Guard):
    """Wants another answer until the prompt has been extended often enough."""

    default_stages = ("output",)

    def find(self, view: GuardView) -> Sequence[Match]:
        return [Match(m.start(), m.end(), "bad_word") for m in re.finditer("bad", view.text)]


def test_a_retry_asks_again_with_a_hint_and_is_bounded() -> None:
    with scripted("bad") as llm:
        once = llm.generate("go", guards=Guards([Asked(on_fail="retry")], max_retries=0))
        thrice = llm.generate("go", guards=Guards([Asked(on_fail="retry")], max_retries=2))
    assert once.status == thrice.status == "blocked"
    assert thrice.usage.prompt_tokens > once.usage.prompt_tokens
    actions = [(record.action, record.rule) for record in thrice.audit]
    assert actions == [("retry", "bad_word")] * 3


def test_a_retry_that_helps_is_ok() -> None:
    class Once(Asked):
        calls = 0

        def find(self, view: GuardView) -> Sequence[Match]:
            Once.calls += 1
            return super().find(view) if Once.calls == 1 else []

    with scripted("bad") as llm:
        result = llm.generate("go", guards=Once(on_fail="retry"))
    assert (result.status, result.value, Once.calls) == ("ok", "bad", 2)


def test_a_refusal_is_a_typed_value() -> None:
    guards = Guards([Ssn(), Word(stages=["output"])], on_block=Refusal)
    with scripted("the secret", guards) as llm:
        for prompt, code in (("123-45-6789", "input"), ("go", "output")):
            result = llm.generate(prompt, Regex(".{10}"))
            refusal = result.unwrap()
            assert isinstance(refusal, Refusal)
            assert (result.status, refusal.code) == ("blocked", code)
            with llm.stream(prompt) as events:
                assert isinstance(events.result().unwrap(), Refusal)


# --- streams ----------------------------------------------------------------------------------------------------------


def _stream(llm: LLM, *args: Any, **options: Any) -> tuple[str, list[Any], Any]:
    with llm.stream("go", *args, **options) as events:
        listed = list(events)
    assert isinstance(listed[-1], FinalEvent)
    shown = "".join(event.text for event in listed if isinstance(event, DeltaEvent))
    return shown, [event.value for event in listed if isinstance(event, SnapshotEvent)], listed[-1].result


def test_a_stream_shows_what_a_plain_call_gives() -> None:
    guards = [Email(on_fail="redact"), Ssn(on_fail="redact")]
    with scripted("mail a@b.co, 123-45-6789. Bye", guards) as llm:
        shown, _, result = _stream(llm)
        assert shown == result.text == llm.generate("go").text == "mail [EMAIL], [SSN]. Bye"


def test_a_json_stream_shows_redacted_snapshots() -> None:
    text = r'{"title":"a\u0040b.co","body":"x"}'
    with scripted(text) as llm:
        shown, snapshots, result = _stream(llm, Note, guards=Email(on_fail="redact"))
    assert result.status == "ok"
    assert json.loads(shown) == {"title": result.value.title, "body": "x"} == snapshots[-1]
    assert "a@b.co" not in str(snapshots)


def test_a_stream_is_cut_before_the_match_and_the_engine_is_stopped() -> None:
    with scripted("the secret is long " + "x" * 500, Word(stages=["output"])) as llm:
        shown, _, result = _stream(llm, max_tokens=520)
    assert _blocked(result).rule == "secret"
    assert shown == result.text == "the "
    assert result.usage.completion_tokens < 300


def test_a_stream_whose_prompt_is_blocked_has_only_an_end() -> None:
    with scripted("x", Ssn()) as llm, llm.stream("123-45-6789") as events:
        listed = list(events)
    assert [type(event) for event in listed] == [FinalEvent]
    assert _blocked(listed[0].result).stage == "input"


def test_a_retry_in_a_stream_blocks() -> None:
    with scripted("so bad", Asked(on_fail="retry")) as llm:
        shown, _, result = _stream(llm)
    assert result.status == "blocked"
    assert shown == ""


def test_without_guards_nothing_is_recorded() -> None:
    with scripted("x") as llm:
        assert llm.generate("go").audit == ()
        assert llm.generate("go", guards=()).audit == ()
