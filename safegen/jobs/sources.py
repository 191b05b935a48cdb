"""Where rows come from: a file, whose suffix names its format, or any iterable of objects or strings.

A source is read once, as a stream. An input that is cut short (half a gzip file) ends the job with a JobInputError
after the rows before it: a job must not look finished when it has not seen all of its rows.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from safegen.errors import JobInputError, RequestError
from safegen.jobs.csv_rows import csv_rows
from safegen.jobs.parquet_rows import ParquetRows
from safegen.jobs.rows import Row, jsonl_rows, row_of

Format = Literal["jsonl", "csv", "tsv", "parquet", "openai"]
FORMATS = get_args(Format)
_FORMAT_OF_SUFFIX: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True, slots=True)
class Source:
    """name: for messages. rows: to be iterated once. total, position: how far it is, in a unit of its own (bytes of
    the file, rows); total is None where nobody knows."""

    name: str
    format: Format
    rows: Iterable[Row]
    total: int | None
    position: Callable[[], int]
    close: Callable[[], None]


def open_source(given: Any, format: Format | None, max_row_bytes: int) -> Source:
    """given: a path, or an iterable. Raises RequestError for what is neither, JobInputError for what cannot be read."""
    if format is not None and format not in FORMATS:
        raise RequestError(f"format={format!r}; choose {', '.join(FORMATS)} or None", field="format", value=format)
    if isinstance(given, str | os.PathLike):
        return _of_file(Path(given), format, max_row_bytes)
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise RequestError(
            f"input is a path or an iterable of rows (dicts or strings), got {type(given).__name__}",
            field="input",
            value=given,
        )
    if format not in (None, "jsonl", "openai"):
        raise RequestError(f"format={format!r} names a kind of file; input is an iterable", field="format")
    return _of_iterable(given, format or "jsonl", max_row_bytes)


def _of_iterable(given: Iterable[Any], format: Format, max_row_bytes: int) -> Source:
    done = 0

    def rows() -> Iterator[Row]:
        nonlocal done
        for done, content in enumerate(given):
            yield row_of(done, content, max_row_bytes, f"row {done}")

    total = len(given) if isinstance(given, Sized) else None
    return Source("the iterable", format, rows(), total, lambda: done, lambda: None)


def _of_file(path: Path, format: Format | None, max_row_bytes: int) -> Source:
    is_gzip = path.suffix.lower() == ".gz"
    suffix = Path(path.stem).suffix if is_gzip else path.suffix
    chosen = format or ("parquet" if path.is_dir() else _FORMAT_OF_SUFFIX.get(suffix.lower()))
    if chosen is None:
        raise RequestError(
            f"the format of {path.name!r} is not known by its name; pass format={'|'.join(FORMATS)}",
            field="input",
            value=str(path),
        )
    if not path.exists():
        raise JobInputError("there is no such file", path=str(path))
    if chosen == "parquet":
        parquet = ParquetRows(path, max_row_bytes)
        return Source(str(path), chosen, parquet, parquet.total, lambda: parquet.position, lambda: None)
    return _of_text(path, chosen, is_gzip, max_row_bytes)


def _of_text(path: Path, format: Format, is_gzip: bool, max_row_bytes: int) -> Source:
    try:
        file = path.open("rb")
        num_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise JobInputError(f"it cannot be read: {error.strerror or error}", path=str(path)) from error
    opened = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_gzip else file

    def position() -> int:
        return num_bytes if file.closed else file.tell()

    def close() -> None:
        opened.close()
        file.close()

    delimiter = _DELIMITERS.get(format)
    rows = jsonl_rows(opened, max_row_bytes) if delimiter is None else csv_rows(
        opened, max_row_bytes, delimiter, str(path)
    )  # fmt: skip
    return Source(str(path), format, _to_the_end(rows, str(path)), num_bytes, position, close)


def _to_the_end(rows: Iterator[Row], name: str) -> Iterator[Row]:
    number = 0
    try:
        for row in rows:
            number = row.number + 1
            yield row
    except (OSError, EOFError, zlib.error) as error:
        raise JobInputError(
            f"it cannot be read after row {number:,}: {error}", path=name, hint="mend the file, then resume the job"
        ) from error
