"""What the engine's runner needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from safegen.engine.models.config import ModelConfig
from safegen.kernels.api import AttentionPlan, KvLayer


class Model(Protocol):
    """A loaded decoder. Only the engine thread calls it; between calls it keeps its weights and its rope tables."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, ids: Tensor, plan: AttentionPlan, cache: Sequence[KvLayer], sampled_rows: Tensor) -> Tensor:
        """One step over the packed tokens of all sequences; writes their keys and values into the cache.

        ids: int [tokens]. cache: one entry a layer. sampled_rows: int [rows], indices into the tokens. Returns fp32
        logits [rows, vocab_size] of those tokens alone.
        """
        ...


__all__ = ["Model"]
