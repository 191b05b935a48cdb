"""What every guard shares: settings, verdicts, the bound of a stream, and the way to data and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.guards import Allow, Block, Guard, GuardView, Match, Replace, Retry, register
from safegen.guards.registry import REGISTRY, guard_from_dict


@register
class DigitRuns(Guard):
    """Runs of exactly `length` digits."""

    inline = True
    look_ahead = 1
    look_behind = 1

    def __init__(self, *, length: int = 4, **common: Any) -> None:
        super().__init__(**common)
        self.length = length
        self.max_match = length

    def find(self, view: GuardView) -> Sequence[Match]:
        pattern = rf"(?<!\d)\d{{{self.length}}}(?!\d)"
        return [Match(found.start(), found.end(), "digits") for found in re.finditer(pattern, view.text)]


def _check(on_fail: Any) -> Any:
    return DigitRuns(on_fail=on_fail).check(GuardView("pin 1234, not 12345"))


def test_the_verdict_follows_from_matches_and_on_fail() -> None:
    found = Match(4, 8, "digits")
    assert _check("block") == Block((found,))
    assert _check("log") == Allow((found,))
    assert _check("redact") == Replace(_check("redact").edits)
    assert [(edit.start, edit.end, edit.text) for edit in _check("redact").edits] == [(4, 8, "[DIGITS]")]
    retry = _check("retry")
    assert isinstance(retry, Retry)
    assert "digits" in retry.hint
    assert "1234" not in retry.hint
    assert DigitRuns().check(GuardView("none")) == Allow()


def test_a_view_does_not_print_its_text() -> None:
    assert "secret" not in repr(GuardView("secret", protected=("secret",)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("on_fail", "explode"), ("name", ""), ("stages", ()), ("stages", ("later",)), ("timeout_s", 0),
        ("timeout_s", True), ("where", ()), ("where", (3,)), ("size", 3),
    ],
)  # fmt: skip
def test_a_wrong_setting_names_its_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(RequestError, match=re.escape(repr(value))) as caught:
        guard_from_dict({"type": "DigitRuns", key: value})
    assert caught.value.field == key


@pytest.mark.parametrize("given", [{"type": "NoSuchGuard"}, {"type": "Match"}, {"type": 3}, {}, "DigitRuns", None])
def test_what_is_no_guard_is_refused(given: Any) -> None:
    with pytest.raises(RequestError):
        guard_from_dict(given)


def test_a_built_in_name_cannot_be_taken_over() -> None:
    with pytest.raises(RequestError, match="Match"):
        register(type("Match", (DigitRuns,), {}))
    assert "DigitRuns" in REGISTRY.names()


def test_a_guard_becomes_data_and_comes_back() -> None:
    assert DigitRuns().to_dict() == {"type": "DigitRuns"}
    guard = DigitRuns(length=6, name="pins", on_fail="redact", where=["$.a", "$.b"], stages=["output"], timeout_s=0.5)
    described = {
        "type": "DigitRuns", "length": 6, "name": "pins", "on_fail": "redact", "where": ["$.a", "$.b"],
        "stages": ["output"], "timeout_s": 0.5,
    }  # fmt: skip
    assert guard.to_dict() == described
    assert guard_from_dict(described).to_dict() == described


def test_the_derived_frontier_keeps_the_stream_law() -> None:
    guard = DigitRuns()
    text = "a 1234 99999 5678;12 34567 0000"
    assert guard.hold_bound == 2 * 3 + 1
    for end in range(len(text) + 1):
        begun = text[:end]
        frontier = guard.frontier(begun)
        assert end - frontier <= guard.hold_bound
        before = [m for m in guard.find(GuardView(begun)) if m.start < frontier]
        assert all(m.end <= frontier for m in before)
        for more in range(end, len(text) + 1):
            assert [m for m in guard.find(GuardView(text[:more])) if m.start < frontier] == before


def test_a_guard_without_a_bound_withholds_everything() -> None:
    class Anything(Guard):
        def find(self, view: GuardView) -> Sequence[Match]:
            return []

    assert Anything().hold_bound is None
    assert Anything().frontier("some text") == 0
