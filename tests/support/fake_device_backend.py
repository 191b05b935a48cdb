"""The fake backend as a device: what is started is done when the host waits, in order, and not before.

A forward takes carried ids from the tokens of the draw before it, as it finds them when its turn comes. Which blocks it
writes to is checked when it is launched, since a sequence may end while its forward is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import DeviceRows, Drawn, DrawnRow, ForwardBatch
from safegen.engine.rng import uniform
from safegen.grammars.constraint import TokenTable
from safegen.kernels.sampling import Draw, draw_tokens
from tests.support.fake_backend import FAKE_VOCAB, FakeBackend

_FAULTS = {"empty mask": 1, "all forbidden": 2, "non-finite": 3}


class FakeDeviceBackend(FakeBackend):
    """num_tables: how many tables it has room for."""

    def __init__(self, num_tables: int = 8, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_tables = num_tables
        self.tables: list[TokenTable] = []
        self.num_launched = self.num_waited = self.num_tabled_rows = self.num_carried_states = 0
        self._queue: list[Callable[[], None]] = []
        self._logits: NDArray[np.float32] = np.empty((0, FAKE_VOCAB), np.float32)
        self._tokens: NDArray[np.int32] = np.empty(0, np.int32)
        self._states: list[int] = []

    def prepare_draws(self, vocab_size: int, max_rows: int) -> None:
        self._vocab_size, self._max_rows = vocab_size, max_rows

    def copy_block(self, source: int, destination: int) -> None:
        self._queue.append(lambda: FakeBackend.copy_block(self, source, destination))

    def launch(self, batch: ForwardBatch, carried: NDArray[np.int32] | None = None) -> None:
        self.num_launched += 1
        self.check_launched(set((batch.slot // batch.block_size).tolist()))

        def run() -> None:
            ids = batch.ids
            if carried is not None:
                ids = np.where(carried >= 0, self._tokens[np.maximum(carried, 0)], ids)
            self._logits = self.forward(replace(batch, ids=ids))

        self._queue.append(run)

    @property
    def check_writes(self) -> Callable[[set[int]], None]:
        return lambda block_ids: None

    @check_writes.setter
    def check_writes(self, check: Callable[[set[int]], None]) -> None:
        self.check_launched = check

    def holds(self, table: TokenTable) -> bool:
        if not any(each is table for each in self.tables) and len(self.tables) < self.num_tables:
            self.tables.append(table)
        return any(each is table for each in self.tables)

    def draw(self, rows: DeviceRows) -> FakePending:
        assert 0 < len(rows.rows) <= self._max_rows
        pending = FakePending(self)
        words = None if rows.words is None else rows.words.copy()
        self._queue.append(lambda: pending.put(self._drawn(rows.rows, words)))
        return pending

    def _drawn(self, rows: tuple[DrawnRow | None, ...], words: NDArray[np.int32] | None) -> Drawn:
        ids, faults = np.full(len(rows), -7, np.int32), np.zeros(len(rows), np.int32)
        states = [0] * len(rows)
        for row, asked in enumerate(rows):
            if asked is None:
                continue
            mask, mask_row = words, asked.mask_row
            if asked.table is not None:
                assert any(each is asked.table for each in self.tables)
                self.num_tabled_rows += 1
                self.num_carried_states += asked.state is None
                states[row] = self._states[asked.carried] if asked.state is None else asked.state
                mask, mask_row = asked.table.masks, states[row]
            number = uniform(asked.seed, asked.sample, asked.position, asked.attempt)
            draws = [Draw(asked.settings, row, mask_row, number)]
            found, wrong = draw_tokens(self._logits, self._vocab_size, mask, draws)
            ids[row] = found[0]
            if wrong:
                faults[row], ids[row] = _FAULTS[wrong[0].kind], 0
            if asked.table is not None:
                states[row] = int(asked.table.targets[states[row], asked.table.classes[ids[row]]])
        self._tokens, self._states = ids, states
        return Drawn(ids, faults, self._logits[[row for row, asked in enumerate(rows) if asked is None]])

    def do_next(self) -> None:
        self._queue.pop(0)()


class FakePending:
    def __init__(self, backend: FakeDeviceBackend) -> None:
        self._backend = backend
        self._drawn: Drawn | None = None

    def put(self, drawn: Drawn) -> None:
        self._drawn = drawn

    def wait(self) -> Drawn:
        self._backend.num_waited += 1
        while self._drawn is None:
            self._backend.do_next()
        return self._drawn


__all__ = ["FakeDeviceBackend"]
