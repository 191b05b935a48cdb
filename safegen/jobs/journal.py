"""A journal: records appended to one file, a line each, so that a crash costs at most the last line.

Lines are written whole and in one piece; a failed write takes its beginning back, so that the file always ends with a
line that is complete, or with the one line that a crash has torn, which `records` cuts off. An fsync comes about every
second while rows end, and at the end; what a power failure takes, a resume computes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safegen.errors import JobOutputError
from safegen.jobs.durable import output_error, replace_file, sync_folder
from safegen.jobs.records import decode, encode

_WRITE_AT_BYTES = 1 << 16
_SYNC_EVERY_S = 1.0
_READ_BYTES = 1 << 20


class Journal:
    """Opened by its one writer, who holds the lock. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._buffer = bytearray()
        self._num_bytes = 0  # of the file, before those of the buffer
        self._is_broken = False
        self._synced_at = time.monotonic()
        self._is_synced = True

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record there is, in order. Cuts off a torn end; raises JobOutputError for a line that no job wrote."""
        good_bytes, bad_line = 0, None
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    record = decode(line) if line.endswith(b"\n") else None
                    if record is None:
                        bad_line = bad_line or number
                        continue
                    if bad_line is not None:
                        raise JobOutputError(
                            f"line {bad_line} is no record of a job",
                            path=str(self._path),
                            hint="move the file away, or take the line out",
                        )
                    good_bytes += len(line)
                    yield record
        except FileNotFoundError:
            return
        except OSError as error:
            raise output_error(error, self._path) from error
        if bad_line is not None:
            self._cut(good_bytes, bad_line)

    def _cut(self, good_bytes: int, bad_line: int) -> None:
        """Take the end off that a crash has torn: less than one line, or zeros that a file system has left."""
        try:
            with self._path.open("rb+") as file:
                file.seek(good_bytes)
                torn = file.read()
                if torn.strip(b"\0").count(b"\n") > 1 or (good_bytes == 0 and not _may_be_torn(torn)):
                    raise JobOutputError(
                        f"line {bad_line} is no record of a job",
                        path=str(self._path),
                        hint="name another output, or move the file away",
                    )
                file.truncate(good_bytes)
                os.fsync(file.fileno())
        except OSError as error:
            raise output_error(error, self._path) from error

    def rewrite(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Keep the records for which `keep(record)` is true: a new file in the place of the old, in one step."""

        def write(temporary: Path) -> None:
            with temporary.open("wb") as target, self._path.open("rb") as source:
                for line in source:
                    record = decode(line)
                    if record is not None and keep(record):
                        target.write(line)

        if self._path.exists():
            replace_file(self._path, write)

    def open(self) -> None:
        """Begin to append. Raises JobOutputError."""
        try:
            self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._num_bytes = os.fstat(self._handle).st_size
            sync_folder(self._path.parent)
        except OSError as error:
            raise output_error(error, self._path) from error

    def append(self, record: dict[str, Any]) -> None:
        self._buffer += encode(record)
        if len(self._buffer) >= _WRITE_AT_BYTES:
            self.flush()

    def flush(self, *, sync: bool = False) -> None:
        """Hand what is buffered to the operating system; to the disk too, when that is due or asked for."""
        if self._buffer:
            self._write()
        if not self._is_synced and (sync or time.monotonic() - self._synced_at >= _SYNC_EVERY_S):
            try:
                os.fsync(self._handle)
            except OSError as error:
                self._is_broken = True
                raise output_error(error, self._path) from error
            self._synced_at, self._is_synced = time.monotonic(), True

    def _write(self) -> None:
        """The file is the judge of what is written: an interrupt may come between a write and our knowing of it."""
        lines = bytes(self._buffer)
        done = os.fstat(self._handle).st_size - self._num_bytes
        self._is_synced = False
        try:
            while done < len(lines):
                done += os.write(self._handle, lines[done:])
        except OSError as error:
            self._is_broken = True
            os.ftruncate(self._handle, self._num_bytes + lines.rfind(b"\n", 0, done) + 1)
            raise output_error(error, self._path) from error
        self._num_bytes, self._buffer = self._num_bytes + len(lines), bytearray()  # together: no call lies between

    def finish(self) -> None:
        """All rows are done."""
        self.flush(sync=True)

    def clear(self) -> None:
        """Empty it: its records are elsewhere now, and safe."""
        try:
            os.ftruncate(self._handle, 0)
            self._num_bytes = 0
            os.fsync(self._handle)
        except OSError as error:
            raise output_error(error, self._path) from error

    def close(self) -> None:
        """Write what is left, unless writing has failed before. Raises JobOutputError."""
        if self._handle < 0:
            return
        try:
            if not self._is_broken:
                self.flush(sync=True)
        finally:
            os.close(self._handle)
            self._handle = -1


def _may_be_torn(torn: bytes) -> bool:
    """Whether bytes at the very beginning of a file may be the beginning of a record, not somebody's other file."""
    begun = b'{"id":'
    return torn.startswith(begun) or begun.startswith(torn) or not torn.strip(b"\0")
