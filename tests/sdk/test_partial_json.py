from __future__ import annotations

import json
import random
from typing import Any

import pytest

from safegen.partial_json import PartialJson

DOCUMENTS = [
    '{"name":"Ada \\"L\\" \\u00e9","age":36,"tags":["x",[1,-2.5e3],{}],"ok":true,"none":null}',
    "[]",
    "{}",
    '[[[["deep"]]],{"a":{"b":{"c":[1,2,{"d":null}]}}}]',
    '"just a string"',
    ' { "spaced" : [ 1 , 2 ] } ',
]


def contained(part: Any, whole: Any) -> bool:
    """Every closed node of `part` stands in `whole`, at the same place."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contained(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(contained, part, whole))
    return bool(part == whole and type(part) is type(whole))


@pytest.mark.parametrize("text", DOCUMENTS)
@pytest.mark.parametrize("seed", range(10))
def test_snapshots_only_ever_grow_towards_the_value(text: str, seed: int) -> None:
    rng = random.Random(seed)
    whole = json.loads(text)
    reader = PartialJson()
    before: Any = None
    rest = text
    while rest:
        size = rng.randint(1, 5)
        grew = reader.feed(rest[:size])
        rest = rest[size:]
        now = reader.snapshot()
        assert grew == (now != before)
        assert now is None or contained(now, whole)
        assert before is None or contained(before, now)
        before = now
    assert reader.snapshot() == whole
    assert not reader.broken


def test_open_string_is_not_shown() -> None:
    reader = PartialJson()
    reader.feed('{"name":"Ad')
    assert reader.snapshot() == {}
    reader.feed('a"')
    assert reader.snapshot() == {"name": "Ada"}


def test_number_is_shown_only_when_something_follows() -> None:
    reader = PartialJson()
    reader.feed("[12")
    assert reader.snapshot() == []
    reader.feed("3,")
    assert reader.snapshot() == [123]


def test_earlier_snapshot_is_not_changed_by_later_text() -> None:
    reader = PartialJson()
    reader.feed('{"a":[1,')
    early = reader.snapshot()
    reader.feed('2],"b":3}')
    assert early == {"a": [1]}
    assert reader.snapshot() == {"a": [1, 2], "b": 3}


@pytest.mark.parametrize("text", ["nope,", "}", "{1:2}", '{"a":1}{', "[tru]", '["\\x"]'])
def test_text_that_is_not_json_breaks_the_reader_without_raising(text: str) -> None:
    reader = PartialJson()
    reader.feed(text)
    assert reader.broken
    assert reader.feed('{"a":1}') is False
