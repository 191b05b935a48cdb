"""Which drafted tokens become output, on the device: the rule of `engine/speculate/verify.py`, a sequence a program.

A sequence has one row for each drafted token and one more; every row has been drawn from its law by the sampler. A
one-hot draft x passes iff the row's token is x, and the row's token is the output in any case. A sampled draft passes
iff coin * q(x) < p(x), strictly; else the output is drawn from max(0, p - q), and from p itself where rounding leaves
nothing of that. The first row whose output is not its draft is the last one used; a sequence whose drafts all pass
also outputs its last row's token.

Rows of a sequence are looked at in order, since each decides whether the next counts; only a rejected sampled draft
takes passes over the vocabulary, at most one such draft a sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.triton.runtime import contiguous_rows
from safegen.kernels.triton.sampling import _NO_ID, sample_tile


@triton.jit
def residual(row_probs, row_drafts, start, vocab_size, whole_law, TILE: tl.constexpr):
    """Ids from `start`, and max(0, p - q) of them, or p where whole_law; float64."""
    ids = start + tl.arange(0, TILE)
    p = tl.load(row_probs + ids, mask=ids < vocab_size, other=0.0).to(tl.float64)
    q = tl.load(row_drafts + ids, mask=ids < vocab_size, other=0.0).to(tl.float64)
    return ids, tl.where(whole_law, p, tl.maximum(p - q, 0.0))


@triton.jit
def residual_draw(row_probs, row_drafts, vocab_size, uniform, TILE: tl.constexpr):
    sums = tl.zeros([TILE], tl.float64)
    all_sums = tl.zeros([TILE], tl.float64)
    for start in range(0, vocab_size, TILE):
        ids, rest = residual(row_probs, row_drafts, start, vocab_size, False, TILE)
        sums += rest
        ids, p = residual(row_probs, row_drafts, start, vocab_size, True, TILE)
        all_sums += p
    total = tl.sum(sums)
    whole_law = total <= 0.0
    total = tl.where(whole_law, tl.sum(all_sums), total)
    wanted = uniform * total
    so_far = total * 0.0
    last = tl.full([], 0, tl.int32)
    chosen = last + _NO_ID
    for start in range(0, vocab_size, TILE):
        if chosen == _NO_ID:
            ids, rest = residual(row_probs, row_drafts, start, vocab_size, whole_law, TILE)
            reached = so_far + tl.cumsum(rest, axis=0)
            chosen = tl.min(tl.where((rest > 0.0) & (reached > wanted), ids, _NO_ID))
            last = tl.maximum(last, tl.max(tl.where(rest > 0.0, ids, 0)))
            so_far += tl.sum(rest)
    return tl.where(chosen == _NO_ID, last, chosen)


@triton.jit
def verify_kernel(
    drawn, drafts, query_start, probs, draft_probs, is_sampled, coin, uniform, output, counts, vocab_size,
    probs_stride, draft_stride, TILE: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    first = tl.load(query_start + sequence)
    end = tl.load(query_start + sequence + 1)
    used = first
    going = first < end
    while going:
        row = used.to(tl.int64)
        token = tl.load(drawn + row)
        draft = tl.load(drafts + row)
        is_draft = used + 1 < end
        if is_draft & (tl.load(is_sampled + row) != 0):
            p = tl.load(probs + row * probs_stride + draft).to(tl.float64)
            q = tl.load(draft_probs + row * draft_stride + draft).to(tl.float64)
            if tl.load(coin + row) * q < p:
                token = draft
            else:
                token = residual_draw(
                    probs + row * probs_stride,
                    draft_probs + row * draft_stride,
                    vocab_size,
                    tl.load(uniform + row),
                    TILE,
                )
        tl.store(output + row, token)
        used += 1
        going = is_draft & (token == draft)
    tl.store(counts + sequence, used - first)


def verify(
    drawn: Tensor, drafts: Tensor, query_start: Tensor, probs: Tensor, draft_probs: Tensor, is_sampled: Tensor,
    coin: Tensor, uniform: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """drawn, drafts: int32 [rows], each row's own token and the drafted one (of a sequence's last row: anything).
    query_start: int32 [sequences + 1]. probs, draft_probs: fp32 [rows, vocabulary], p and q; read where is_sampled:
    int32 [rows]. coin, uniform: float64 [rows].

    -> output: int32 [rows], of each sequence its first counts[sequence] rows; counts: int32 [sequences].
    """
    contiguous_rows(probs, "probs"), contiguous_rows(draft_probs, "draft_probs")
    sequences, vocab_size = len(query_start) - 1, probs.shape[1]
    output = torch.zeros_like(drawn)
    counts = torch.empty(sequences, dtype=torch.int32, device=drawn.device)
    if sequences:
        verify_kernel[(sequences,)](
            drawn, drafts, query_start, probs, draft_probs, is_sampled, coin, uniform, output, counts, vocab_size,
            probs.stride(0), draft_probs.stride(0), TILE=sample_tile(vocab_size), num_warps=8,
        )  # fmt: skip
    return output, counts


__all__ = ["verify"]
