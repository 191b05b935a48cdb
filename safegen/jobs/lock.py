"""One writer an output: an advisory lock on a file beside it, held as long as the job runs.

The lock is the kernel's, so it goes with the process however that ends; the file is removed by an orderly end. Whoever
has locked a file that is no longer the one at the path (its last owner has removed it) tries again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from safegen.errors import JobLocked
from safegen.jobs.durable import output_error


class OutputLock:
    """A context manager. Raises JobLocked at once where another holds it, JobOutputError where it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def __enter__(self) -> OutputLock:
        while True:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise output_error(error, self._path) from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
                os.close(handle)
                raise JobLocked(
                    f"another job writes this output (process {owner or 'unknown'})",
                    path=str(self._path),
                    hint="wait for it, or end it; the lock goes with its process",
                ) from error
            if self._is_current(handle):
                self._handle = handle
                self._sign()
                return self
            os.close(handle)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _sign(self) -> None:
        """The process's number, for messages; the lock holds without it, on a full disk too."""
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        except OSError:
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._handle)
