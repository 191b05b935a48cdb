"""Stop strings: the verdict of a reader who takes the output byte by byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine.stops import StopMatch, StopMatcher


def byte_by_byte(text: bytes, stops: list[str]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if hits:
            longest = max(hits, key=lambda stop: len(stop.encode()))
            return StopMatch(longest, end - len(longest.encode()))
    return None


@settings(max_examples=300, deadline=None)
@given(
    st.text("abé", max_size=14),
    st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_match_does_not_depend_on_how_bytes_are_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    whole = text.encode()
    matcher, found, at = StopMatcher(stops), None, 0
    while at < len(whole) and found is None:
        step = data.draw(st.integers(0, 5))
        found = matcher.feed(whole[at : at + step])
        at += step
    assert found == byte_by_byte(whole, stops)


def test_match_is_told_by_the_piece_that_completes_it() -> None:
    matcher = StopMatcher(["\n\nEND"])
    assert [matcher.feed(piece) for piece in (b"ok\n", b"", b"\nE")] == [None, None, None]
    assert matcher.feed(b"ND tail") == StopMatch("\n\nEND", 2)
    assert matcher.num_bytes == 12


def test_matches_passed_over_do_not_come_back() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.feed(b"ab", honoured=False) is None
    assert matcher.feed(b"x") is None
    assert matcher.feed(b"ab") == StopMatch("ab", 3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("abé", max_size=3), max_size=6), st.integers(0, 6), st.lists(st.text("abé", max_size=3)))
def test_after_a_rewind_it_is_as_if_only_the_kept_pieces_had_been_fed(
    pieces: list[str], kept: int, further: list[str]
) -> None:
    stops = ["ab", "béa", "aaaa"]
    rewound, straight = StopMatcher(stops), StopMatcher(stops)
    for piece in pieces:
        rewound.feed(piece.encode(), honoured=False)
    for piece in pieces[:kept]:
        straight.feed(piece.encode(), honoured=False)
    rewound.rewind("".join(pieces[:kept]).encode())
    assert rewound.num_bytes == straight.num_bytes
    for piece in further:
        assert rewound.feed(piece.encode()) == straight.feed(piece.encode())


def test_without_stop_strings_bytes_are_only_counted() -> None:
    matcher = StopMatcher([])
    assert matcher.feed(b"abc") is None
    assert matcher.num_bytes == 3
