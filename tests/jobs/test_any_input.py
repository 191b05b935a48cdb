"""Whatever bytes an input holds: rows come, none is an exception, and what a writer wrote is what is read."""

from __future__ import annotations

import csv
import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.errors import JobInputError
from safegen.jobs.csv_rows import csv_rows
from safegen.jobs.rows import jsonl_rows

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)
_PIECES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b'"', b",", b"a", b'{"a":', b"1}", b"\xff", b"\xef\xbb\xbf", b"\0", b"[", b"{}"]),
    max_size=30,
)


@given(_PIECES)
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_rows_of_json_lines(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    rows = list(jsonl_rows(io.BytesIO(content), 12))
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    assert [row.number for row in rows] == list(range(len(lines)))
    for row, line in zip(rows, lines):
        if row.error is None:
            value = json.loads(line)
            assert dict(row.columns) == ({"text": value} if isinstance(value, str) else value)


@given(_PIECES)
@settings(max_examples=150, deadline=None)
def test_any_bytes_after_a_header_are_rows_of_csv(pieces: list[bytes]) -> None:
    rows = list(csv_rows(io.BytesIO(b"a,b\n" + b"".join(pieces)), 12, ",", "in.csv"))
    assert [row.number for row in rows] == list(range(len(rows)))
    assert all(row.error is not None or set(row.columns) == {"a", "b"} for row in rows)


@given(_PIECES)
@settings(max_examples=100, deadline=None)
def test_any_header_is_columns_or_a_typed_error(pieces: list[bytes]) -> None:
    try:
        list(csv_rows(io.BytesIO(b"".join(pieces)), 12, ",", "in.csv"))
    except JobInputError as error:
        assert error.path == "in.csv"


@given(st.lists(st.tuples(_TEXT, _TEXT), max_size=8), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=150, deadline=None)
def test_what_a_csv_writer_writes_is_read(values: list[tuple[str, str]], ending: str) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerows([("first", "second"), *values])
    rows = list(csv_rows(io.BytesIO(file.getvalue().encode()), 10_000, ",", "in.csv"))
    assert [(row.columns["first"], row.columns["second"]) for row in rows] == values
