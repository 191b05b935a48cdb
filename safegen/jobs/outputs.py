"""The output of a job: JSON Lines in one journal, or Parquet in part files; and the names of what lies beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safegen.errors import JobOutputError, RequestError
from safegen.jobs.durable import output_error
from safegen.jobs.journal import Journal
from safegen.jobs.parquet_rows import import_pyarrow
from safegen.jobs.parts import PartFiles


class Output(Protocol):
    """Where records go. `records` is iterated to its end before `open`; used by one thread."""

    def records(self) -> Iterator[dict[str, Any]]: ...
    def rewrite(self, keep: Callable[[dict[str, Any]], bool]) -> None: ...
    def open(self) -> None: ...
    def append(self, record: dict[str, Any]) -> None: ...
    def flush(self, *, sync: bool = False) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """path: what the user named. header, lock: beside a file, inside a folder of part files."""

    path: Path
    header: Path
    lock: Path
    is_parquet: bool

    def make(self, rows_per_part: int) -> Output:
        return PartFiles(self.path, rows_per_part) if self.is_parquet else Journal(self.path)

    def prepare(self) -> None:
        """Make the folder. Raises JobOutputError."""
        folder = self.path if self.is_parquet else self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(error, folder) from error

    def exists(self) -> bool:
        """Whether a job, or somebody else, has written here."""
        if self.is_parquet:
            return any(each != self.lock and each.suffix != ".tmp" for each in self.path.iterdir())
        return self.path.exists() and self.path.stat().st_size > 0

    def check_ours(self) -> None:
        """Raises JobOutputError where something lies that no job wrote."""
        if self.exists() and not self.header.exists():
            raise JobOutputError(
                f"it exists, and {self.header.name} beside it does not: no job wrote it",
                path=str(self.path),
                hint="name another output, or move it away",
            )

    def remove(self) -> None:
        """Start over."""
        try:
            if self.is_parquet:
                for file in (*self.path.glob("part-*.parquet"), self.path / "_journal.jsonl"):
                    file.unlink(missing_ok=True)
            else:
                self.path.unlink(missing_ok=True)
            self.header.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(error, self.path) from error


def output_paths(given: Any) -> OutputPaths:
    """Raises RequestError for a name that says no format, and for Parquet without pyarrow."""
    if not isinstance(given, str | os.PathLike):
        raise RequestError(f"output is a path, got {type(given).__name__}", field="output", value=given)
    path = Path(given)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        if path.is_file():
            raise RequestError(
                f"{path} is a file; Parquet output is a folder of part files", field="output", value=str(path)
            )
        import_pyarrow()
        return OutputPaths(path, path / "_job.json", path / "_lock", True)
    if suffix in (".jsonl", ".ndjson"):
        beside = path.with_name(f"{path.name}.job.json"), path.with_name(f"{path.name}.lock")
        return OutputPaths(path, *beside, False)
    raise RequestError(
        f"output={str(path)!r}; it ends in .jsonl (one file) or .parquet (a folder of part files)",
        field="output",
        value=str(path),
    )
