"""Input as a stream of rows: what is wrong with a row is in the row, and the next one is read."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import JobInputError, RequestError
from safegen.jobs.rows import Row, row_of
from safegen.jobs.sources import open_source


def rows(given: Any, *, format: Any = None, max_row_bytes: int = 1000) -> list[Row]:
    source = open_source(given, format, max_row_bytes)
    try:
        return list(source.rows)
    finally:
        source.close()


def file_of(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


LINES = (
    b'\xef\xbb\xbf{"text": "one"}\r\n'
    b"\n"
    b'"two"\n'
    b'{"text": "\xff"}\n'
    b'{"text": \n'
    b"[1]\n"
    b'{"text": NaN}\n' + b'{"text": "' + b"x" * 5000 + b'"}\n' + b'{"text": "' + b"[" * 900 + b'"}\n'
    b'{"text": "last"}'
)


@pytest.mark.parametrize("name", ["in.jsonl", "in.ndjson", "in.jsonl.gz"])
def test_broken_lines_are_error_rows_between_good_ones(tmp_path: Path, name: str) -> None:
    found = rows(file_of(tmp_path, name, LINES))
    assert [row.number for row in found] == list(range(9))
    said = [None if row.error is None else str(row.error) for row in found]
    assert said[0] is said[1] is said[7] is said[8] is None
    assert [dict(found[place].columns) for place in (0, 1, 8)] == [{"text": "one"}, {"text": "two"}, {"text": "last"}]
    assert "line 4 is no UTF-8 at byte 10" in str(said[2])
    assert "line 5 is no JSON" in str(said[3])
    assert "line 6 is list" in str(said[4])
    assert "NaN" in str(said[5])
    assert "line 8 is longer than max_row_bytes=1,000" in str(said[6])
    assert len({row.digest for row in found}) == 9


def test_deep_nesting_is_an_error_row(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    (row,) = rows(file_of(tmp_path, "in.jsonl", b'{"a": ' + deep + b"}\n"), max_row_bytes=1 << 20)
    assert row.error is not None


def test_an_overlong_line_is_never_held_as_a_whole() -> None:
    from safegen.jobs.rows import bounded_lines

    class Counting(io.BytesIO):
        largest = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            self.largest = max(self.largest, len(line))
            return line

    file = Counting(b"x" * (1 << 22) + b"\nshort\n")
    found = list(bounded_lines(file, 100))
    assert [line.is_overlong for line in found] == [True, False]
    assert found[1].content == b"short"
    assert file.largest <= 1 << 16


def test_overlong_lines_with_the_same_beginning_are_different_rows(tmp_path: Path) -> None:
    first, second = rows(file_of(tmp_path, "in.jsonl", b'"' + b"x" * 5000 + b'1"\n"' + b"x" * 5000 + b'2"\n'))
    assert first.digest != second.digest


def test_a_line_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    fitting = b'"' + b"x" * 88 + b'"'
    for end in (b"", b"\n", b"\r\n"):
        (row,) = rows(file_of(tmp_path, "in.jsonl", fitting + end), max_row_bytes=99)
        assert row.error is None
        (row,) = rows(file_of(tmp_path, "in.jsonl", b'"x' + b"x" * 98 + b'"' + end), max_row_bytes=99)
        assert row.error is not None


CSV = (
    b"id,text\r\n"
    b'1,"two\nlines, and a ""quote"""\r\n'
    b"2,a 5\" pipe\n"
    b"3,one,more\n"
    b"\n"
    b"4,\xff\n"
    b"5," + b"y" * 3000 + b"\n"
    b'6,last\n'
)  # fmt: skip


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
def test_csv_records_may_span_lines_and_broken_ones_are_error_rows(tmp_path: Path, name: str) -> None:
    found = rows(file_of(tmp_path, name, CSV))
    said = [None if row.error is None else str(row.error) for row in found]
    assert [dict(row.columns) for row in found] == [
        {"id": "1", "text": 'two\nlines, and a "quote"'}, {"id": "2", "text": 'a 5" pipe'}, {}, {}, {},
        {"id": "6", "text": "last"},
    ]  # fmt: skip
    assert said[2] == "line 5 has 3 fields, the header has 2"
    assert "line 7 is no UTF-8" in str(said[3])
    assert "line 8 is longer than" in str(said[4])


def test_a_quote_that_never_closes_costs_one_row_of_bounded_size(tmp_path: Path) -> None:
    content = b"text\n" + b'"never closed\n' + b"more text\n" * 500 + b"the end\n"
    found = rows(file_of(tmp_path, "in.csv", content))
    assert found[0].error is not None
    assert "longer than" in str(found[0].error)
    assert dict(found[-1].columns) == {"text": "the end"}


def test_tabs_separate_a_tsv(tmp_path: Path) -> None:
    (row,) = rows(file_of(tmp_path, "in.tsv", b"a\tb\n1,5\tx\n"))
    assert dict(row.columns) == {"a": "1,5", "b": "x"}


@pytest.mark.parametrize("header", [b"a,a\n1,2\n", b"a,\n1,2\n", b"a,\xff\n1,2\n", b'"' + b"x" * 2000])
def test_a_header_that_names_no_columns_is_an_error(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(JobInputError, match=r"in\.csv"):
        rows(file_of(tmp_path, "in.csv", header))


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.jsonl.gz"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    assert rows(file_of(tmp_path, name, b"")) == []


def test_a_gzip_file_that_is_cut_short_ends_with_an_error_after_its_rows(tmp_path: Path) -> None:
    path = file_of(tmp_path, "in.jsonl.gz", b"".join(b'{"n": %d}\n' % number for number in range(5000)))
    path.write_bytes(path.read_bytes()[:-400])
    source = open_source(path, None, 1000)
    seen = []
    with pytest.raises(JobInputError, match="cannot be read after row") as caught:
        for row in source.rows:
            seen.append(row)  # noqa: PERF402 - those before the error count
    source.close()
    assert seen
    assert "resume" in str(caught.value)


def test_an_iterable_gives_rows_and_what_is_no_row_is_an_error_row() -> None:
    found = rows(iter([{"a": 1}, "text", 7, {"when": date(2024, 5, 1)}, {"odd": object()}, {"text": "x" * 2000}]))
    assert [row.error is None for row in found] == [True, True, False, True, False, False]
    assert found[1].columns == {"text": "text"}


def test_equal_rows_have_one_digest_however_they_are_written() -> None:
    one = row_of(0, json.loads('{"a": 1, "b": "é"}'), 1000, "line 1")
    other = row_of(7, json.loads('{"b":"\\u00e9","a":1}'), 1000, "line 8")
    assert one.digest == other.digest
    assert one.digest != row_of(0, {"a": "1", "b": "é"}, 1000, "line 1").digest


def test_position_reaches_the_total(tmp_path: Path) -> None:
    source = open_source(file_of(tmp_path, "in.jsonl", b'"a"\n' * 100), None, 1000)
    assert source.total == 400
    assert sum(1 for _ in source.rows) == 100
    assert source.position() == 400
    source.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [(7, "path or an iterable"), ({"a": 1}, "path or an iterable"), ("in.txt", "format of"), ("in", "format of")],
)
def test_what_is_no_input_is_refused(given: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        open_source(given, None, 1000)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(JobInputError, match=r"nowhere\.jsonl"):
        open_source("nowhere.jsonl", None, 1000)


def test_a_source_is_a_stream() -> None:
    taken = []

    def endless() -> Iterator[str]:
        number = 0
        while True:
            taken.append(number)
            yield f"row {number}"
            number += 1

    found = iter(open_source(endless(), None, 1000).rows)
    for _ in range(3):
        next(found)
    assert len(taken) <= 4
