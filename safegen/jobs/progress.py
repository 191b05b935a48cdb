"""How a job goes, on stderr: a bar on a terminal, a line every ten seconds elsewhere, and a table at the end.

Shown by a thread of its own, which reads the tally; a job does not wait for it.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TextIO

from safegen.jobs.options import ProgressKind
from safegen.jobs.report import JobReport
from safegen.jobs.tally import Tally

LINE_EVERY_S = 10.0
_BAR_EVERY_S = 0.25
_BAR_CHARACTERS = 40


def make_progress(kind: ProgressKind, tally: Tally, stream: TextIO | None = None) -> Progress:
    shown_on = sys.stderr if stream is None else stream
    if kind == "auto":
        kind = "bar" if shown_on.isatty() else "lines"
    if kind == "bar":
        return Bar(tally, shown_on)
    return Lines(tally, shown_on) if kind == "lines" else Progress(tally, shown_on)


def describe(tally: Tally) -> str:
    """The counts in one line."""
    now = tally.now
    num_ok, blocked = now["ok"], now["blocked"]
    failed = tally.num_now - num_ok - blocked
    remaining = tally.remaining_s
    parts = [
        f"{tally.num_now:,} rows ({num_ok:,} ok, {failed:,} failed, {blocked:,} blocked)",
        f"{tally.skipped:,} done before" if tally.skipped else "",
        f"{tally.rows_per_s:,.1f} rows/s",
        f"{tally.tokens_per_s:,.1f} tokens/s",
        f"cache {tally.cache_hit_rate:.0%}",
        "" if remaining is None else f"ETA {clock(remaining)}",
    ]
    return ", ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Progress:
    """Shows nothing. A context manager around the job; `summary` comes after it."""

    every_s = LINE_EVERY_S
    is_shown = False

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._tally = tally
        self._stream = stream
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self.is_shown:
            self._thread = threading.Thread(target=self._show_until_end, name="safegen-job-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show_until_end(self) -> None:
        while not self._ended.wait(self.every_s):
            self.show()

    def show(self) -> None:
        pass

    def summary(self, report: JobReport) -> None:
        if self.is_shown:
            print(report.table(), file=self._stream, flush=True)


class Lines(Progress):
    is_shown = True

    def show(self) -> None:
        print(f"safegen job: {describe(self._tally)}", file=self._stream, flush=True)


class Bar(Progress):
    """The bar with the counts below it, which a narrow terminal wraps."""

    is_shown = True
    every_s = _BAR_EVERY_S

    def __enter__(self) -> Progress:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self._stream, force_terminal=True), auto_refresh=False)
        self._live.start()
        return super().__enter__()

    def show(self) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total, done = self._tally.total, self._tally.position()
        line = Table.grid(padding=(0, 1))
        if total is None:
            line.add_row(ProgressBar(total=None, width=_BAR_CHARACTERS), f"{done + 1:,} rows read")
        else:
            share = done / total if total else 1.0
            line.add_row(ProgressBar(total=1.0, completed=share, width=_BAR_CHARACTERS), f"{share:.0%} of the input")
        self._live.update(Group(line, Text(describe(self._tally))), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.show()
        self._live.stop()

    def summary(self, report: JobReport) -> None:
        """The same lines as a table with a frame."""
        from rich.console import Console
        from rich.table import Table

        table = Table(show_header=False)
        for name, value in report.lines():
            table.add_row(name, value)
        Console(file=self._stream, force_terminal=True).print(table)
