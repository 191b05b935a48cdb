"""The reference kernels as a GPU would have them: each one launch, over padded tokens, reading nothing back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, FsmRows, KvLayer, RowSettings
from safegen.kernels.reference import ReferenceOps, fsm, sampling
from tests.support.fake_device import kernel


class GraphOps(ReferenceOps):
    """`DeviceOps` on the CPU. Padded tokens of attention become NaN, which must reach nobody."""

    name = "graph"

    @kernel
    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        super().kv_write(key, value, cache, plan)

    @kernel
    def paged_attention(self, q: Tensor, cache: KvLayer, plan: AttentionPlan, **options: Any) -> Tensor:
        starts = plan.query_start.tolist()
        longest = max(stop - start for start, stop in zip(starts, starts[1:]))
        assert plan.max_query_len is not None and longest <= plan.max_query_len
        output = super().paged_attention(q, cache, plan, **options)
        output[starts[-1] :] = torch.nan
        return output

    @kernel
    def sample(
        self, logits: Tensor, words: Tensor, mask_rows: Tensor, settings: RowSettings, vocab_size: int
    ) -> tuple[Tensor, Tensor]:
        tokens, faults, _ = sampling.sample(logits, words, mask_rows, settings, vocab_size)
        return tokens, faults

    @kernel
    def fsm_mask_rows(self, state: Tensor, rows: FsmRows, mask_rows: Tensor) -> Tensor:
        return fsm.fsm_mask_rows(state, rows, mask_rows)

    @kernel
    def fsm_advance(self, state: Tensor, tokens: Tensor, rows: FsmRows, classes: Tensor, targets: Tensor) -> Tensor:
        return fsm.fsm_advance(state, tokens, rows, classes, targets)


__all__ = ["GraphOps"]
