"""The stream law of safegen.guards.base, as a check of one guard over all beginnings of one text."""

from __future__ import annotations

from safegen.guards.base import Guard, GuardView


def assert_stream_law(guard: Guard, text: str) -> None:
    """frontier(p) for every beginning p of the text: within the bound, and findings before it final and whole."""
    bound = guard.hold_bound
    assert bound is not None
    whole = sorted(guard.find(GuardView(text)))
    for cut in range(len(text) + 1):
        beginning = text[:cut]
        frontier = guard.frontier(beginning)
        assert 0 <= frontier <= cut and cut - frontier <= bound, (beginning, frontier)
        early = [match for match in sorted(guard.find(GuardView(beginning, final=False))) if match.start < frontier]
        assert early == [match for match in whole if match.start < frontier], (beginning, frontier)
        assert all(match.end <= frontier for match in early), (beginning, frontier)


def assert_window_law(guard: Guard, text: str, begin: int) -> None:
    """A scan that begins `look_behind` before a place finds the same from there on as a scan of the whole text."""
    assert guard.look_behind is not None
    first = max(0, begin - guard.look_behind)
    window = [match.start + first for match in guard.find(GuardView(text[first:])) if match.start + first >= begin]
    assert sorted(window) == sorted(match.start for match in guard.find(GuardView(text)) if match.start >= begin)
