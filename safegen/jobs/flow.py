"""The rows of a job on their way through the engine: a bounded number at a time, written as they end.

Rows are read a chunk at a time, and only while the window has room, so what is in memory is the window and one chunk,
whatever the size of the input. With `ordered`, records wait for those before them; reading pauses while more rows wait
than the order window holds, so one slow row cannot make the memory grow.

A row that was cancelled has no record: it is not done. An input that breaks off is told when the rows before it are
done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from safegen.drive import Stop, drive_each
from safegen.errors import SafegenError
from safegen.jobs.index import RowIndex
from safegen.jobs.keys import row_key
from safegen.jobs.outputs import Output
from safegen.jobs.plan import PlannedRow, Planner
from safegen.jobs.prefix_order import prefix_order
from safegen.jobs.records import record_of
from safegen.jobs.rows import Row
from safegen.jobs.sources import Source
from safegen.jobs.tally import Tally
from safegen.result import Result
from safegen.runtime import Runtime, Work

_ORDER_WINDOWS = 4  # rows that may wait for their turn, in windows


class Flow:
    """One run of a job; the sink of its driver. configs: digests under which a row may be done, the job's own first."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        planner: Planner,
        index: RowIndex,
        output: Output,
        tally: Tally,
        *,
        configs: Sequence[str],
        window: int,
        ordered: bool,
    ) -> None:
        self._runtime = runtime
        self._rows = iter(source.rows)
        self._planner = planner
        self._index = index
        self._output = output
        self._tally = tally
        self._configs = tuple(configs)
        self._window = window
        self._ordered = ordered
        self._begun: dict[int, PlannedRow] = {}
        self._num_unbegun = 0  # of the present chunk
        self._turns: deque[int] = deque()  # numbers of rows that are read and not written, in input order
        self._held: dict[int, dict[str, Any]] = {}
        self._input_error: Exception | None = None
        self._cancelled: Exception | None = None

    def to_end(self, stop: Stop | None = None) -> None:
        """Raises what ends a job: an output that cannot be written, an input that breaks off, a closed LLM."""
        drive_each(self._runtime, self._works(), self, window=self._window, stop=stop)
        if self._cancelled is not None:
            raise self._cancelled
        if self._input_error is not None:
            raise self._input_error

    # --- reading ------------------------------------------------------------------------------------------------------

    def _works(self) -> Iterator[Work]:
        number = 0
        while chunk := self._chunk():
            self._num_unbegun = len(chunk)
            for planned in prefix_order(chunk):
                if self._cancelled is not None:
                    return
                self._begun[number] = planned
                self._num_unbegun -= 1
                yield planned.work(self._runtime)
                number += 1

    def _chunk(self) -> list[PlannedRow]:
        """The next rows that are to be done; none at the end of the input."""
        chunk: list[PlannedRow] = []
        try:
            for row in self._rows:
                planned = self._planned(row)
                if planned is not None:
                    chunk.append(planned)
                    if len(chunk) == self._window:
                        break
        except Exception as error:  # the file breaks off, or the caller's iterator raises
            self._input_error = error
        if self._ordered:
            self._turns.extend(planned.number for planned in chunk)
        return chunk

    def _planned(self, row: Row) -> PlannedRow | None:
        """None: it is done."""
        occurrence = self._index.occurrence(row.digest)
        keys = [row_key(config, row.digest, occurrence) for config in self._configs]
        if self._index.is_done(keys):
            self._tally.skipped += 1
            return None
        return self._planner.plan(row, keys[0])

    # --- the sink -----------------------------------------------------------------------------------------------------

    def take(self, number: int, result: Result[Any]) -> None:
        planned = self._begun.pop(number)
        if result.status == "cancelled":
            self._cancelled = result.error or SafegenError("the job was cancelled")
            return
        record = record_of(planned, result)
        if not self._ordered:
            self._write(record)
            return
        self._held[planned.number] = record
        while self._turns and self._turns[0] in self._held:
            self._write(self._held.pop(self._turns.popleft()))

    def has_room(self) -> bool:
        return self._num_unbegun > 0 or len(self._turns) <= (_ORDER_WINDOWS - 1) * self._window

    def idle(self) -> None:
        self._output.flush()

    def _write(self, record: dict[str, Any]) -> None:
        self._output.append(record)
        self._tally.add(record)
