"""Records on their way to the output: as they come, or in the order of the rows.

In order, a record waits for those before it; whoever reads rows asks `has_room` before it reads more, so that one slow
row cannot make the memory grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from safegen.jobs.outputs import Output
from safegen.jobs.tally import Tally


class RecordWriter:
    """max_waiting: rows that may be read and not written, where records are written in order (None: they are not)."""

    def __init__(self, output: Output, tally: Tally, max_waiting: int | None) -> None:
        self._output = output
        self._tally = tally
        self._max_waiting = max_waiting
        self._turns: deque[int] = deque()  # numbers of rows that are read and not written, in input order
        self._held: dict[int, dict[str, Any]] = {}

    def expect(self, numbers: Iterable[int]) -> None:
        """Rows that were read, in input order."""
        if self._max_waiting is not None:
            self._turns.extend(numbers)

    def has_room(self) -> bool:
        return self._max_waiting is None or len(self._turns) <= self._max_waiting

    def write(self, number: int, record: dict[str, Any]) -> None:
        """The record of a row. Raises JobOutputError."""
        if self._max_waiting is None:
            self._append(record)
            return
        self._held[number] = record
        while self._turns and self._turns[0] in self._held:
            self._append(self._held.pop(self._turns.popleft()))

    def flush(self) -> None:
        self._output.flush()

    def _append(self, record: dict[str, Any]) -> None:
        self._output.append(record)
        self._tally.add(record)
