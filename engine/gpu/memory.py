"""How much of a device's memory is left for the KV cache, measured before the first request.

    left = utilization * total - in use - peak of the largest step - peak of the widest graph

"In use" is what nobody else may have: weights, the step's buffers, other processes. The largest step is a prompt of
`max_num_batched_tokens` tokens, run once for its peak; graphs keep what they make in memory of their own, at most what
the widest of them takes, since all share one pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from safegen.engine.backend import ForwardBatch
from safegen.errors import CapacityError

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """All in bytes. utilization: the share of the total that the engine may take, 0 to 1."""

    total: int
    utilization: float
    in_use: int
    step_peak: int
    graph_peak: int

    @property
    def left(self) -> int:
        return int(self.utilization * self.total) - self.in_use - self.step_peak - self.graph_peak

    def cache_bytes(self, block_bytes: int) -> int:
        """What the KV cache may take. CapacityError, with the arithmetic, when that is not even a block."""
        if self.left < block_bytes:
            raise CapacityError(
                f"no memory is left for the KV cache: {self.arithmetic()}; one block takes {block_bytes} bytes. "
                f"Fix: raise gpu_memory_utilization, lower max_num_batched_tokens or max_num_seqs, quantize the "
                f"weights, or free the device of other processes."
            )
        return self.left

    def arithmetic(self) -> str:
        return (
            f"gpu_memory_utilization={self.utilization:g} of {_gib(self.total)} is "
            f"{_gib(int(self.utilization * self.total))}, less {_gib(self.in_use)} in use, {_gib(self.step_peak)} for "
            f"the largest step and {_gib(self.graph_peak)} for graphs leaves {_gib(self.left)}"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"


def full_batch(num_tokens: int, num_rows: int, max_context: int, block_size: int, *, decoding: bool) -> ForwardBatch:
    """A step as large as they come, none of whose tokens is written: prompts of max_context tokens, all of whose blocks
    are block 0; or, decoding, num_rows sequences at the end of their context."""
    lengths = [1] * num_rows if decoding else _cut(num_tokens, max_context)
    contexts = [max_context] * num_rows if decoding else lengths
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    position = np.concatenate([np.arange(c - n, c) for n, c in zip(lengths, contexts)]).astype(np.int32)
    num_tokens = int(starts[-1])
    return ForwardBatch(
        step_id=0,
        ids=np.zeros(num_tokens, np.int32),
        position=position,
        slot=np.full(num_tokens, -1, np.int32),
        query_start=starts,
        context_len=np.array(contexts, np.int32),
        block_table=np.zeros((len(lengths), -(-max(contexts) // block_size)), np.int32),
        sampled_rows=np.arange(min(num_rows, num_tokens), dtype=np.int32),
        block_size=block_size,
    )


def _cut(num_tokens: int, max_context: int) -> list[int]:
    whole, rest = divmod(num_tokens, max_context)
    return [max_context] * whole + ([rest] if rest else [])


__all__ = ["MemoryProfile", "full_batch"]
