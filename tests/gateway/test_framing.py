"""However a stream's bytes are cut into pieces, whole events come out, in order, and all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safegen.gateway.framing import EventTooLong, Framer, error_of, first_data

_ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
_LINES = st.sampled_from([b"data: {}", b"data:x", b": comment", b"event: a\ndata: y", b"id: 1\r\ndata: \xff"])


@given(st.lists(st.tuples(_LINES, _ENDS), max_size=6), st.binary(max_size=3), st.data())
def test_whole_events_come_out_however_they_are_cut(
    events: list[tuple[bytes, bytes]], rest: bytes, drawn: st.DataObject
) -> None:
    whole = [line + end for line, end in events]
    text = b"".join(whole) + rest.replace(b"\n", b"x").replace(b"\r", b"x")
    framer, out, left = Framer(1000), b"", text
    ends = {sum(map(len, whole[:count])) for count in range(len(whole) + 1)}
    while left:
        size = drawn.draw(st.integers(1, len(left)))
        out += framer.feed(left[:size])
        left = left[size:]
        assert len(out) in ends and text.startswith(out)
    assert out == b"".join(whole)


@pytest.mark.parametrize(
    ("events", "is_over"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\r\n\r\n", True),
        (b'data: {"a":1}\n\ndata: [DONE]\n\n: bye\n\n', True),
        (b'data: {"error": {"message": "x"}}\n\n', True),
        (b'data: {"error": null}\n\n', False),
        (b'data: {"choices": [{"delta": {"content": "data: [DONE]"}}]}\n\n', False),
        (b"data: [DONE]\n", False),
        (b"data: [DONE]\n\ndata: {}\n\n", False),
        (b": [DONE]\n\n", False),
        (b"", False),
    ],
)
def test_a_stream_is_over_when_it_has_said_so(events: bytes, is_over: bool) -> None:
    for size in (1, 5, 1000):
        framer = Framer(1000)
        for at in range(0, len(events), size):
            framer.feed(events[at : at + size])
        assert framer.is_over == is_over


def test_an_event_without_an_end_is_bounded() -> None:
    framer = Framer(100)
    assert framer.feed(b"data: " + b"x" * 90) == b""
    assert len(framer.feed(b"x\n\n" + b"y" * 100)) == 99
    with pytest.raises(EventTooLong):
        framer.feed(b"y")


def test_data_and_errors_are_read() -> None:
    assert first_data(b": a\n\nevent: x\ndata: 1\n\ndata: 2\n\n") == b"1"
    assert first_data(b": data: 1\n\n") is None
    assert error_of(b'{"error": {"code": 1}}') == {"code": 1}
    for data in (b"[DONE]", b"\xff", b"[]", b'{"error": "x"}', b"{}", b"[" * 10_000):
        assert error_of(data) is None
