"""Faults of other guard systems, each seen by running their code, that this one must not have: those of frameworks and
streams. (Faults of detectors are tested with the detectors.)"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from safegen.events import DeltaEvent
from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.guards import Guards
from safegen.guards.stream import AnswerShape
from safegen.types import JsonSchema
from tests.support.guards import Email, Ssn, Word, shown
from tests.support.sdk_fakes import ScriptedBackend, make_llm

_TEXT = AnswerShape("text")
_JSON = AnswerShape("json")


class Patterns(Guard):
    """Several expressions, each a rule of its own."""

    inline = True

    def __init__(self, *patterns: str, **common: Any) -> None:
        super().__init__(**common)
        self.patterns = patterns

    def find(self, view: GuardView) -> Sequence[Match]:
        return [Match(m.start(), m.end(), p) for p in self.patterns for m in re.finditer(p, view.text)]


def _redacted(text: str, *guards: Guard, shape: AnswerShape = _TEXT) -> str:
    return "".join(shown(shape, guards, [text])[0])


def test_1_a_guard_with_two_patterns_does_not_stop_at_the_first_that_matches() -> None:
    text = "ssn 123-45-6789 … mail a.b@c.com"
    assert _redacted(text, Ssn(on_fail="redact"), Email(on_fail="redact")) == "ssn [SSN] … mail [EMAIL]"
    both = Patterns(r"\d{3}-\d{2}-\d{4}", r"\S+@\S+", on_fail="redact")
    assert not re.search(r"\d|@", _redacted(text, both).replace("[D_3_D_2_D_4]", ""))


def test_2_what_is_replaced_is_what_was_matched() -> None:
    word = Patterns(r"\bass\b", on_fail="redact")
    assert _redacted("class ass glass", word) == "class [BASS_B] glass"


def test_5_guards_of_one_class_do_not_overwrite_each_other() -> None:
    with make_llm(ScriptedBackend("has a secret"), guards=[Word("secret"), Word("harmless")]) as llm:
        result = llm.generate("go")
    assert result.status == "blocked"
    assert {record.guard for record in result.audit} == {"word", "word_2"}
    assert Guards([Word(), Word(), Word(name="word_2")]).names == ("word", "word_2", "word_2_2")


def test_6_every_copy_is_replaced_not_the_first() -> None:
    assert _redacted("secret, secret and secret", Word(on_fail="redact")) == "[SECRET], [SECRET] and [SECRET]"


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Jean-Luc Martin jean@x.com", [(0, 15, "person"), (9, 26, "email")]),
        ("4111 1111 1111 1111@x.com", [(0, 19, "card"), (15, 25, "email")]),
        ("aaaa", [(0, 2, "x"), (0, 4, "y"), (1, 3, "z")]),
        ("abcdef", [(0, 2, "x"), (1, 4, "y"), (3, 6, "z")]),
    ],
)
def test_7_of_overlapping_spans_no_part_stays(text: str, spans: list[tuple[int, int, str]]) -> None:
    class Spans(Guard):
        inline = True

        def find(self, view: GuardView) -> Sequence[Match]:
            return [Match(*span) for span in spans]

    first = max((span for span in spans if span[0] == 0), key=lambda span: span[1])
    assert _redacted(text, Spans(on_fail="redact")) == f"[{first[2].upper()}]"


@pytest.mark.parametrize("on_fail", ["block", "redact", "retry"])
@pytest.mark.parametrize("length", [60, 400])
def test_8_a_stream_delivers_nothing_of_a_match_before_the_guard_has_spoken(on_fail: Any, length: int) -> None:
    text = "ok " * 6 + "123-45-6789" + " ok" * ((length - 29) // 3)
    with (
        make_llm(ScriptedBackend(text)) as llm,
        llm.stream("go", guards=Ssn(on_fail=on_fail), max_tokens=500) as events,
    ):
        seen = "".join(event.text for event in events if isinstance(event, DeltaEvent))
    assert not re.search(r"\d", seen)
    assert seen.startswith("ok ok ok ok ok ok ")
    assert ("ok ok" in seen[30:]) is (on_fail == "redact")


@pytest.mark.parametrize("size", [1, 2, 7, 20, 200])
def test_9_a_match_over_the_edge_of_a_chunk_does_not_leak_its_first_half(size: int) -> None:
    text = "x" * 195 + " 123-45-6789 " + "y" * 100
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    seen, _ = shown(_TEXT, [Ssn(on_fail="block")], pieces)
    assert "".join(seen) == "x" * 195 + " "
    seen, _ = shown(_TEXT, [Ssn(on_fail="redact")], pieces)
    assert "".join(seen) == text.replace("123-45-6789", "[SSN]")


def test_11_chunks_do_not_reach_the_caller_while_a_guard_still_reads() -> None:
    class Sentences(Guard):
        """Judges only whole texts."""

        def find(self, view: GuardView) -> Sequence[Match]:
            return [Match(0, len(view.text), "ssn")] if view.final and "123-45-6789" in view.text else []

    for on_fail in ("block", "redact"):
        guard = Sentences(on_fail=on_fail)  # type: ignore[arg-type]
        seen, stream = shown(_TEXT, [guard], ["My ", "ssn ", "is ", "123", "-45", "-67", "89"])
        assert "".join(seen[:-1]) == ""
        assert seen[-1] == ("" if stream.stopped else "[SSN]")


def test_12_an_escape_does_not_bypass_a_guard() -> None:
    guard = Word("confidential", on_fail="block")
    _, stream = shown(_JSON, [guard], [r'{"a":"\u0063onfidential"}'])
    assert stream.stopped is not None
    _, stream = shown(_JSON, [guard], [r'{"\u0063onf\u0069dential":1}'])
    assert stream.stopped is not None


@pytest.mark.parametrize(
    "text", [r'{"a":"mail a.b@c.com\" x","n":1}', r'{"a":"\\","b":"a.b@c.com\\"}', '{"a.b@c.com":"x","n":[1,2]}']
)
def test_12_redaction_does_not_eat_quotes_and_leaves_json(text: str) -> None:
    redacted = _redacted(text, Patterns(r"\S+@\S+", on_fail="redact"), shape=_JSON)
    assert "@" not in redacted
    assert type(json.loads(redacted)) is dict
    assert len(json.loads(redacted)) == len(json.loads(text))


def test_12_redaction_in_a_number_never_leaves_broken_json() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    with make_llm(ScriptedBackend('{"n":41111}')) as llm:
        result = llm.generate("go", JsonSchema(schema), guards=Word("4111", on_fail="redact"), max_tokens=60)
    assert result.status == "blocked" or "4111" not in str(json.loads(result.text)["n"])
