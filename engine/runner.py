"""The backend over a real model: KV tensors, and the step's integers turned into the tensors that models take.

The cache is one pair of tensors a layer, [blocks, block_size, kv_heads, head_dim], made once and zeroed by the
operating system as pages are touched, so an idle pool costs address space rather than memory. Keys and values are kept
in float32: the CPU kernels compute in it, and nothing is rounded between a chunk and the next.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from safegen.engine import capacity
from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.models.base import Model
from safegen.engine.models.loader import load_model
from safegen.errors import CapacityError, EngineError
from safegen.kernels.api import AttentionPlan, KvLayer, Ops
from safegen.kernels.api import ops as named_ops

_KV_DTYPE = torch.float32

# A forked child has none of the threads that torch believes in, and would wait for them forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


class ModelRunner:
    """`Backend` over a Model. ops: the kernels that the model computes with."""

    takes_masks = True

    def __init__(self, model: Model, ops: Ops) -> None:
        config = model.config
        self.vocab_size = config.vocab_size
        self.max_context = config.max_position
        self._model = model
        self._ops = ops
        self._cache: list[KvLayer] = []

    @classmethod
    def load(cls, path: str | Path, kernels: str) -> ModelRunner:
        """A model file or folder on the kernels of that name ("cpu" or "reference"). Raises ModelLoadError."""
        ops = named_ops(kernels)
        return cls(load_model(path, ops), ops)

    def bytes_per_block(self, block_size: int) -> int:
        config = self._model.config
        return block_size * capacity.bytes_per_token(
            config.num_layers, config.num_kv_heads, config.head_dim, _KV_DTYPE.itemsize
        )

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV tensors; CapacityError when the memory cannot be had."""
        config = self._model.config
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        try:
            self._cache = [KvLayer(_untouched_zeros(shape), _untouched_zeros(shape)) for _ in range(config.num_layers)]
        except (MemoryError, RuntimeError) as exc:
            wanted = num_blocks * self.bytes_per_block(block_size)
            raise CapacityError(
                f"{wanted} bytes for {num_blocks} KV blocks cannot be allocated. Fix: lower kv_cache_memory."
            ) from exc

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        if not self._cache:
            raise EngineError("forward was called before allocate")
        plan = AttentionPlan(
            query_start=torch.from_numpy(batch.query_start),
            context_len=torch.from_numpy(batch.context_len),
            block_table=torch.from_numpy(batch.block_table),
            slot=torch.from_numpy(batch.slot),
            position=torch.from_numpy(batch.position),
            block_size=batch.block_size,
        )
        sampled_rows = torch.from_numpy(batch.sampled_rows)
        logits = self._model.forward(torch.from_numpy(batch.ids), plan, self._cache, sampled_rows)
        if logits.dtype != torch.float32:
            raise EngineError(f"the model gave {logits.dtype} logits with kernels {self._ops.name!r}; float32 is due")
        array: NDArray[np.float32] = logits.numpy()
        return array

    @torch.inference_mode()
    def copy_block(self, source: int, destination: int) -> None:
        for layer in self._cache:
            layer.key[destination] = layer.key[source]
            layer.value[destination] = layer.value[source]


def _untouched_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros whose pages the operating system makes when they are touched. (torch.zeros writes them all.)"""
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))
