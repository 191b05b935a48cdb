"""The stream law of safegen.guards.base, as a check of one guard over all beginnings of one text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from safegen.guards.base import Guard, GuardView
from safegen.guards.following import follower_of


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


def assert_follower_law(guard: Guard, text: str, piece_lengths: Sequence[int]) -> None:
    """A follower fed the text in pieces of these lengths (again and again): its frontier keeps the stream law, does not
    go back, is not behind the guard's own, and what it calls quiet holds nothing that `find` finds. Every second step
    goes on with a copy, and what was decided is told as a stream would tell it."""
    follower = follower_of(guard)
    assert follower is not None and guard.hold_bound is not None
    whole = sorted(guard.find(GuardView(text)))
    at = frontier = own = 0
    lengths = itertools.cycle(piece_lengths)
    while at < len(text):
        piece = text[at : at + next(lengths)]
        at += len(piece)
        decided, frontier = frontier, follower.feed(piece, frontier)
        beginning = text[:at]
        own = max(own, guard.frontier(beginning))
        assert max(decided, own) <= frontier <= at and at - frontier <= guard.hold_bound, (beginning, frontier, own)
        early = [match for match in sorted(guard.find(GuardView(beginning, final=False))) if match.start < frontier]
        assert early == [match for match in whole if match.start < frontier], (beginning, frontier)
        assert all(match.end <= frontier for match in early), (beginning, frontier)
        if follower.is_quiet(decided, frontier):
            assert not any(match.start < frontier and match.end > decided for match in early), (beginning, decided)
        if follower.is_quiet(frontier, at):  # if the text ended here
            assert not any(match.end > frontier for match in guard.find(GuardView(beginning))), (beginning, frontier)
        if at % 2:
            left, follower = follower, follower.copy()
            left.feed("9@x-1:", frontier)
