"""What ranks exchange during a forward: a group of their own, gloo or NCCL, and the operations that need it.

Partial sums are gathered and added in the order of the ranks: a ring's sum would depend on where a row lies in the
batch, and a row's value must depend on the row alone.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from safegen.engine.parallel.shard import Shard
from safegen.kernels.api import AttentionPlan, KvLayer, Ops, Weight

Transport = Literal["gloo", "nccl"]
_TIMEOUT = timedelta(minutes=5)  # of one exchange: a rank that hangs is an error


class Group:
    """The ranks of one model. Not torch's default group, which is the application's to use."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._group: Any = None

    def connect(self, meeting_file: str, transport: Transport = "gloo") -> None:
        """Waits for all ranks. meeting_file: a path that all of them give, of no file yet. transport: "gloo" exchanges
        tensors of the host, over loopback alone; "nccl" those of each rank's current CUDA device, in the order of its
        stream, without a wait of the host."""
        distributed: Any = dist  # its stubs leave these names out
        store = distributed.FileStore(meeting_file, self.shard.size)
        if transport == "nccl":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = _TIMEOUT
            make = distributed.ProcessGroupNCCL
        else:
            make = distributed.ProcessGroupGloo
            options = make._Options()
            options._devices = [make.create_device(hostname="127.0.0.1")]
            options._timeout = _TIMEOUT
        self._group = make(store, self.shard.rank, self.shard.size, options)

    def gather(self, x: Tensor) -> list[Tensor]:
        """Every rank's tensor of this shape, in their order. RuntimeError when a rank is gone."""
        if not x.numel():
            return [x] * self.shard.size
        parts = [torch.empty_like(x) for _ in range(self.shard.size)]
        self._group.allgather([parts], [x.contiguous()]).wait()
        return parts

    def share(self, x: Tensor) -> None:
        """Rank 0's numbers, in place in every rank's tensor of this shape."""
        options: Any = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([x], options).wait()

    def sum(self, x: Tensor) -> Tensor:
        first, *others = self.gather(x)
        for other in others:
            first = first + other
        return first


class ParallelOps:
    """`Ops` of a rank: those of a backend, and an exchange after products whose weight is split by inputs or
    vocabulary. vocab_size: of the whole model."""

    def __init__(self, ops: Ops, group: Group, vocab_size: int) -> None:
        self.name = ops.name
        self._ops, self._group, self._vocab_size = ops, group, vocab_size

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        return replace(self._ops.prepare(weight, vocabulary=vocabulary), split=weight.split)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        part = self._ops.linear(x, weight, bias)
        if weight.split == "inputs":
            return self._group.sum(part)
        if weight.split == "vocabulary":
            width = self._group.shard.ids_a_rank(self._vocab_size)
            parts = self._group.gather(F.pad(part, (0, width - part.shape[1])))
            return torch.cat(parts, dim=1)[:, : self._vocab_size].contiguous()
        return part

    def embedding(self, ids: Tensor, weight: Weight) -> Tensor:
        start, stop = self._group.shard.ids(self._vocab_size)
        is_here = (ids >= start) & (ids < stop)
        rows = self._ops.embedding((ids - start).where(is_here, torch.zeros_like(ids)), weight)
        return self._group.sum(rows.where(is_here[:, None], torch.zeros_like(rows)))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._ops.rms_norm(x, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
        return self._ops.rope(x, cos, sin, position, interleaved)

    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        self._ops.kv_write(key, value, cache, plan)

    def paged_attention(
        self,
        q: Tensor,
        cache: KvLayer,
        plan: AttentionPlan,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        return self._ops.paged_attention(q, cache, plan, scale=scale, window=window, softcap=softcap)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._ops.silu_mul(gate, up)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return self._ops.softcap(x, cap)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._ops.gelu_mul(gate, up)


__all__ = ["Group", "ParallelOps", "Transport"]
