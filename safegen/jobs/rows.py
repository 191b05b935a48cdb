"""One row of the input, and lines as rows: JSON Lines read as a stream of bounded lines.

A row is never an exception: a line that is no UTF-8, no JSON or longer than is allowed becomes a row with an error,
and the next line is read. Its digest identifies its content: of the parsed row in one spelling (keys sorted, compact),
so that the same row in another order of keys, or from a CSV file, is the same; of the raw bytes where it is broken.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO, NoReturn
from uuid import UUID

from safegen.errors import RowError

DIGEST_BYTES = 16
TEXT_COLUMN = "text"  # of a row that is a string
_BOM = b"\xef\xbb\xbf"
_SKIPPED_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Row:
    """number: of the row in the input, from 0. columns: empty where there is an error. digest: of its content."""

    number: int
    columns: Mapping[str, Any]
    digest: bytes
    error: RowError | None = None


def row_of(number: int, content: Any, max_row_bytes: int, where: str) -> Row:
    """The row of a parsed value: an object, or a string. where: names it in messages, such as "line 7"."""
    if isinstance(content, str):
        content = {TEXT_COLUMN: content}
    if not isinstance(content, Mapping):
        return broken(number, f"{where} is {type(content).__name__}, not an object or a string", content=repr(content))
    try:
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return broken(number, f"{where} cannot be kept as JSON: {error}", content=f"row {number}")
    if len(canonical) > max_row_bytes:
        return broken(number, too_long(where, max_row_bytes), content=canonical)
    return Row(number, content, _digest(b"row", canonical))


def broken(number: int, message: str, *, content: bytes | str) -> Row:
    """content: what identifies the row, or its digest if that is made already."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return Row(number, {}, _digest(b"broken", raw), RowError(message, field="row", value=number))


def too_long(where: str, max_row_bytes: int) -> str:
    return f"{where} is longer than max_row_bytes={max_row_bytes:,}; shorten it, or raise the limit"


def plain(value: object) -> Any:
    """What json.dumps asks for: values of columnar files and iterators that JSON has no word for."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _digest(kind: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, person=kind).digest()


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end. content: the digest of all of it, where it is overlong."""

    number: int  # from 1
    content: bytes
    is_overlong: bool = False


def bounded_lines(file: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """Lines of a binary file, of which never more than max_bytes are held. A byte order mark is left out."""
    number = 0
    while True:
        line = file.readline(max_bytes + 2 + (0 if number else len(_BOM)))
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        kept = line.rstrip(b"\r\n") if line.endswith(b"\n") else line
        if len(kept) <= max_bytes:
            yield Line(number, kept)
            continue
        digest = hashlib.sha256(line)
        while not line.endswith(b"\n") and (line := file.readline(_SKIPPED_AT_ONCE)):
            digest.update(line)
        yield Line(number, digest.digest(), is_overlong=True)


def jsonl_rows(file: BinaryIO, max_row_bytes: int) -> Iterator[Row]:
    """Blank lines are no rows."""
    number = 0
    for line in bounded_lines(file, max_row_bytes):
        if line.content.strip():
            yield _row_of_line(number, line, max_row_bytes)
            number += 1


def _row_of_line(number: int, line: Line, max_row_bytes: int) -> Row:
    where = f"line {line.number}"
    if line.is_overlong:
        return broken(number, too_long(where, max_row_bytes), content=line.content)
    try:
        content = json.loads(line.content.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return broken(number, f"{where} is no UTF-8 at byte {error.start}", content=line.content)
    except (ValueError, RecursionError) as error:
        return broken(number, f"{where} is no JSON: {error}", content=line.content)
    return row_of(number, content, max_row_bytes, where)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
