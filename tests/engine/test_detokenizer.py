"""Bytes to text, incrementally."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine.detokenizer import Detokenizer


def _split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:])]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), st.lists(st.integers(0, 40)))
def test_any_split_gives_the_text_of_the_whole(data: bytes, cuts: list[int]) -> None:
    detokenizer = Detokenizer()
    text = "".join(detokenizer.push(part) for part in _split(data, cuts)) + detokenizer.flush()
    assert text == data.decode(errors="replace")


def test_bytes_of_truncated_and_overlong_sequences_are_replaced_as_in_the_whole() -> None:
    random_source = random.Random(7)
    alphabet = [b"\xf0\x9f\x98\x80", b"\xe2\x82", b"\xf0\x90\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xff", b"a", b"\x80"]
    for _ in range(3000):
        data = b"".join(random_source.choices(alphabet, k=random_source.randrange(8)))
        detokenizer = Detokenizer()
        text = "".join(detokenizer.push(bytes([byte])) for byte in data) + detokenizer.flush()
        assert text == data.decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.integers(0, 120)))
def test_valid_text_is_never_shown_as_half_a_code_point(text: str, cuts: list[int]) -> None:
    detokenizer = Detokenizer()
    shown = ""
    for part in _split(text.encode(), cuts):
        shown += detokenizer.push(part)
        assert text.startswith(shown)
        assert len(detokenizer.pending) <= 3
    assert shown == text and detokenizer.flush() == ""


def test_held_back_bytes_are_those_of_the_open_code_point() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push("é😀".encode()[:4]) == "é"
    assert detokenizer.pending == "😀".encode()[:2]
    assert detokenizer.push("😀".encode()[2:]) == "😀"
    assert detokenizer.pending == b""


def test_flush_starts_a_new_output() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.push(b"\xe2\x82") == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.push(b"\xac") == "�"  # not the rest of the first output's euro sign
