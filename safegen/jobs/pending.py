"""The rows of an input that are yet to be done, a chunk at a time, in input order.

Each comes with its key. A row that has a record is counted and passed by. What ends the input early, a file that breaks
off or the caller's iterator that raises, is kept: it is told when the rows before it are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safegen.jobs.index import RowIndex
from safegen.jobs.keys import row_key
from safegen.jobs.rows import Row
from safegen.jobs.sources import Source
from safegen.jobs.tally import Tally


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A row and who it is."""

    row: Row
    key: str


class PendingRows:
    """configs: digests under which a row may be done, the job's own first. error: what has ended the input early."""

    def __init__(self, source: Source, index: RowIndex, tally: Tally, configs: Sequence[str]) -> None:
        self._rows = iter(source.rows)
        self._index = index
        self._tally = tally
        self._configs = tuple(configs)
        self.error: Exception | None = None

    def chunk(self, num_rows: int) -> list[KeyedRow]:
        """The next rows, at most so many; none at the end of the input."""
        chunk: list[KeyedRow] = []
        try:
            for row in self._rows:
                keyed = self._keyed(row)
                if keyed is not None:
                    chunk.append(keyed)
                    if len(chunk) == num_rows:
                        break
        except Exception as error:  # the file breaks off, or the caller's iterator raises
            self.error = error
        return chunk

    def _keyed(self, row: Row) -> KeyedRow | None:
        """None: it is done."""
        occurrence = self._index.occurrence(row.digest)
        keys = [row_key(config, row.digest, occurrence) for config in self._configs]
        if self._index.is_done(keys):
            self._tally.skipped += 1
            return None
        return KeyedRow(row, keys[0])
