"""The backend over a real model: KV tensors, and the step's integers turned into the tensors that models take."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from safegen.engine import kv_cache
from safegen.engine.backend import AheadDraws, ForwardAhead, ForwardBatch, RowMasks
from safegen.engine.config import KvCacheDtype
from safegen.engine.models.base import Model
from safegen.engine.models.early_exit import EarlyExit
from safegen.engine.models.loader import load_model
from safegen.engine.models.native import NativeDecoder, fused
from safegen.errors import EngineError
from safegen.kernels.api import AttentionPlan, KvLayer, Ops, Quantization
from safegen.kernels.api import ops as named_ops

# A forked child has none of the threads that torch believes in, and would wait for them forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


class ModelRunner:
    """`Backend` over a Model. ops: the kernels that the model computes with. kv_cache_dtype: of the KV tensors."""

    takes_masks = True

    def __init__(self, model: Model, ops: Ops, kv_cache_dtype: KvCacheDtype = "auto") -> None:
        config = model.config
        self.vocab_size = config.vocab_size
        self.max_context = config.max_position
        self._model = model
        self._ops = ops
        self._kv_dtype = kv_cache.resolve_dtype(kv_cache_dtype, ops.name)
        self._cache: list[KvLayer] = []

    @classmethod
    def load(
        cls,
        path: str | Path,
        kernels: str,
        kv_cache_dtype: KvCacheDtype = "auto",
        quantization: Quantization | None = None,
    ) -> ModelRunner:
        """A model file or folder on the kernels of that name ("cpu" or "reference").

        quantization: of float weights, on load. Raises ModelLoadError, and ValueError for kernels that lack it.
        """
        ops = named_ops(kernels, quantization)
        return cls(fused(load_model(path, ops)), ops, kv_cache_dtype)

    def bytes_per_block(self, block_size: int) -> int:
        return block_size * kv_cache.bytes_per_token(self._model.config, self._kv_dtype)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV tensors; CapacityError when the memory cannot be had."""
        self._cache = kv_cache.make_layers(self._model.config, self._kv_dtype, num_blocks, block_size)

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        if isinstance(self._model, NativeDecoder) and self._cache:
            return self._model.forward_batch(batch, self._cache, masks)
        return self._compute(self._model, batch, masks)

    def maxima_of(self, logits: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """As KnowsMaxima has it."""
        return self._model.maxima_of(logits) if isinstance(self._model, NativeDecoder) else None

    def early_exit(self, num_layers: int) -> Callable[[ForwardBatch, RowMasks | None], NDArray[np.float32]]:
        """A forward that stops after the first num_layers and writes into their cache alone (models/early_exit.py).
        Raises ValueError for a number of layers that the model has not."""
        return partial(self._compute, EarlyExit(self._model, num_layers))

    @property
    def num_layers(self) -> int:
        return self._model.config.num_layers

    @torch.inference_mode()
    def _compute(self, model: Model, batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
        if not self._cache:
            raise EngineError("forward was called before allocate")
        plan = AttentionPlan(
            query_start=torch.from_numpy(batch.query_start),
            context_len=torch.from_numpy(batch.context_len),
            block_table=torch.from_numpy(batch.block_table),
            slot=torch.from_numpy(batch.slot),
            position=torch.from_numpy(batch.position),
            block_size=batch.block_size,
            max_query_len=int(np.diff(batch.query_start).max(initial=0)),
        )
        sampled_rows = torch.from_numpy(batch.sampled_rows)
        wanted = None if masks is None else (torch.from_numpy(masks.words), torch.from_numpy(masks.restricted))
        logits = model.forward(torch.from_numpy(batch.ids), plan, self._cache, sampled_rows, wanted)
        if logits.dtype != torch.float32:
            raise EngineError(f"the model gave {logits.dtype} logits with kernels {self._ops.name!r}; float32 is due")
        array: NDArray[np.float32] = logits.numpy()
        return array

    @property
    def forward_ahead(self) -> ForwardAhead | None:
        """Several steps in one call, as ForwardAhead has it; None for a model that is not one native call."""
        return self._forward_ahead if isinstance(self._model, NativeDecoder) else None

    @torch.inference_mode()
    def _forward_ahead(self, batch: ForwardBatch, draws: AheadDraws) -> tuple[list[list[int]], NDArray[np.float32]]:
        if not self._cache:
            raise EngineError("forward_ahead was called before allocate")
        assert isinstance(self._model, NativeDecoder)
        ids, logits = self._model.forward_ahead(batch, self._cache, draws)
        array: NDArray[np.float32] = logits.numpy()
        return ids, array

    @torch.inference_mode()
    def copy_block(self, source: int, destination: int) -> None:
        kv_cache.copy_block(self._cache, source, destination)
