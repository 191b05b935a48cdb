"""What a stream shows is the offline redaction for every cut, never more than that, and not held back for longer."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import pytest

from safegen.guards.base import Guard
from safegen.guards.stream import AnswerShape
from tests.support.guards import EarlyWord, Email, Ssn, Word, shown

_TEXT = AnswerShape("text")
_JSON = AnswerShape("json")
_TEXTS = [
    "my ssn is 123-45-6789, mail a.b@c.com or secret@secret.com.",
    "123-45-67890 0123-45-6789 123-45-6789",
    "a@b.coma@b.co secretsecret secresecret x@y.zzz",
    "secret@b.co123-45-6789",
    "",
]
_SETS: list[Sequence[Guard]] = [
    [Ssn(on_fail="redact")],
    [Ssn(on_fail="redact"), Email(on_fail="redact"), Word(on_fail="redact")],
    [Email(on_fail="redact"), Word("secret", on_fail="block")],
    [Word("sec", on_fail="redact"), Word("cret@", on_fail="redact"), Ssn(on_fail="log")],
]


def _offline(shape: AnswerShape, guards: Sequence[Guard], text: str) -> str:
    return "".join(shown(shape, guards, [text])[0])


@pytest.mark.parametrize("guards", _SETS)
@pytest.mark.parametrize("text", _TEXTS)
def test_every_cut_shows_the_offline_text(text: str, guards: Sequence[Guard]) -> None:
    expected = _offline(_TEXT, guards, text)
    for cut in range(len(text) + 1):
        assert "".join(shown(_TEXT, guards, [text[:cut], text[cut:]])[0]) == expected
    assert "".join(shown(_TEXT, guards, list(text))[0]) == expected


def test_random_texts_and_cuts_show_the_offline_text() -> None:
    draw = random.Random(5)
    for _ in range(300):
        text = "".join(draw.choices(["secret", "a@b.co", "123-45-6789", "1", "-", "s", "@", ".", " ", "sec"], k=8))
        guards = draw.choice(_SETS)
        shape = draw.choice([_TEXT, _JSON])
        raw = text if shape is _TEXT else json.dumps({"k": text, "l": [text[::-1]]}, ensure_ascii=draw.random() < 0.5)
        cuts = sorted(draw.choices(range(len(raw) + 1), k=4))
        pieces = [raw[a:b] for a, b in itertools.pairwise([0, *cuts, len(raw)])]
        assert "".join(shown(shape, guards, pieces)[0]) == _offline(shape, guards, raw)


def test_offline_redaction_replaces_all_that_overlapping_matches_cover() -> None:
    assert _offline(_TEXT, _SETS[3], "x secret@ y") == "x [SEC] y"
    assert _offline(_TEXT, _SETS[1], "my ssn is 123-45-6789, mail a.b@c.com.") == "my ssn is [SSN], mail [EMAIL]."


def test_a_mutant_that_is_one_character_early_is_caught() -> None:
    text, guards = "the secret is out", [EarlyWord(on_fail="redact")]
    assert any(
        "".join(shown(_TEXT, guards, [text[:cut], text[cut:]])[0]) != _offline(_TEXT, guards, text)
        for cut in range(len(text) + 1)
    )


@pytest.mark.parametrize("guards", _SETS[:2])
def test_no_more_is_held_back_than_the_bound(guards: Sequence[Guard]) -> None:
    bound = max(guard.hold_bound or 0 for guard in guards)
    text = "plain words " * 5 + _TEXTS[0]
    pieces, _ = shown(_TEXT, guards, list(text))
    for end in range(len(text)):
        begun = "".join(pieces[: end + 1])
        replaced = len(_offline(_TEXT, guards, text[: end + 1])) - (end + 1)
        assert end + 1 - len(begun) <= bound + max(0, -replaced)


def test_text_without_a_beginning_of_a_match_flows_at_once() -> None:
    pieces, _ = shown(_TEXT, [Word("secret", on_fail="block")], ["plain ", "text ", "here"])
    assert pieces[0] == "p"  # the last five may still begin a match
    assert "".join(pieces) == "plain text here"


@pytest.mark.parametrize("text", ["the secret is out", "secret", "x secret"])
def test_a_killed_stream_has_shown_nothing_from_the_match_on(text: str) -> None:
    for cut in range(len(text) + 1):
        pieces, stream = shown(_TEXT, [Word(on_fail="block")], [text[:cut], text[cut:]])
        assert stream.stopped is not None
        assert text[: text.index("secret")].startswith("".join(pieces))


def test_a_guard_without_a_bound_withholds_to_the_end() -> None:
    pieces, _ = shown(_TEXT, [Word("zzz", unbounded=True)], ["all ", "of ", "it"])
    assert pieces == ["", "", "", "all of it"]
    pieces, _ = shown(_JSON, [Word("zzz", unbounded=True)], ['{"a":"x', 'y","b":"z"}'])
    assert pieces[0] == '{"a":"'


def test_a_guard_that_only_logs_holds_nothing_back() -> None:
    pieces, stream = shown(_TEXT, [Word("of", unbounded=True, on_fail="log")], ["all ", "of ", "it"])
    assert pieces == ["all ", "of ", "it", ""]
    assert [(each.outcome, each.start) for each in stream.decisions] == [("log", 4)]


def test_json_is_redacted_by_decoded_value_and_stays_json() -> None:
    text = r'{"a":"\u0073ecret and \"a@b.co\"","n":1}'
    redacted = _offline(_JSON, _SETS[1], text)
    assert json.loads(redacted) == {"a": '[SECRET] and "[EMAIL]"', "n": 1}


def test_raw_text_is_held_back_while_its_decoded_value_is_claimed() -> None:
    raw = r'{"a":"\u0073\u0065\u0063ret"}'
    pieces, _ = shown(_JSON, [Word(on_fail="block")], list(raw))
    assert "".join(pieces) == '{"a":"'


def test_scopes_decide_field_by_field() -> None:
    guard = Word(on_fail="redact", where="$.public")
    text = '{"public":"secret","private":"secret"}'
    assert _offline(_JSON, [guard], text) == '{"public":"[SECRET]","private":"secret"}'
    guard = Word(on_fail="redact", where=["$..*", "!$.public"])
    assert _offline(_JSON, [guard], text) == '{"public":"secret","private":"[SECRET]"}'


def test_property_names_are_texts_too() -> None:
    _, stream = shown(_JSON, [Word(on_fail="block")], list('{"secret":1}'))
    assert stream.stopped is not None
    assert str(stream.stopped.place) == "$.secret~"
    assert _offline(_JSON, [Word(on_fail="block", where="$.a")], '{"secret":1}') == '{"secret":1}'


def test_a_number_that_would_have_to_be_replaced_stops_the_answer() -> None:
    pieces, stream = shown(_JSON, [Word("4111", on_fail="redact")], list('{"n":41111}'))
    assert stream.stopped is not None
    assert "".join(pieces) == '{"n":'
