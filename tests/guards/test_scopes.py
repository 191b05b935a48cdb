"""JSONPath scopes: what they cover is decided from the path alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.guards.scopes import THINKING, Place, parse_scope, parse_scopes

_NOTE = Place(("notes",))
_ITEM = Place(("items", 3, "notes"))


@pytest.mark.parametrize(
    ("where", "place", "covered"),
    [
        (None, _NOTE, True),
        (None, Place(("notes",), True), True),
        (None, Place(root=THINKING), True),
        (("$",), Place(), True),
        (("$",), _ITEM, True),
        (("$.notes",), _NOTE, True),
        (("$.notes",), Place(("notes", "deep", 0)), True),
        (("$.notes",), Place(("note",)), False),
        (("$.notes",), Place(), False),
        (("$.notes",), Place(("notes",), True), False),
        (("$.notes",), Place(("notes", "key"), True), True),
        (("$.notes",), Place(root=THINKING), False),
        (("$.notes~",), Place(("notes",), True), True),
        (("$.notes~",), _NOTE, False),
        (("$..notes",), _ITEM, True),
        (("$.items[*].notes",), _ITEM, True),
        (("$.items[3]",), _ITEM, True),
        (("$.items[2]",), _ITEM, False),
        (("$['items'][3]",), _ITEM, True),
        (('$["a.b\\"c"]',), Place(('a.b"c',)), True),
        (("$.*",), _NOTE, True),
        (("$.*",), Place(), False),
        (("$..*",), _ITEM, True),
        (("$.items", "$.notes"), _NOTE, True),
        (("!$.notes",), _NOTE, False),
        (("!$.notes",), _ITEM, True),
        (("$.items", "!$..notes"), _ITEM, False),
    ],
)
def test_a_scope_covers_a_value_and_what_lies_below_it(
    where: tuple[str, ...] | None, place: Place, covered: bool
) -> None:
    assert parse_scopes(where).covers(place) is covered


@pytest.mark.parametrize(
    "path", ["notes", "", "$.", "$.a[", "$.a[?(@.b)]", "$.a[1:2]", "$.a['b','c']", "$~", "$a", "$.a..", "$. a"]
)
def test_a_path_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match="where=") as caught:
        parse_scopes([path])
    assert caught.value.value == path


def test_a_place_is_written_as_a_path() -> None:
    assert str(Place(("a", 0, "b-c"))) == "$.a[0].b-c"
    assert str(Place(("a b'c",), True)) == "$['a b\\'c']~"
    assert str(Place(root=THINKING)) == "$thinking"


def test_many_deep_steps_on_a_deep_place_are_decided_at_once() -> None:
    place = Place(("a",) * 200)
    assert parse_scope("$" + "..a" * 100).covers(place)
    assert not parse_scope("$" + "..a" * 100 + ".b").covers(place)
    assert not parse_scope("$" + "..a" * 201).covers(place)


@pytest.mark.parametrize("path", ["$..a.b", "$..a..b", "$.a..b", "$..*.b", "$..a[0]", "$.a.b", "$..b.b"])
def test_a_scope_covers_what_a_walk_over_all_ways_finds(path: str) -> None:
    scope = parse_scope(path)
    for length in range(5):
        for steps in itertools.product(("a", "b", 0), repeat=length):
            assert scope.covers(Place(steps)) == _walks(scope.selectors, steps), steps


def _walks(selectors: Any, steps: tuple[str | int, ...]) -> bool:
    if not selectors:
        return True
    starts = range(len(steps)) if selectors[0].deep else range(min(1, len(steps)))
    return any(selectors[0].name in (None, steps[at]) and _walks(selectors[1:], steps[at + 1 :]) for at in starts)
