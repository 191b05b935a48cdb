"""CSV and TSV as a stream of rows: the first record names the columns, all values are strings.

Records may span lines inside quotes, up to max_row_bytes and to 131,072 characters a field (the csv module's limit,
which is the process's own and stays as it is). A record that is broken, too long or has another number of fields than
the header is a row with an error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import BinaryIO

from safegen.errors import JobInputError
from safegen.jobs.rows import Row, bounded_lines, broken, row_of, too_long


class _TooLong(Exception):
    """A record has passed the limit."""


class _Record:
    """Feeds lines to csv.reader, which asks for as many as its record has, and remembers them."""

    def __init__(self, file: BinaryIO, max_row_bytes: int) -> None:
        self._lines = bounded_lines(file, max_row_bytes)
        self._max_bytes = max_row_bytes
        self.first_line = 0
        self.begin()

    def begin(self) -> None:
        self.raw: list[bytes] = []
        self._num_bytes = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if not self.raw:
            self.first_line = line.number
        self.raw.append(line.content)
        self._num_bytes += len(line.content) + 1
        if line.is_overlong or self._num_bytes > self._max_bytes + 1:
            raise _TooLong
        return line.content.decode("utf-8", "surrogateescape") + "\n"


def csv_rows(file: BinaryIO, max_row_bytes: int, delimiter: str, name: str) -> Iterator[Row]:
    """Raises JobInputError for a header that names no columns."""
    record = _Record(file, max_row_bytes)
    header = _header(record, delimiter, name)
    number = 0
    reader = csv.reader(record, delimiter=delimiter)
    while True:
        record.begin()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (_TooLong, csv.Error) as error:
            where = f"line {record.first_line}"
            message = too_long(where, max_row_bytes) if isinstance(error, _TooLong) else f"{where} is no CSV: {error}"
            yield broken(number, message, content=b"\n".join(record.raw))
            reader = csv.reader(record, delimiter=delimiter)  # the old one is in the middle of that record
        else:
            if not fields:
                continue
            yield _row(number, fields, header, record, max_row_bytes)
        number += 1


def _row(number: int, fields: list[str], header: list[str], record: _Record, max_row_bytes: int) -> Row:
    where = f"line {record.first_line}"
    raw = b"\n".join(record.raw)
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return broken(number, f"{where} is no UTF-8 at byte {error.start}", content=raw)
    if len(fields) != len(header):
        return broken(number, f"{where} has {len(fields)} fields, the header has {len(header)}", content=raw)
    return row_of(number, dict(zip(header, fields)), max_row_bytes, where)


def _header(record: _Record, delimiter: str, name: str) -> list[str]:
    try:
        header = next(csv.reader(record, delimiter=delimiter), [])
        b"".join(record.raw).decode()
    except (_TooLong, csv.Error, UnicodeDecodeError) as error:
        raise JobInputError(f"the header cannot be read: {error or 'too long'}", path=name) from error
    if record.raw and (not all(header) or not header):
        raise JobInputError("a column of the header has no name", path=name, hint="name every column in the first line")
    if len(set(header)) != len(header):
        twice = next(column for column in header if header.count(column) > 1)
        raise JobInputError(f"the header names {twice!r} twice", path=name)
    return header
