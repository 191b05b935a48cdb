"""What a redaction makes of a text: it holds no ban, hides no match, and names nothing that a guard has found."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from safegen.errors import SchemaError
from safegen.events import DeltaEvent
from safegen.guards import PII, Guards, GuardView, InvisibleText, Never
from safegen.guards.answer_reader import AnswerKind
from safegen.guards.bans import EditedText
from safegen.guards.running import Entry
from safegen.guards.scopes import parse_scopes
from safegen.guards.session import GuardSession
from safegen.guards.stream import AnswerShape
from safegen.tools import Tools
from safegen.types import JsonSchema, Think
from tests.support.guards import Word
from tests.support.sdk_fakes import ScriptedBackend, make_llm

_MAP = JsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
_HIDDEN = "\u200b" * 17  # one more than a detector reads across


def _generate(text: str, guards: Any, spec: Any = None) -> Any:
    with make_llm(ScriptedBackend(text)) as llm:
        return llm.generate("go", spec, guards=guards, max_tokens=200)


def _streamed(text: str, guards: Any, spec: Any = None) -> tuple[str, Any]:
    with make_llm(ScriptedBackend(text)) as llm, llm.stream("go", spec, guards=guards, max_tokens=200) as events:
        shown = "".join(event.text for event in events if isinstance(event, DeltaEvent))
        return shown, events.result()


def _cut(pieces: list[str], guards: Any, kind: AnswerKind = "text") -> tuple[str, Any, Any]:
    """What is shown of an answer that comes in these pieces, what stopped it, and the records."""
    session = GuardSession(Guards(guards, audit_key=b"k" * 16), "request")
    session.check_input([])
    sample, shown = session.output(AnswerShape(kind), 0), ""
    for piece in pieces:
        if sample.stopped is None:
            shown += sample.feed(piece)
    if sample.stopped is None:
        shown += sample.finish()
    error = sample.blocked()
    told = [(r.guard, r.action, r.path, r.start, r.end, r.digest) for r in session.records()]
    return shown, None if error is None else (error.guard, error.rule, error.path), told


@pytest.mark.parametrize(
    ("text", "error", "num_edits"),
    [
        ('["a\u200bb stop \u200bc","\u200bd"]', ("word", "stop", "$[0]"), 1),
        ('["\u200ba b","\u200bstop\u200b","ki\u200bll it now"]', ("word", "stop", "$[1]"), 2),
        ('["\u200ba b","ki\u200bll it \u200bnow, and later","\u200bstop"]', ("never", "phrase", "$[1]"), 2),
    ],
)
def test_what_stops_an_answer_and_its_records_do_not_depend_on_how_it_is_cut(
    text: str, error: Any, num_edits: int
) -> None:
    hidden = InvisibleText(on_fail="redact", stages=["output"])
    guards = [hidden, Word("stop", stages=["output"]), Never(phrases=["kill"], fold="exact")]
    _, stopped, told = _cut([text], guards, "json")
    assert stopped == error
    assert [action for _, action, *_ in told if action != "allow"] == ["redact"] * num_edits + ["block"]
    for length in range(1, len(text)):
        pieces = [text[at : at + length] for at in range(0, len(text), length)]
        assert _cut(pieces, guards, "json")[1:] == (stopped, told)


def _redacting(*guards: Any) -> list[Any]:
    return [PII(on_fail="redact", stages=["output"]), *guards]


@pytest.mark.parametrize(
    "ban", [Never(phrases=["email"]), Never(phrases=["to [e"], fold="case"), Never(regexes=[r"\["])]
)
def test_a_placeholder_in_free_text_holds_no_ban(ban: Never) -> None:
    result = _generate("to a.b@c.com now", _redacting(ban))
    assert (result.status, result.text) == ("ok", "to x@redacted.invalid now")
    assert not ban.find(GuardView(result.text))
    assert _streamed("to a.b@c.com now", _redacting(ban))[0] == result.text


def test_a_placeholder_in_a_property_name_holds_no_ban() -> None:
    guards = [Word("zanzibar", on_fail="redact", stages=["output"]), Never(phrases=["[zan"], where="$..*~")]
    result = _generate('{"zanzibar":"1"}', guards, _MAP)
    assert (result.status, result.value) == ("ok", {"[REDACTED]": "1"})


def test_outside_of_a_bans_scope_a_placeholder_stays_as_it_is() -> None:
    result = _generate("to a.b@c.com now", _redacting(Never(phrases=["email"], where="$.a")))
    assert result.text == "to [EMAIL] now"


def test_what_meets_where_hidden_characters_were_is_held_to_the_bans() -> None:
    guards = [Never(phrases=["kill"], fold="exact"), InvisibleText(on_fail="redact", stages=["output"])]
    result = _generate("ki\u200bll", guards)
    assert (result.status, result.text, result.error.guard) == ("blocked", "", "never")
    shown, streamed = _streamed("ki\u200bll it", guards)
    assert streamed.status == "blocked"
    assert "kill" not in shown
    assert _generate("ki\u200blt", guards).text == "kilt"


def test_a_word_that_an_edit_sets_free_is_a_ban_and_a_part_of_one_is_none() -> None:
    guards = [Word("xx", on_fail="redact", stages=["output"]), Never(phrases=["cat"], word=True, fold="exact")]
    assert _generate("xxcat", guards).status == "blocked"
    assert _streamed("xx category", guards)[0] == _generate("xx category", guards).text == "[XX] category"
    for pieces in (["one xxcategory"], list("one xxcategory")):
        assert _cut(pieces, guards)[:2] == ("one [XX]category", None)
    shown, error, _ = _cut(list("one xxcat too"), guards)
    assert (shown, error) == ("one [XX]ca", ("never", "phrase", "$"))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_match_that_hidden_characters_break_up_is_found_when_they_are_taken_out(reverse: bool) -> None:
    guards = _redacting(InvisibleText(on_fail="redact", stages=["output"]))
    text = f"it is 123-45{_HIDDEN}-6789 ok"
    result = _generate(text, guards[::-1] if reverse else guards)
    assert (result.status, result.text) == ("ok", "it is [SSN] ok")
    assert _streamed(text, guards)[0] == result.text


@pytest.mark.parametrize("on_fail", ["block", "redact"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f'so 123-45{_HIDDEN}-6789<|python_tag|>{{"name":"f","parameters":{{"a":"a.b@c.com"}}}}', "tools"),
        (f'<think>so 123-45{_HIDDEN}-6789</think>{{"a":"a.b@c.com"}}', "think"),
        (f'{{"123-45{_HIDDEN}-6789":"a.b@c.com"}}', "map"),
    ],
)
def test_what_is_not_redacted_while_decoding_is_looked_at_without_hidden_characters(
    text: str, kind: str, on_fail: Any
) -> None:
    field = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20}}, "required": ["a"]}
    tools = Tools([{"name": "f", "parameters": field}], format="llama", max_calls=1)
    spec = {"tools": tools, "think": Think(JsonSchema(field), max_tokens=100), "map": _MAP}[kind]
    hidden = InvisibleText(on_fail="redact", stages=["output"])
    guards = [hidden, PII(types=["SSN"], on_fail=on_fail, stages=["output"]), *_redacting()]
    result, (shown, streamed) = _generate(text, guards, spec), _streamed(text, guards, spec)
    assert result.status == streamed.status == ("ok" if on_fail == "redact" else "blocked")
    assert not {"123-45", "-6789", "a.b@c"} & {shown[at : at + size] for size in (5, 6) for at in range(len(shown))}
    decoded = [(r.stage, r.action, r.path[-2:]) for r in result.audit if r.rule == "EMAIL"]
    if on_fail == "redact":
        assert shown == result.text == streamed.text
        assert "[SSN]" in shown and "\u200b" not in shown
        assert [stage for stage, _, _ in decoded] == ["decoding"]


def test_a_prompt_is_looked_at_without_its_hidden_characters() -> None:
    guards = [PII(stages=["input"]), InvisibleText(on_fail="redact", stages=["input"])]
    with make_llm(ScriptedBackend("yes")) as llm:
        result: Any = llm.generate(f"I am 123-45{_HIDDEN}-6789", guards=guards, max_tokens=5)
    assert (result.status, result.error.rule) == ("blocked", "SSN")


@pytest.mark.parametrize("on_fail", ["log", "block"])
def test_a_name_that_was_found_is_in_no_path(on_fail: Any) -> None:
    names = Word("zanzibar", on_fail="redact", stages=["output"])
    result = _generate('{"zanzibar":"a.b@c.com"}', [names, PII(on_fail=on_fail, stages=["output"])], _MAP)
    assert result.status == ("ok" if on_fail == "log" else "blocked")
    assert [record.action for record in result.audit if record.guard == "pii"] == [on_fail]
    paths = [record.path for record in result.audit]
    assert "zanzibar" not in f"{paths} {result.error}"


def test_a_stream_that_is_left_is_recorded_as_far_as_it_came() -> None:
    kept: list[Any] = []
    guards = Guards([PII(on_fail="redact")], audit=kept.extend)
    with make_llm(ScriptedBackend("to a.b@c.com and much more")) as llm:
        with llm.stream("go", guards=guards, max_tokens=200) as events:
            for event in events:
                if isinstance(event, DeltaEvent) and "[EMAIL]" in event.text:
                    break
        assert [(r.stage, r.action, r.rule) for r in kept] == [("output", "redact", "EMAIL"), ("input", "allow", None)]


def test_a_call_whose_type_is_refused_keeps_what_was_decided_about_its_prompt() -> None:
    kept: list[Any] = []
    guards = Guards([PII(on_fail="redact", stages=["input"])], audit=kept.extend)
    with make_llm(ScriptedBackend("x")) as llm, pytest.raises(SchemaError):
        llm.generate("to a.b@c.com", JsonSchema({"type": "nothing"}), guards=guards)
    assert [(r.action, r.rule) for r in kept] == [("redact", "EMAIL")]


def test_a_result_is_recorded_once() -> None:
    kept: list[Any] = []
    guards = Guards([PII(on_fail="log")], audit=lambda records: kept.append(len(records)))
    with make_llm(ScriptedBackend("hello")) as llm:
        llm.generate("go", guards=guards, max_tokens=5)
        with llm.stream("go", guards=guards, max_tokens=5) as events:
            events.result()
    assert kept == [2, 2]


def test_a_long_text_behind_an_edit_is_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Never(phrases=["kill"])
    entry = Entry(0, "never", guard, parse_scopes(None))
    seen: list[int] = []

    def may_hold(self: Never, text: str) -> bool:
        seen.append(len(text))
        return False

    monkeypatch.setattr(Never, "may_hold", may_hold)
    edited = EditedText([entry])
    edited.replace("x", "[X]")
    for _ in range(1_000):
        edited.keep("some text ")
        assert edited.found() is None
    assert len(seen) < 5
    edited.replace("x", "[X]")
    assert edited.found() is None
    edited.replace("x", "[X]")
    assert seen[-1] < 100


@pytest.mark.parametrize("word", [False, True])
def test_what_many_edits_have_forgotten_makes_no_difference(word: bool) -> None:
    """Against a look at the whole text, with edits close and far and a ban at a random place."""
    rng = random.Random(7)
    guard = Never(phrases=["kill it", "kil"], fold="exact", word=word)
    for _ in range(300):
        edited, text = EditedText([Entry(0, "never", guard, parse_scopes(None))]), ""
        spans = list[tuple[int, int]]()
        for _ in range(rng.randint(1, 60)):
            piece = rng.choice(["k", "i", "l", "kil", "kill ", " it", ", ", "and so on, "])
            edited.keep(piece)
            text += piece
            if rng.random() < 0.5:
                start = len(text)
                text += edited.replace("hidden", "")
                spans.append((start, len(text)))
        matches = guard.find(GuardView(text))
        expected = [m for m in matches if any(m.start <= end and start <= m.end for start, end in spans)]
        found = edited.found()
        assert (found is None) == (not expected)
        if found is not None:
            assert found.end == min(match.end for match in expected)


def test_many_edits_take_linear_time() -> None:
    """Four times the edits may take at most ten times the time (a quadratic look takes sixteen)."""
    seconds = list[float]()
    for num_edits in (1_000, 4_000):
        edited = EditedText([Entry(0, "never", Never(phrases=["kill"]), parse_scopes(None))])
        start = time.process_time()
        for _ in range(num_edits):
            edited.replace("hidden", "")
            edited.keep("some text, ")
        assert edited.found() is None
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * max(seconds[0], 0.002)


def test_a_ban_across_two_edits_and_a_long_way_behind_the_first_is_found() -> None:
    entry = Entry(0, "never", Never(phrases=["kill"], fold="exact"), parse_scopes(None))
    edited = EditedText([entry])
    for text in ("ki", "words and words"):
        edited.keep(text)
        edited.replace("hidden", "")
        assert edited.found() is None
    edited.keep(" ki")
    assert edited.found() is None
    edited.replace("hidden", "")
    edited.keep("l")
    assert edited.found() is None
    edited.keep("l")
    found = edited.found()
    assert found is not None
    assert (found.rule, found.text) == ("phrase", "kill")
