"""Draws on the device: masks and settings go up, a graph draws a step's tokens, and one copy brings them back.

A draw's graph has one shape a number of rows. It reads logits, settings, masks and tables where they always lie, moves
the states of rows with tables on, and leaves tokens, faults and states for whoever comes next: the next forward takes
its ids from there, and the next draw its states, without the host. Numbers of the next row's state are made apart from
those of the last one, so running a draw twice does what running it once does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine.backend import DeviceRows, Drawn, DrawnRow
from safegen.engine.gpu.device import Device
from safegen.engine.gpu.layout import Layout, StagingRing
from safegen.engine.gpu.shapes import padded, widths
from safegen.engine.gpu.tables import TableArena
from safegen.errors import EngineError
from safegen.grammars.constraint import TokenTable, words_per_row
from safegen.kernels.api import DeviceOps, FsmRows, RowSettings
from safegen.kernels.sampling import SampleSettings

_FLOATS = ("temperature", "top_p", "min_p")
_COUNTERS = {"seed": "seed", "index": "sample", "position": "position", "attempt": "attempt"}
_INTEGERS = ("top_k", "mask_rows", "carried", "state", "first_row", "first_class", "first_target", "num_classes")

_NOBODY = DrawnRow(SampleSettings(0.0, 0, 1.0, 0.0), 0, 0, 0, 0)  # a row that nobody looks at


class PendingRows:
    """`PendingDraw`: a draw whose tokens are on their way."""

    def __init__(self, draws: DeviceDraws, num_rows: int, ids: Tensor, logits: Tensor | None, mark: Any) -> None:
        self._draws, self._num_rows, self._ids, self._logits, self._mark = draws, num_rows, ids, logits, mark

    def wait(self) -> Drawn:
        self._draws.arrived(self._mark)
        both, count = self._ids.numpy(), self._num_rows
        logits = np.empty((0, 0), np.float32) if self._logits is None else self._logits.numpy().copy()
        return Drawn(both[0, :count].copy(), both[1, :count].copy(), logits)


class DeviceDraws:
    """logits: fp32 [max_rows, width], where every forward leaves them."""

    def __init__(
        self, device: Device, ops: DeviceOps, logits: Tensor, vocab_size: int, table_rows: int, table_bytes: int
    ) -> None:
        self._device, self._ops, self._logits, self._vocab_size = device, ops, logits, vocab_size
        self.max_rows = len(logits)
        self._widths = widths(self.max_rows)
        on, num_words = device.torch_device, words_per_row(vocab_size)
        self._words = torch.zeros((self.max_rows + table_rows, num_words), dtype=torch.int32, device=on)
        self.tables = TableArena(device, self._words, self.max_rows, vocab_size, table_bytes)
        widest = _layout(self.max_rows).num_bytes
        self._inputs = torch.zeros(widest, dtype=torch.uint8, device=on)
        self._input_staging = StagingRing(device, widest)
        self._word_staging = StagingRing(device, 4 * self.max_rows * num_words, 2)
        self._output_staging = StagingRing(device, 8 * self.max_rows)
        self._output = torch.zeros(2 * self.max_rows, dtype=torch.int32, device=on)  # tokens, then faults
        self.tokens = self._output[: self.max_rows]  # of the latest draw
        self._states = torch.zeros(self.max_rows, dtype=torch.int32, device=on)  # that these led to
        self._graphs: dict[int, Any] = {}
        self._num_pending = 0

    def draw(self, asked: DeviceRows) -> PendingRows:
        rows = asked.rows
        if not 0 < len(rows) <= self.max_rows:
            raise EngineError(f"a step of {len(rows)} sampled rows; buffers hold {self.max_rows}")
        self.tables.drawing()
        if asked.words is not None:
            self._upload_words(asked.words)
        width = padded(len(rows), self._widths)
        layout = _layout(width)
        staging = self._input_staging.take()
        self._write(layout.arrays(staging), rows)
        self._device.upload(staging[: layout.num_bytes], self._inputs[: layout.num_bytes])
        self._input_staging.release(self._device.mark())
        self._start(width)
        return self._download(rows, width)

    def arrived(self, mark: Any) -> None:
        self._device.wait(mark)
        self._num_pending -= 1

    # --- up -----------------------------------------------------------------------------------------------------------

    def _upload_words(self, words: NDArray[np.int32]) -> None:
        staging = self._word_staging.take().view(torch.int32)[: words.size].view(words.shape)
        staging.numpy()[:] = words
        # Beside the forward, which does not read them; no earlier draw may still do so.
        upload = self._device.upload if self._num_pending else self._device.upload_beside
        upload(staging, self._words[: len(words)])
        self._word_staging.release(self._device.mark())

    def _write(self, arrays: dict[str, NDArray[Any]], rows: tuple[DrawnRow | None, ...]) -> None:
        count = len(rows)
        asked = [_NOBODY if row is None else row for row in rows]
        for name in ("temperature", "top_k", "top_p", "min_p"):
            arrays[name][:count] = [getattr(row.settings, name) for row in asked]
            arrays[name][count:] = getattr(_NOBODY.settings, name)
        for name, attribute in _COUNTERS.items():
            arrays[name][:count] = [getattr(row, attribute) for row in asked]
        arrays["mask_rows"][:] = -1
        arrays["mask_rows"][:count] = [-1 if row.mask_row is None else row.mask_row for row in asked]
        arrays["first_row"][:] = arrays["carried"][:] = -1
        arrays["state"][:] = 0
        for place, row in enumerate(asked):
            if row.table is not None:
                self._write_table(arrays, place, row, row.table)

    def _write_table(self, arrays: dict[str, NDArray[Any]], row: int, asked: DrawnRow, table: TokenTable) -> None:
        place = self.tables.find(table)
        if place is None:
            raise EngineError("a row is drawn by a table that is not on the device")
        arrays["first_row"][row], arrays["first_class"][row] = place.first_row, place.first_class
        arrays["first_target"][row], arrays["num_classes"][row] = place.first_target, table.targets.shape[1]
        arrays["state"][row] = 0 if asked.state is None else asked.state
        arrays["carried"][row] = asked.carried if asked.state is None else -1

    # --- the graph ----------------------------------------------------------------------------------------------------

    def _start(self, width: int) -> None:
        if width not in self._graphs:
            self._graphs[width] = self._device.capture(partial(self._draw, width))
        self._graphs[width]()

    @torch.inference_mode()
    def _draw(self, width: int) -> None:
        inputs = _layout(width).tensors(self._inputs)
        settings = RowSettings(**{name: inputs[name] for name in (*_FLOATS, *_COUNTERS, "top_k")})
        names = ("first_row", "first_class", "first_target", "num_classes")
        tables = FsmRows(**{name: inputs[name] for name in names})
        # From here on `state` holds the states that the rows are drawn in; the carried ones are read before any is
        # written, and `carried` is spent, so that a second run finds them as they are.
        state = torch.where(
            inputs["carried"] >= 0, self._states.index_select(0, inputs["carried"].clamp_min(0)), inputs["state"]
        )
        inputs["state"].copy_(state)
        inputs["carried"].fill_(-1)
        mask_rows = self._ops.fsm_mask_rows(inputs["state"], tables, inputs["mask_rows"])
        tokens, faults = self._ops.sample(self._logits[:width], self._words, mask_rows, settings, self._vocab_size)
        after = self._ops.fsm_advance(inputs["state"], tokens, tables, self.tables.classes, self.tables.targets)
        self._output[:width].copy_(tokens)
        self._output[self.max_rows : self.max_rows + width].copy_(faults)
        self._states[:width].copy_(after)

    # --- back ---------------------------------------------------------------------------------------------------------

    def _download(self, rows: tuple[DrawnRow | None, ...], width: int) -> PendingRows:
        staging = self._output_staging.take().view(torch.int32).view(2, self.max_rows)
        self._device.download(self._output, staging.view(-1))
        logits = self._fetched([row for row, asked in enumerate(rows) if asked is None])
        mark = self._device.mark()
        self._output_staging.release(mark)
        self._num_pending += 1
        return PendingRows(self, len(rows), staging, logits, mark)

    def _fetched(self, rows: list[int]) -> Tensor | None:
        """The logits of rows that the host draws, on their way to it."""
        if not rows:
            return None
        staging = self._device.staging(4 * len(rows) * self._logits.shape[1]).view(torch.float32)
        logits = staging.view(len(rows), self._logits.shape[1])
        for place, row in enumerate(rows):
            self._device.download(self._logits[row], logits[place])
        return logits


def _layout(width: int) -> Layout:
    fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for names, dtype in ((_FLOATS, torch.float64), (tuple(_COUNTERS), torch.int64), (_INTEGERS, torch.int32)):
        fields |= dict.fromkeys(names, ((width,), dtype))
    return Layout(fields)


__all__ = ["DeviceDraws", "PendingRows"]
