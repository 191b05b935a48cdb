"""The backend on a GPU: a model's forwards in captured graphs over static buffers, and draws where the logits are.

The inputs of a forward cross in one copy and lie where its shape's graph reads them (layout.py, shapes.py); its logits
go where every draw reads them. Graphs are captured when a shape is first met, so that only those are paid for that are
used. Weights, cache and rope tables never move after `allocate`, or graphs would read where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine import kv_cache
from safegen.engine.backend import DeviceRows, ForwardBatch, PendingDraw, RowMasks
from safegen.engine.gpu.device import Device
from safegen.engine.gpu.draws import DeviceDraws
from safegen.engine.gpu.layout import StagingRing
from safegen.engine.gpu.memory import MemoryProfile, full_batch
from safegen.engine.gpu.shapes import GraphKey, graph_key, own_key, widths
from safegen.engine.models.layers import Decoder
from safegen.errors import EngineError
from safegen.grammars.constraint import TokenTable
from safegen.kernels.api import AttentionPlan, DeviceOps, KvLayer

_TABLE_BYTES = 64 << 20  # of mask rows, and as much again of classes and targets


class GpuRunner:
    """`Backend` and `DeviceBackend` of a decoder on a device. ops: what the model was loaded with. kv_dtype: of the
    cache. max_num_batched_tokens: of a step. max_context: of the engine; None is the model's."""

    takes_masks = False

    def __init__(
        self,
        model: Decoder,
        ops: DeviceOps,
        device: Device,
        kv_dtype: torch.dtype,
        *,
        max_num_batched_tokens: int,
        max_context: int | None = None,
    ) -> None:
        config = model.config
        self.vocab_size = config.vocab_size
        self.max_context = min(max_context or config.max_position, config.max_position)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.model, self.ops, self.device, self.kv_dtype = model, ops, device, kv_dtype
        self.num_graphs = 0
        self._cache: list[KvLayer] = []
        self._graphs: dict[GraphKey, Callable[[], None]] = {}
        self._draws: DeviceDraws | None = None

    # --- before the first step ----------------------------------------------------------------------------------------

    def prepare_draws(self, vocab_size: int, max_rows: int) -> None:
        on = self.device.torch_device
        self._logits = torch.zeros((max_rows, self.vocab_size), dtype=torch.float32, device=on)
        table_rows = min(8192, max(64, _TABLE_BYTES // (vocab_size // 8 + 1)))
        self._draws = DeviceDraws(self.device, self.ops, self._logits, vocab_size, table_rows, _TABLE_BYTES)
        self._widths = widths(max_rows)

    def bytes_per_block(self, block_size: int) -> int:
        return block_size * kv_cache.bytes_per_token(self.model.config, self.kv_dtype)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV tensors, and the buffers of a step; CapacityError when the memory cannot be had."""
        self._allocate(num_blocks, block_size)

    def _allocate(self, num_blocks: int, block_size: int) -> None:
        if self._draws is None:
            raise EngineError("allocate was called before prepare_draws")
        on = self.device.torch_device
        self._graphs.clear()  # they read other buffers
        self._block_size = block_size
        self._max_blocks = -(-(self.max_context + 1) // block_size) + 1
        for layer in self.model.layers:
            layer.attention.rope.cover(self.max_context)
        self._cache = kv_cache.make_layers(self.model.config, self.kv_dtype, num_blocks, block_size, on)
        most = max(self.max_num_batched_tokens, self._draws.max_rows)
        sequences = self._draws.max_rows
        num_bytes = GraphKey(most, sequences, 1, self._max_blocks, sequences).layout().num_bytes
        self._inputs = torch.zeros(num_bytes, dtype=torch.uint8, device=on)
        self._staging = StagingRing(self.device, num_bytes)
        self.device.settle()

    def kv_cache_bytes(self, block_size: int, utilization: float) -> int:
        """What the pool may take: see memory.py. CapacityError when not even a block is left."""
        profile = self.profile(block_size, utilization)
        return profile.cache_bytes(self.bytes_per_block(block_size))

    def profile(self, block_size: int, utilization: float) -> MemoryProfile:
        """Runs the largest steps over a cache of one block. Before `allocate`, which makes the real one."""
        self._allocate(1, block_size)
        assert self._draws is not None
        memory = self.device.memory()
        most = max(self.max_num_batched_tokens, self._draws.max_rows)
        step, graph = (
            self._peak(full_batch(most, self._draws.max_rows, self.max_context, block_size, decoding=decoding))
            for decoding in (False, True)
        )
        return MemoryProfile(memory.total, utilization, memory.total - memory.free, step, graph)

    def _peak(self, batch: ForwardBatch) -> int:
        key = own_key(batch)
        self._upload(key, batch, None)
        return self.device.peak_bytes(partial(self._forward, key))

    # --- a step -------------------------------------------------------------------------------------------------------

    def launch(self, batch: ForwardBatch, carried: NDArray[np.int32] | None = None) -> None:
        if not self._cache or self._draws is None:
            raise EngineError("launch was called before allocate")
        found = graph_key(batch, self._widths, self._max_blocks)
        key = own_key(batch) if found is None else found
        self._upload(key, batch, carried)
        if found is None:
            self.device.run(partial(self._forward, key))
            return
        if key not in self._graphs:
            self._graphs[key] = self.device.capture(partial(self._forward, key))
            self.num_graphs += 1
        self._graphs[key]()

    def _upload(self, key: GraphKey, batch: ForwardBatch, carried: NDArray[np.int32] | None) -> None:
        layout, staging = key.layout(), self._staging.take()
        if layout.num_bytes > len(self._inputs):
            raise EngineError(f"a step of {key} needs {layout.num_bytes} bytes, the buffers have {len(self._inputs)}")
        _write(layout.arrays(staging), batch, carried)
        self.device.upload(staging[: layout.num_bytes], self._inputs[: layout.num_bytes])
        self._staging.release(self.device.mark())

    @torch.inference_mode()
    def _forward(self, key: GraphKey) -> None:
        assert self._draws is not None
        inputs = key.layout().tensors(self._inputs)
        carried = inputs["carried"]
        ids = torch.where(carried >= 0, self._draws.tokens.index_select(0, carried.clamp_min(0)), inputs["ids"])
        plan = AttentionPlan(
            query_start=inputs["query_start"],
            context_len=inputs["context_len"],
            block_table=inputs["block_table"],
            slot=inputs["slot"],
            position=inputs["position"],
            block_size=self._block_size,
            max_query_len=key.max_query_len,
        )
        logits = self.model.forward(ids, plan, self._cache, inputs["sampled_rows"])
        self._logits[: key.rows].copy_(logits)

    @property
    def latest_tokens(self) -> Tensor:
        """int32 [rows of a step, at most], on the device: those of the latest draw, where launches find them."""
        if self._draws is None:
            raise EngineError("there are no tokens before prepare_draws")
        return self._draws.tokens

    def draw(self, rows: DeviceRows) -> PendingDraw:
        if self._draws is None:
            raise EngineError("draw was called before prepare_draws")
        return self._draws.draw(rows)

    def holds(self, table: TokenTable) -> bool:
        return self._draws is not None and self._draws.tables.find(table) is not None

    def copy_block(self, source: int, destination: int) -> None:
        self.device.run(partial(self._copy_block, source, destination))

    @torch.inference_mode()
    def _copy_block(self, source: int, destination: int) -> None:
        kv_cache.copy_block(self._cache, source, destination)

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        """The logits of a batch on the host: what drawing on the device spares, for tests and drafts."""
        self.launch(batch)
        assert self._draws is not None
        return self._draws.draw(DeviceRows((None,) * len(batch.sampled_rows), None)).wait().logits


def _write(arrays: dict[str, NDArray[np.int32]], batch: ForwardBatch, carried: NDArray[np.int32] | None) -> None:
    """Lay a batch out in its graph's shape. Padded tokens have no slot; padded sequences have no tokens."""
    num_tokens, num_sequences = len(batch.ids), len(batch.context_len)
    _pad(arrays["ids"], batch.ids, 0)
    _pad(arrays["carried"], carried if carried is not None else np.empty(0, np.int32), -1)
    _pad(arrays["position"], batch.position, 0)
    _pad(arrays["slot"], batch.slot, -1)
    _pad(arrays["query_start"], batch.query_start, num_tokens)
    _pad(arrays["context_len"], batch.context_len, 0)
    _pad(arrays["sampled_rows"], batch.sampled_rows, 0)
    if arrays["sampled_rows"].size == arrays["ids"].size:
        arrays["sampled_rows"][num_tokens:] = np.arange(num_tokens, arrays["ids"].size)
    table = arrays["block_table"]
    table[num_sequences:] = 0
    table[:num_sequences, batch.block_table.shape[1] :] = 0
    table[:num_sequences, : batch.block_table.shape[1]] = batch.block_table


def _pad(array: NDArray[np.int32], values: NDArray[np.int32], rest: int) -> None:
    array[: len(values)] = values
    array[len(values) :] = rest


__all__ = ["GpuRunner"]
