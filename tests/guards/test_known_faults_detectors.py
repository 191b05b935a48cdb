"""Faults of other guard systems' detectors, each seen by running their code, that these must not have. (Those of
frameworks and streams are in test_known_faults.py; the numbers are the same.)"""

from __future__ import annotations

import pytest

from safegen.guards.base import Guard, GuardView
from safegen.guards.guards import Guards
from safegen.guards.invisible import InvisibleText
from safegen.guards.pii import PII
from safegen.guards.secrets import Secrets
from safegen.guards.stream import AnswerShape
from tests.guards.samples import provider_keys
from tests.support.guards import shown

_TEXT, _JSON = AnswerShape("text"), AnswerShape("json")


def redacted(text: str, *guards: Guard, shape: AnswerShape = _TEXT, size: int | None = None) -> str:
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    return "".join(shown(shape, guards, pieces)[0])


def test_1_all_kinds_of_a_text_are_redacted_not_only_the_first() -> None:
    text = "ssn 123-45-6789 and mail a.b@c.com, again 987-65-4321"
    assert redacted(text, PII(on_fail="redact")) == "ssn [SSN] and mail [EMAIL], again [SSN]"


def test_2_nothing_beside_a_match_is_replaced() -> None:
    text = "call 415-555-2671, not 415-555-26715 or a415-555-2671"
    assert redacted(text, PII(on_fail="redact")) == "call [PHONE], not 415-555-26715 or a415-555-2671"


@pytest.mark.parametrize(
    "text",
    [
        "jane@exаmple.com",
        "ja\u200bne@example.com",
        "ｊａｎｅ@ｅｘａｍｐｌｅ.com",
        "jane@exam\u00adple.com",
        "jane＠example․com",
    ],
)
def test_3_look_alikes_and_invisible_characters_hide_nothing(text: str) -> None:
    assert redacted(f"to {text}!", PII(on_fail="redact")) == "to [EMAIL]!"


def test_4_and_10_emoji_flags_and_persian_survive_and_smuggling_does_not() -> None:
    england = "\U0001f3f4" + "".join(chr(0xE0000 + ord(c)) for c in "gbeng") + "\U000e007f"
    kept = f"👨‍👩‍👧 می‌خواهم {england} ❤️"
    assert redacted(kept, InvisibleText(on_fail="redact")) == kept
    hidden = "".join(chr(0xE0100 + octet) for octet in b"payload") + "\u2062\u2064"
    assert redacted(f"a{hidden}b", InvisibleText(on_fail="redact")) == "ab"


def test_5_two_guards_of_one_class_both_speak() -> None:
    guards = Guards([PII(types=["EMAIL"], on_fail="redact"), PII(types=["SSN"], on_fail="redact")])
    assert guards.names == ("pii", "pii_2")
    both = redacted("a@b.com 123-45-6789", *(entry.guard for entry in guards.entries))
    assert both == "[EMAIL] [SSN]"


def test_6_every_copy_of_a_key_is_redacted() -> None:
    key = provider_keys(9)["stripe"]
    assert key not in redacted(f"{key} then {key}\n{key}", Secrets(on_fail="redact"))


@pytest.mark.parametrize("size", [1, 3, 50, None])
def test_7_overlapping_findings_leave_no_rest_of_either(size: int | None) -> None:
    text = "see https://root:hunter2@db.example.com/x and a@b.co@c.org, 4111 1111 1111 1111@x.com"
    shown_text = redacted(text, PII(on_fail="redact"), Secrets(on_fail="redact"), size=size)
    for rest in ("root", "hunter2", "a@b", "b.co", "c.org", "4111", "1111"):
        assert rest not in shown_text, shown_text


@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_8_9_and_11_no_chunk_shows_a_part_of_a_number(size: int) -> None:
    guard = PII(on_fail="redact")
    text = "My ssn is 123-45-6789, card 4111 1111 1111 1111, +1 (329) 988-4927, write to jane.doe@example.com today."
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    shown_pieces, _ = shown(_TEXT, [guard], pieces)
    for at in range(len(shown_pieces)):
        so_far = "".join(shown_pieces[: at + 1])
        assert not any(part in so_far for part in ("123", "4111", "329", "jane", "+1"))
    assert "".join(shown_pieces) == "My ssn is [SSN], card [CREDIT_CARD], [PHONE], write to [EMAIL] today."


def test_12_an_escape_in_json_hides_nothing() -> None:
    text = '{"a": "j\\u0061ne@example.com", "b": "ok"}'
    assert redacted(text, PII(on_fail="redact"), shape=_JSON) == '{"a": "[EMAIL]", "b": "ok"}'


def test_no_match_and_no_guard_writes_what_it_found() -> None:
    key = provider_keys(2)["github"]
    for guard in (PII(), Secrets()):
        view = GuardView(f"mail jane@example.com key {key}")
        written = f"{guard.find(view)!r} {guard!r} {guard.check(view)!r} {view!r}"
        assert "jane" not in written and key not in written
