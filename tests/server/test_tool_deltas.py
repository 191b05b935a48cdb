"""Tool calls as deltas: whatever the cuts of the text, the same message; and it is what the text says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safegen.grammars.tool_formats import TOOL_FORMATS, ToolFormat
from safegen.server.choices import fold
from safegen.server.tool_deltas import ToolDeltas

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALL = st.tuples(st.text(min_size=1, max_size=5), st.dictionaries(st.text(max_size=4), JSON, max_size=3))


def written(form: ToolFormat, text: str, calls: list[tuple[str, dict[str, Any]]], spaces: bool) -> str:
    separators = (", ", ": ") if spaces else (",", ":")
    spelled = [
        json.dumps({"name": name, form.arguments_key: arguments}, separators=separators) for name, arguments in calls
    ]
    return text + (form.begin + form.lead + form.between.join(spelled) + form.end if calls else "")


def message(form: ToolFormat, pieces: list[str]) -> dict[str, Any]:
    deltas = ToolDeltas(form, "call_")
    found = [delta for piece in pieces for delta in deltas.feed(piece)]
    return fold([*found, *deltas.finish()])


@given(
    st.sampled_from(sorted(TOOL_FORMATS)), st.text(max_size=12), st.lists(CALL, max_size=3), st.booleans(), st.data()
)
def test_every_cut_gives_the_message_that_the_text_says(
    name: str, text: str, calls: list[tuple[str, dict[str, Any]]], spaces: bool, data: st.DataObject
) -> None:
    form = TOOL_FORMATS[name]
    whole = written(form, text, calls, spaces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    found = message(form, pieces)
    assert found == message(form, [whole]) == message(form, list(whole))
    assert (found["content"] or "") == text
    told = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found.get("tool_calls", [])
    ]
    assert told == calls
    assert len({call["id"] for call in found.get("tool_calls", [])}) == len(calls)


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_call_that_is_cut_shows_what_came_of_its_arguments(name: str) -> None:
    form = TOOL_FORMATS[name]
    whole = written(form, "so ", [("f", {"a": 'x"}', "b": [1]})], False)
    begun, closed = whole.index('{"a"'), whole.index('"b":[1]}') + len('"b":[1]}')
    for end in range(len(whole)):
        found = message(form, list(whole[:end]))
        if end <= begun:
            assert "tool_calls" not in found or found["tool_calls"][0]["function"]["arguments"] == ""
        else:
            shown = found["tool_calls"][0]["function"]["arguments"]
            assert '{"a":"x\\"}","b":[1]}'.startswith(shown)
            assert len(shown) >= min(end, closed) - begun - 1  # a backslash waits for its character


def test_text_that_only_begins_like_the_marker_is_text() -> None:
    form = TOOL_FORMATS["hermes"]
    assert message(form, ["a <tool", "box> and <tool_c"])["content"] == "a <toolbox> and <tool_c"
