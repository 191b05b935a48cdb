"""What the engine's runner needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from safegen.engine.models.config import ModelConfig
from safegen.kernels.api import AttentionPlan, KvLayer

# Packed words of legal ids, int32 [rows, ceil(vocabulary / 32)], and the rows that they count for, bool [rows]. Where
# one id alone is legal, not even its logit is wanted.
LogitMasks = tuple[Tensor, Tensor]


class Model(Protocol):
    """A loaded decoder. Only the engine thread calls it; between calls it keeps its weights and its rope tables."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(
        self,
        ids: Tensor,
        plan: AttentionPlan,
        cache: Sequence[KvLayer],
        sampled_rows: Tensor,
        masks: LogitMasks | None = None,
    ) -> Tensor:
        """One step over the packed tokens of all sequences; writes their keys and values into the cache.

        ids: int [tokens]. cache: one entry a layer. sampled_rows: int [rows], indices into the tokens. masks: which
        logits are wanted; the others may be -inf. Returns fp32 logits [rows, vocab_size] of those tokens alone.
        """
        ...


__all__ = ["LogitMasks", "Model"]
