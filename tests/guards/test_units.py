"""The units of an answer: decoded texts at their places, the same for every cut, and none left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from safegen.grammars.tool_formats import TOOL_FORMATS
from safegen.guards.stream import AnswerShape
from safegen.guards.units import Char, Opened


def units(shape: AnswerShape, *pieces: str) -> tuple[list[tuple[str, str, str]], str]:
    """(path, kind, decoded text) of each unit, and all raw text joined."""
    reader = shape.reader()
    found: list[tuple[str, str, str]] = []
    raw = ""
    for piece in [p for text in pieces for p in reader.feed(text)] + list(reader.finish()):
        if isinstance(piece, Opened):
            found.append((str(piece.place), piece.kind, ""))
        elif isinstance(piece, Char):
            raw += piece.raw
            if piece.decoded:
                found[-1] = (*found[-1][:2], found[-1][2] + piece.decoded)
    return found, raw


_JSON = AnswerShape("json")
_DOCUMENT = {
    "a": 'x"y\n\u00e9\U0001f600',
    "b": [1, -2.5e3, "t", {"c": []}, [["u"]]],
    "d e": {"f": True, "g": None},
    "h": "",
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_units_are_its_decoded_strings_at_their_places(ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(_DOCUMENT, ensure_ascii=ascii_only, indent=indent)
    found, raw = units(_JSON, text)
    assert raw == text
    values = [(path, decoded) for path, kind, decoded in found if kind != "key"]
    assert values == [
        ("$.a", "x\"y\n\u00e9\U0001f600"), ("$.b[0]", "1"), ("$.b[1]", "-2500.0"), ("$.b[2]", "t"),
        ("$.b[4][0][0]", "u"), ("$['d e'].f", "true"), ("$['d e'].g", "null"), ("$.h", ""),
    ]  # fmt: skip
    assert [decoded for _, kind, decoded in found if kind == "key"] == ["a", "b", "c", "d e", "f", "g", "h"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(_DOCUMENT),
        r'{"a":"\ud83d\ude00\ud83dx\ude00\ud83d\n\ud83d\ud83d\ude00"}',
        r'["A\/\\\"", 1 ,2]',
        '"open and no',
        r'{"a":"cut\u00',
        "no json {at} all",
        '{"a" 1 "b"}',
        "]]}}{",
        "",
    ],
)
def test_units_do_not_depend_on_how_the_text_is_cut(text: str) -> None:
    whole, raw = units(_JSON, text)
    assert raw == text
    assert units(_JSON, *text) == (whole, raw)
    for cut in range(len(text)):
        assert units(_JSON, text[:cut], text[cut:]) == (whole, raw)


def test_escapes_are_decoded() -> None:
    text = r'"\u0063onfidential \ud83d\ude00 \ud83d."'
    assert units(_JSON, text)[0] == [("$", "string", json.loads(text))]


def test_text_that_is_no_json_stays_in_sight() -> None:
    found, _ = units(_JSON, "mail a@b.co now")
    assert "".join(decoded for _, _, decoded in found) == "maila@b.conow"


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_tool_calls_are_read_argument_by_argument(name: str) -> None:
    form = TOOL_FORMATS[name]

    def call(arguments: Any) -> str:
        return json.dumps({"name": "f", form.arguments_key: arguments})

    text = f"first {form.begin}{form.lead}{call({'x': 'y'})}{form.between}{call(['z'])}{form.end}"
    found, raw = units(AnswerShape("tools", form=form), *text)
    assert raw == text
    values = [(path, decoded) for path, kind, decoded in found if kind != "key"]
    assert values == [
        ("$.text", "first "), ("$.calls[0].name", "f"), ("$.calls[0].arguments.x", "y"), ("$.calls[1].name", "f"),
        ("$.calls[1].arguments[0]", "z"),
    ]  # fmt: skip
    assert units(AnswerShape("tools", form=form), text) == (found, raw)


@pytest.mark.parametrize("start", ["<think>", ""])
def test_reasoning_is_a_unit_of_its_own(start: str) -> None:
    shape = AnswerShape("json", ("<think>", "</think>"))
    text = f'{start}is < it</think>{{"a":"b"}}'
    found, raw = units(shape, *text)
    assert raw == text
    assert found == [("$thinking", "text", "is < it"), ("$.*~", "key", "a"), ("$.a", "string", "b")]
    assert units(shape, text) == (found, raw)


@pytest.mark.parametrize("text", ["<th", "<think>cut </th", "x", ""])
def test_cut_reasoning_is_seen_to_its_end(text: str) -> None:
    found, raw = units(AnswerShape("text", ("<think>", "</think>")), *text)
    assert raw == text
    assert "".join(decoded for _, _, decoded in found) == text.removeprefix("<think>")
