"""Audit output over the corpora: everything that all guards write about every row, searched for what the rows hold.

Each row is a prompt, a streamed text, and an answer in JSON both as a value and as a property's name. What is searched
for: every annotated value of the corpora, every generated key of a provider, and whatever our own detectors find in the
lines. A part of the rows in the normal run, all of them with SAFEGEN_FULL=1.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.guards.base import Guard, GuardView, OnFail
from safegen.guards.canary import Canary
from safegen.guards.charset import Charset
from safegen.guards.custom import Custom
from safegen.guards.guards import Guards
from safegen.guards.injection import PromptInjection
from safegen.guards.invisible import InvisibleText
from safegen.guards.language import Language
from safegen.guards.length import MaxLength
from safegen.guards.pii import PII
from safegen.guards.prompt_leak import SystemPromptLeak
from safegen.guards.secrets import Secrets
from safegen.guards.session import GuardSession
from safegen.guards.stream import AnswerShape
from safegen.guards.vault import Anonymize, Deanonymize
from safegen.result import failed
from tests.guards.samples import provider_keys
from tests.support.suites import corpus_rows

_FULL = bool(os.environ.get("SAFEGEN_FULL"))
_KEY = b"0123456789abcdef"
_CORPORA = ("pii-dev", "pii-adversarial-dev", "injection-dev", "lexicon-phrases")
_MODES: tuple[OnFail, ...] = ("redact", "log", "block")
_SHORTEST, _SHORTEST_DIGITS = 5, 9  # characters of a value that cannot stand in a digest or a time by chance


def _raises(view: GuardView) -> bool:
    raise ValueError(view.text)


def _guards(on_fail: OnFail, audit: Path | Callable[..., None]) -> Guards:
    acting: OnFail = "block" if on_fail == "redact" else on_fail
    guards: list[Guard] = [
        PII(on_fail=on_fail),
        Secrets(on_fail=on_fail),
        InvisibleText(on_fail=on_fail),
        Canary(token="cn5f3e9b2a7d104c68", on_fail=on_fail),
        SystemPromptLeak(on_fail=on_fail, segments=["The quick brown fox jumps over the lazy dog and runs on and on."]),
        PromptInjection(on_fail="log"),
        Language(on_fail="log"),
        Charset(on_fail=on_fail),
        MaxLength(characters=2_000, words=400, on_fail=acting),
        Custom(_raises, name="raises", on_fail="log"),
    ]
    if on_fail == "log":
        guards = [Anonymize([PII(), Secrets()]), *guards, Deanonymize()]
    return Guards(guards, audit=audit, audit_key=_KEY)


def _go_through(guards: Guards, number: int, text: str) -> None:
    """The row as a prompt, and as answers of three kinds."""
    session = GuardSession(guards, f"request-{number}")
    session.check_input([{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}])
    answers = [(AnswerShape("text"), text, 5), (AnswerShape("json"), json.dumps({text[:80]: [text]}), 7)]
    for sample, (shape, answer, length) in enumerate(answers):
        guard = session.output(shape, sample)
        for at in range(0, len(answer), length):
            guard.feed(answer[at : at + length])
        guard.finish()
    for sample in range(len(answers)):
        assert session.records(sample)
    assert guards.sink is not None
    guards.sink(tuple(record for sample in range(len(answers)) for record in session.records(sample)))
    session.conclude(failed("error", ValueError(text)))


def _rows() -> Iterator[dict[str, Any]]:
    for stem in _CORPORA:
        rows = list(corpus_rows(stem))
        yield from rows if _FULL else random.Random(stem).sample(rows, 12)


def _texts() -> list[str]:
    keys = [f"key = '{key}' # {name}" for seed in (1, 2) for name, key in provider_keys(seed).items()]
    return [*(row.get("text") or row.get("phrase") or "" for row in _rows()), *(keys if _FULL else keys[::7])]


def _values() -> set[str]:
    """What must not be found: annotated values of the rows, and keys."""
    found = {key for seed in (1, 2) for key in provider_keys(seed).values()}
    for row in itertools.chain(corpus_rows("pii-dev"), corpus_rows("pii-adversarial-dev")):
        found |= {row["text"][span["start"] : span["end"]] for span in row["spans"]}
    return {value for value in found if len(value) >= (_SHORTEST_DIGITS if value.isdigit() else _SHORTEST)}


@pytest.mark.parametrize("on_fail", _MODES)
def test_no_audit_output_holds_a_value_of_the_corpora(on_fail: OnFail, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    guards = _guards(on_fail, path)
    texts = _texts()
    for number, text in enumerate(texts):
        _go_through(guards, number, text)
    written = path.read_text()
    records = [json.loads(line) for line in written.splitlines()]
    assert len(records) > 10 * len(texts)
    assert sum(record["digest"] is not None for record in records) > len(texts) / 2
    assert "error" in {record["action"] for record in records}  # a guard that raises with the text in its message
    assert _standing_in(written, _values()) == []
    assert _detected(records) == []


def _standing_in(written: str, values: set[str]) -> list[str]:
    """The values that are in a text, as they are or as JSON spells them. Their first characters are looked up among all
    of the text's: it is long, and they are many."""
    begins = {written[at : at + _SHORTEST] for at in range(len(written))}
    spelled = ((value, each) for value in values for each in {value, json.dumps(value)[1:-1]})
    return [value for value, each in spelled if each[:_SHORTEST] in begins and each in written]


def _detected(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(rule, text) of what our detectors find in what is written of any record; distinct texts only, as most repeat."""
    texts = {str(value) for record in records for name, value in record.items() if name != "milliseconds"}
    texts |= {json.dumps({k: v for k, v in record.items() if k != "milliseconds"}) for record in records[::50]}
    detectors: tuple[Guard, ...] = (PII(), Secrets())
    return [(m.rule, text) for text in texts for guard in detectors for m in guard.find(GuardView(text))]


def test_a_record_with_text_in_it_would_be_found() -> None:
    """The scan itself: it finds a value in a path, and one that JSON spells in its own way."""
    record = {"guard": "pii", "path": "$.mail['jane.doe@example.org']", "milliseconds": 1.0}
    assert [rule for rule, _ in _detected([record])] == ["EMAIL", "EMAIL"]
    assert _standing_in(json.dumps(record), {"jane.doe", "jane.doe@example.com"}) == ["jane.doe"]
    assert _standing_in(json.dumps({"path": "Zoë Müller"}), {"Zoë Müller", "Zoë Mülle!"}) == ["Zoë Müller"]
