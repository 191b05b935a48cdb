"""Audit records: complete, in order, replayable, and without a character of the text."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from safegen.guards.audit import AuditRecord, Digests, differences
from safegen.guards.guards import Guards
from safegen.guards.scopes import Place
from safegen.tools import Tools
from safegen.types import JsonSchema
from tests.support.guards import Email, Raising, Ssn, Word
from tests.support.sdk_fakes import ScriptedBackend, make_llm

_KEY = b"0123456789abcdef"
_ANSWER = '{"mail":"a.b@c.com","zz9@y.com":"123-45-6789 and 4111111111111111"}'
_TEXTS = ("a.b@c.com", "zz9@y.com", "123-45-6789", "4111111111111111", "x@y.zz")


def _guards(**settings: Any) -> Guards:
    guards = [
        Email(on_fail="redact"),
        Ssn(on_fail="redact"),
        Word("mail", on_fail="log"),
        Word("none"),
        Raising(on_fail="log"),
    ]
    return Guards(guards, **({"audit_key": _KEY} | settings))


def _records(guards: Guards, stream: bool = False, answer: str = _ANSWER) -> tuple[AuditRecord, ...]:
    with make_llm(ScriptedBackend(answer), guards=guards) as llm:
        prompt = "mail x@y.zz please"
        if not stream:
            return llm.generate(prompt, dict[str, str]).audit
        with llm.stream(prompt, dict[str, str]) as events:
            return events.result().audit


def test_every_guard_and_every_decision_has_a_record() -> None:
    records = _records(_guards())
    told = [(r.guard, r.stage, r.action, r.rule) for r in records]
    assert ("email", "input", "redact", "email") in told
    assert ("ssn", "decoding", "redact", "ssn") in told
    assert ("word", "output", "log", "mail") in told
    assert ("raising", "output", "error", "RuntimeError") in told
    assert ("word_2", "input", "allow", None) in told
    assert ("word_2", "output", "allow", None) in told
    assert [r.number for r in records] == list(range(len(records)))
    assert all(r.milliseconds >= 0 and r.config and r.version for r in records)
    assert {(r.guard, r.stage) for r in records} >= {
        (name, stage) for name in _guards().names for stage in ("input", "output")
    }


def test_no_record_holds_text() -> None:
    for stream in (False, True):
        written = json.dumps([r.to_dict() for r in _records(_guards(), stream)])
        assert not [text for text in _TEXTS if text in written or text[2:] in written]


def test_records_are_the_same_for_a_stream_and_on_every_run() -> None:
    first, again, streamed = _records(_guards()), _records(_guards()), _records(_guards(), stream=True)
    assert differences(first, again) == []
    assert differences(first, streamed) == []


def test_a_replay_tells_what_differs() -> None:
    first = _records(_guards())
    other = _records(_guards(), answer=_ANSWER.replace("6789", "6780"))
    found = differences(first, other)
    assert found
    assert all(old is not None and old.rule == "ssn" for old, _ in found)
    assert len(differences(first, first[:-1])) == 1


def test_digests_need_the_key() -> None:
    first = [r.digest for r in _records(_guards())]
    assert first == [r.digest for r in _records(_guards())]
    assert first != [r.digest for r in _records(_guards(audit_key=b"another key, 16+"))]
    without = Digests().of("text")
    assert without == Digests(None).of("text") != Digests(_KEY).of("text")
    assert "0123" not in repr(Digests(_KEY))


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        (Place(("a", 3, "b_c")), True),
        (Place(("a.b@c.com",)), False),
        (Place(("acct12345",)), False),
        (Place(("x" * 41,)), False),
    ],
)
def test_names_that_may_be_text_are_digests_in_paths(place: Place, kept: bool) -> None:
    assert (Digests(_KEY).path(place, [*place.steps]) == str(place)) is kept


def test_a_name_that_the_model_made_is_in_no_path() -> None:
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string"}},
        "required": ["note"],
        "additionalProperties": {"type": "string"},
    }
    answer = '{"note":"secret","maria_lopez":"secret"}'
    with make_llm(ScriptedBackend(answer)) as llm:
        result = llm.generate("go", JsonSchema(schema), guards=Word(on_fail="log", stages=["output"]), max_tokens=99)
        tools = Tools([{"name": "f", "parameters": schema}], format="llama", max_calls=1)
        llm_paths = [record.path for record in result.audit if record.rule]
    with make_llm(ScriptedBackend(f'<|python_tag|>{{"name":"f","parameters":{answer}}}')) as llm:
        result = llm.generate("go", tools, guards=Word(on_fail="log", stages=["output"]), max_tokens=99)
    paths = [record.path for record in result.audit if record.rule]
    assert (llm_paths[0], paths[0]) == ("$.note", "$.calls[0].arguments.note")
    assert len(llm_paths) == len(paths) == 2
    assert "maria" not in f"{llm_paths} {paths}"


def test_the_sink_has_a_line_a_record_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    guards = _guards(audit=path)
    records = [*_records(guards), *_records(guards)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [r.to_dict() for r in records]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert guards.to_dict()["audit"] == str(path)


def test_a_sink_that_fails_makes_the_result_an_error() -> None:
    def broken(records: object) -> None:
        raise OSError("disk full")

    with make_llm(ScriptedBackend("x"), guards=Guards([Ssn()], audit=broken)) as llm:
        result = llm.generate("go")
    assert (result.status, result.value, result.text) == ("error", None, "")


def test_a_sink_sees_the_input_once_and_every_sample() -> None:
    seen: list[AuditRecord] = []
    with make_llm(ScriptedBackend("secret"), guards=Guards([Word(on_fail="log")], audit=seen.extend)) as llm:
        result = llm.generate("go secret", n=2, temperature=1.0, seed=1)
    assert [r.stage for r in seen].count("input") == 1
    assert [r.sample for r in seen if r.stage == "output"] == [0, 1]
    assert all(sample.audit for sample in [result, *result.alternatives])
