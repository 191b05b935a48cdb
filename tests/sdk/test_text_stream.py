from __future__ import annotations

import random

import pytest

from safegen.text_stream import TextStream

BYTES = [bytes([value]) for value in range(256)]


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_half_a_code_point_is_held_back_until_it_is_whole() -> None:
    stream = TextStream(BYTES)
    euro = "€".encode()
    assert stream.feed([euro[0]]) == ""
    assert stream.feed([euro[1]]) == ""
    assert stream.feed([euro[2], ord("!")]) == "€!"


def test_torn_code_point_at_the_end_is_dropped() -> None:
    stream = TextStream(BYTES)
    assert stream.feed([ord("a"), 0xE2, 0x82]) == "a"
    assert stream.finish(3) == ""


def test_partial_stop_string_is_held_back_and_released_when_it_was_none() -> None:
    stream = TextStream(BYTES, ["STOP"])
    assert stream.feed(ids("abST")) == "ab"
    assert stream.feed(ids("x")) == "STx"


def test_text_from_a_stop_string_on_is_never_shown() -> None:
    stream = TextStream(BYTES, ["STOP"])
    assert stream.feed(ids("abSTOPcd")) == "ab"
    assert stream.finish(2) == ""


def test_held_text_is_released_at_the_end_when_no_stop_string_came() -> None:
    stream = TextStream(BYTES, ["STOP"])
    assert stream.feed(ids("abST")) == "ab"
    assert stream.finish(4) == "ST"


def test_tokens_without_text_add_nothing() -> None:
    assert TextStream([b"a", None]).feed([0, 1, 0]) == "aa"


@pytest.mark.parametrize("seed", range(50))
def test_pieces_join_to_the_text_before_the_earliest_stop_string_for_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    stops = ["ab", "aab", "€x"]
    text = "".join(rng.choice("ab€x") for _ in range(30))
    cut = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    data = text.encode()
    stream = TextStream(BYTES, stops)
    shown = []
    while data:
        size = rng.randint(1, 4)
        shown.append(stream.feed(list(data[:size])))
        assert text[:cut].startswith("".join(shown))
        data = data[size:]
    shown.append(stream.finish(len(text[:cut].encode())))
    assert "".join(shown) == text[:cut]
