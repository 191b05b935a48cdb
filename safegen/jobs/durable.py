"""Writing files so that they are there complete or not at all, and naming what the operating system refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from safegen.errors import JobOutputError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def output_error(error: OSError, path: Path) -> JobOutputError:
    """The typed error of a write that failed."""
    if error.errno in _FULL:
        return JobOutputError(
            f"the disk is full, or a quota or limit of file sizes is reached ({error.strerror}); every record written "
            "before is kept",
            path=str(path),
            hint="make room, then run the same job again: it goes on where it stopped",
        )
    if error.errno in _FORBIDDEN:
        return JobOutputError(
            f"the output cannot be written ({error.strerror})",
            path=str(path),
            hint="choose a place that can be written, or change its permissions",
        )
    return JobOutputError(f"the output cannot be written: {error.strerror or error}", path=str(path))


def sync_folder(folder: Path) -> None:
    """Make a rename in it last. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Put a complete file in the place of `path`: `write` is given a temporary one beside it. Raises JobOutputError;
    what was at `path` is there then."""
    temporary = path.with_name(f".{path.name}.tmp")  # a name that readers of a folder of part files pass by
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise output_error(error, path) from error
