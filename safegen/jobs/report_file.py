"""The file of a job's page: checked before the job begins, written when it begins, every half minute, and at its end,
however that comes. So a process that is killed leaves a page that says "running", and when that was.

Each writing is a new file in the place of the old one. What goes wrong with it in between, or after an error of the
job, is not told: the job's own output matters more, and the last writing tells.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safegen.errors import Cancelled, EngineClosed, JobError, JobOutputError, RequestError
from safegen.jobs.about import About, State
from safegen.jobs.details import JobDetails
from safegen.jobs.durable import output_error, replace_file
from safegen.jobs.html_report import job_page
from safegen.jobs.outputs import OutputPaths
from safegen.jobs.report import report_of
from safegen.jobs.tally import Tally

WRITE_EVERY_S = 30.0
_SUFFIXES = (".html", ".htm")


def check_report(given: str | os.PathLike[str] | None, source_name: str, paths: OutputPaths) -> Path | None:
    """The path of the page, whose folder is made and can be written. Raises RequestError for a name that will not do,
    JobOutputError for a place that cannot be written."""
    if given is None:
        return None
    path = Path(given)
    if path.suffix.lower() not in _SUFFIXES:
        raise RequestError(f"report={str(path)!r}; a page is named .html", field="report", value=str(path))
    try:
        path = path.resolve()  # what a link leads to is replaced, not the link
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero byte
        raise RequestError(f"report={str(given)!r} is no path: {error}", field="report", value=str(given)) from error
    if path == Path(source_name).resolve():
        raise RequestError("input and report are the same", field="report", value=str(given))
    if paths.is_parquet and paths.path.resolve() in path.parents:
        raise RequestError(
            f"report={str(given)!r} lies in the output, which is a folder for readers of Parquet; put it beside it",
            field="report", value=str(given),
        )  # fmt: skip
    if path.exists() and not path.is_file():
        raise JobOutputError("the report cannot be written: this is no file", path=str(path), hint="name a file")
    probe = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"<!doctype html>")
    except OSError as error:
        raise output_error(error, path) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def reported(path: Path | None, tally: Tally, about: About) -> Iterator[None]:
    """Around the job, from before its earlier records are read until its output is closed. path: None writes nothing.
    Raises JobOutputError where the job ends well and its page cannot be written."""
    if path is None:
        yield
        return
    file = ReportFile(path, tally, about)
    tally.watcher = file
    file.write(State("running"))
    try:
        yield
    except BaseException as error:
        tally.end()
        with contextlib.suppress(JobOutputError):  # the first error is the one to tell
            file.write(state_of(error))
        raise
    tally.end()
    file.write(State("done"))


def state_of(error: BaseException) -> State:
    """How a job ended that raised. Only messages of safegen's errors are told: others may quote a row."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | Cancelled | EngineClosed):
        return State("interrupted", type(error).__name__)
    return State("failed", type(error).__name__, str(error) if isinstance(error, JobError) else "")


class ReportFile:
    """Watches the tally; used by the thread that runs the job."""

    def __init__(self, path: Path, tally: Tally, about: About) -> None:
        self._path = path
        self._tally = tally
        self._about = about
        self._details = JobDetails()
        self._written_at = time.monotonic()

    def found(self, record: Mapping[str, Any]) -> None:
        self._details.found(record)

    def came(self, record: Mapping[str, Any], at_s: float) -> None:
        self._details.came(record, at_s)
        if time.monotonic() - self._written_at >= WRITE_EVERY_S:
            with contextlib.suppress(JobOutputError):
                self.write(State("running"))

    def write(self, state: State) -> None:
        """Raises JobOutputError."""
        self._written_at = time.monotonic()
        report = report_of(self._tally, self._about.output)
        text = job_page(self._about, state, report, self._tally, self._details)
        content = text.encode("utf-8", "backslashreplace")
        replace_file(self._path, lambda temporary: _write(temporary, content))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
