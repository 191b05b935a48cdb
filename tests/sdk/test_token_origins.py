"""Streams that say where their text came from: for every character shown, and for nothing that is not shown."""

from __future__ import annotations

from typing import Any

import pytest

from safegen.events import DeltaEvent, FinalEvent
from safegen.grammars.constraint import MaskRows
from safegen.guards import Guards
from safegen.origins import OriginTrack, TokenSpan
from safegen.runtime import CallOptions, Runtime
from safegen.stream import Stream
from safegen.types import JsonSchema, Regex
from tests.support.guards import Email, Ssn, Word
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "mood": {"enum": ["positive", "neutral"]},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
    },
    "required": ["name", "mood", "age"],
    "additionalProperties": False,
}


def deltas(runtime: Runtime, spec: Any, *, asked: bool = True, **sampling: Any) -> list[DeltaEvent]:
    options = CallOptions(token_origins=asked, sampling={"max_tokens": 200, **sampling})
    shown: list[DeltaEvent] = []
    with Stream[Any](runtime, runtime.stream("go", spec, options)) as events:
        for event in events:
            if isinstance(event, DeltaEvent):
                shown.append(event)
            elif isinstance(event, FinalEvent):
                assert "".join(delta.text for delta in shown) == event.result.text
    return shown


def spelled(shown: list[DeltaEvent]) -> list[tuple[str, str | None]]:
    """Texts of tokens with their origins."""
    told: list[tuple[str, str | None]] = []
    for delta in shown:
        assert sum(span.num_chars for span in delta.spans) == len(delta.text)
        place = 0
        for span in delta.spans:
            piece = delta.text[place : place + span.num_chars]
            place += span.num_chars
            if span.is_rest:
                told[-1] = (told[-1][0] + piece, span.origin)
            else:
                told.append((piece, span.origin))
    return told


def forced_bytes(runtime: Runtime, spec: Any, text: str) -> list[bool]:
    """The oracle: which bytes of a text are the only legal ones at their places, asked byte by byte."""
    stop_ids = frozenset({256})
    constraint = runtime.constraint(runtime.compile(spec), stop_ids)
    assert constraint is not None
    found = []
    for byte in text.encode():
        rows = MaskRows.allocate(1, len(runtime.token_bytes))
        constraint.fill((), rows)
        words = rows.words[0].view("uint32")
        legal = {token for token in range(257) if words[token // 32] >> (token % 32) & 1}
        found.append(legal == {byte})
        constraint.advance((byte,))
    return found


@pytest.mark.parametrize("spec", [JsonSchema(PERSON), Regex("(ab|cd)[0-9]{2}-abc-x")], ids=["json", "regex"])
def test_a_token_is_forced_where_each_of_its_bytes_is_the_only_legal_one(spec: Any) -> None:
    runtime = make_runtime()
    kinds = set()
    for seed in range(6):
        shown = deltas(runtime, spec, seed=seed, temperature=1.0)
        text = "".join(delta.text for delta in shown)
        forced, place = forced_bytes(runtime, spec, text), 0
        for piece, origin in spelled(shown):
            size = len(piece.encode())
            assert (origin == "forced") == all(forced[place : place + size]), (piece, text)
            place += size
            kinds.add(origin)
    assert kinds == {"forced", "sampled"}
    runtime.close()


def test_nothing_is_told_that_was_not_asked_for() -> None:
    runtime = make_runtime()
    told = deltas(runtime, JsonSchema(PERSON), seed=3)
    plain = deltas(runtime, JsonSchema(PERSON), seed=3, asked=False)
    assert all(delta.spans == () for delta in plain)
    assert "".join(delta.text for delta in plain) == "".join(delta.text for delta in told)
    runtime.close()


def test_characters_of_several_tokens_and_text_held_back_are_counted_once() -> None:
    runtime = make_runtime(ScriptedBackend("aé€😀b STOP after"))
    told = spelled(deltas(runtime, None, temperature=0.0, stop=("STOP",)))
    assert "".join(text for text, _ in told) == "aé€😀b "
    assert {origin for _, origin in told} == {"sampled"}
    runtime.close()


def test_spans_follow_the_text_that_is_shown_and_no_more() -> None:
    track = OriginTrack([b"abc", b"de", "€".encode()[:1], "€".encode()[1:], None])
    track.feed([0, 1, 2, 3, 4], ["forced", "drafted", "sampled", "sampled", "sampled"])
    assert track.take("a", is_edited=False) == (TokenSpan(1, "forced"),)
    assert track.take("bcd", is_edited=False) == (TokenSpan(2, "forced", True), TokenSpan(1, "drafted"))
    assert track.take("e€", is_edited=False) == (TokenSpan(1, "drafted", True), TokenSpan(1, "sampled"))
    assert track.take("more", is_edited=False) == (TokenSpan(4, None),)
    other = OriginTrack([b"abc"])
    other.feed([0, 0], ["forced", "sampled"])
    assert other.take("abX", is_edited=False) == (TokenSpan(3, None),), "no share of a token that is shown otherwise"
    assert other.take("abc", is_edited=False) == (TokenSpan(3, None),), "nor of those behind it"
    edited = OriginTrack([b"abc"])
    edited.feed([0], ["forced"])
    assert edited.take("abc", is_edited=True) == (TokenSpan(3, None),)


@pytest.mark.parametrize("on_fail", ["redact", "block"])
def test_events_are_the_same_whatever_a_guard_has_hidden(on_fail: Any) -> None:
    seen = []
    for hidden, email in (("123-45-6789", "ann@ex.com"), ("987-65-4321", "bob@my.org")):
        runtime = make_runtime(
            ScriptedBackend(f"it is {hidden} and {email} of hers"),
            guards=Guards([Ssn(on_fail=on_fail), Email(on_fail=on_fail)]),
        )
        seen.append([(delta.text, delta.spans) for delta in deltas(runtime, None, temperature=0.0)])
        runtime.close()
    assert seen[0] == seen[1]
    told = [(text, spans) for text, spans in seen[0] if any(span.origin for span in spans)]
    assert "".join(text for text, _ in told) == "it is ", "nothing is told from the edit on"
    whole = "".join(text for text, _ in seen[0])
    assert whole == ("it is [SSN] and [EMAIL] of hers" if on_fail == "redact" else "it is ")


def test_a_replacement_that_begins_as_what_it_replaces_is_told_of_as_little() -> None:
    guards = Guards([Word("[a", on_fail="redact")])
    runtime = make_runtime(ScriptedBackend("so [a it is"), guards=guards)
    told = spelled(deltas(runtime, None, temperature=0.0))
    whole = "".join(text for text, _ in told)
    assert whole == "so [A] it is"
    assert "".join(text for text, origin in told if origin) == "so "
    runtime.close()


def test_a_placeholder_that_decoding_has_forced_is_forced_and_the_rest_is_told() -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string", "maxLength": 40}, "n": {"enum": [1, 2]}},
        "required": ["to", "n"],
        "additionalProperties": False,
    }
    script = '{"to":"123-45-6789 ok","n":2}'
    runtime = make_runtime(ScriptedBackend(script), guards=Guards([Ssn(on_fail="redact")]))
    told = spelled(deltas(runtime, JsonSchema(schema), temperature=0.0))
    text = "".join(piece for piece, _ in told)
    assert "123" not in text and text.startswith('{"to":"[')
    assert None not in {origin for _, origin in told[: len('{"to":"[')]}
    assert all(origin == "forced" for _, origin in told[:8])
    runtime.close()
