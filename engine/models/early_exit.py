"""The first layers of a model, then its final norm and head: a small model inside the large one, without a checkpoint.

Its keys and values are those that the whole model writes in these layers for the same tokens, so it shares the whole
model's cache: what it reads there is right, and what it writes there the whole model writes again, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from safegen.engine.models.base import LogitMasks, Model
from safegen.engine.models.config import ModelConfig
from safegen.engine.models.layers import Decoder
from safegen.engine.models.native import NativeDecoder
from safegen.kernels.api import AttentionPlan, KvLayer


class EarlyExit:
    """`Model` of the first num_layers of a decoder, over the whole decoder's cache. Raises ValueError for a number of
    layers that it has not."""

    def __init__(self, model: Model, num_layers: int) -> None:
        if not isinstance(model, Decoder | NativeDecoder):
            raise ValueError(f"{type(model).__name__} has no layers to stop after")
        if not 1 <= num_layers <= model.config.num_layers:
            raise ValueError(f"num_layers={num_layers}: the model has {model.config.num_layers}")
        self.config: ModelConfig = model.config
        self.num_layers = num_layers
        self._native = model if isinstance(model, NativeDecoder) else None
        self._readable = replace(model, layers=model.layers[:num_layers]) if isinstance(model, Decoder) else None

    def forward(
        self,
        ids: Tensor,
        plan: AttentionPlan,
        cache: Sequence[KvLayer],
        sampled_rows: Tensor,
        masks: LogitMasks | None = None,
    ) -> Tensor:
        if self._readable is not None:
            return self._readable.forward(ids, plan, cache[: self.num_layers], sampled_rows, masks)
        assert self._native is not None
        return self._native.forward(ids, plan, cache, sampled_rows, masks, self.num_layers)


__all__ = ["EarlyExit"]
