"""The rows of a job on their way through the engine: a bounded number at a time, written as they end.

Rows are read a chunk at a time, and only while the window has room, so what is in memory is the window and one chunk,
whatever the size of the input. With `ordered`, records wait for those before them; reading pauses while more rows wait
than the order window holds.

A row that was cancelled has no record: it is not done. An input that breaks off is told when the rows before it are
done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from safegen.drive import Stop, drive_each
from safegen.errors import SafegenError
from safegen.jobs.pending import PendingRows
from safegen.jobs.plan import PlannedRow, PlansRows
from safegen.jobs.prefix_order import prefix_order
from safegen.jobs.writing import RecordWriter
from safegen.result import Result
from safegen.runtime import Runtime, Work


class Flow:
    """One run of a job; the sink of its driver."""

    def __init__(
        self,
        runtime: Runtime,
        pending: PendingRows,
        planner: PlansRows,
        writer: RecordWriter,
        *,
        window: int,
        record_of: Callable[[PlannedRow, Result[Any]], dict[str, Any]],
    ) -> None:
        self._runtime = runtime
        self._pending = pending
        self._planner = planner
        self._writer = writer
        self._window = window
        self._record_of = record_of
        self._begun: dict[int, PlannedRow] = {}
        self._num_unbegun = 0  # of the present chunk
        self._cancelled: Exception | None = None

    def to_end(self, stop: Stop | None = None) -> None:
        """Raises what ends a job: an output that cannot be written, an input that breaks off, a closed LLM."""
        drive_each(self._runtime, self._works(), self, window=self._window, stop=stop)
        if self._cancelled is not None:
            raise self._cancelled
        if self._pending.error is not None:
            raise self._pending.error

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
        chunk = [self._planner.plan(keyed.row, keyed.key) for keyed in self._pending.chunk(self._window)]
        self._writer.expect(planned.number for planned in chunk)
        return chunk

    # --- the sink -----------------------------------------------------------------------------------------------------

    def take(self, number: int, result: Result[Any]) -> None:
        planned = self._begun.pop(number)
        if result.status == "cancelled":
            self._cancelled = result.error or SafegenError("the job was cancelled")
            return
        self._writer.write(planned.number, self._record_of(planned, result))

    def has_room(self) -> bool:
        return self._num_unbegun > 0 or self._writer.has_room()

    def idle(self) -> None:
        self._writer.flush()
