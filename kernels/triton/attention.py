"""Causal attention over the paged cache: decode, verified drafts and chunks of prompts, by one kernel.

The method is FlashAttention-2 (Dao, arXiv 2307.08691): a program holds a tile of query rows, walks over tiles of keys
and values, and keeps for each row a running maximum, a running sum and an unnormalised output, so scores never leave
the processor. All query heads that share a key head lie in one tile (rows are query tokens x group), so the cache is
read once a group; a tile's rows are tokens of one sequence. Which tokens a program has is found by a binary search in
query_start, on the device: sequences with one token (decode), with some (verified drafts), with many (chunks) and with
none may share a launch.

Where that gives too few programs to fill the processors, the keys are split among several (FlashDecoding: Dao, Haziza,
Massa, Sizov, 2023): each leaves maximum, sum and output of its share, and a second kernel joins the shares in order.
Tiles and splits begin at multiples of fixed numbers, counted from position 0, and a tile that a row does not see leaves
its numbers unchanged bit by bit; so what a row gets depends on the tile's shape and the split's length alone.
`deterministic=True` fixes both by the model's shapes; else short and long query runs, small and large batches, each get
the shape that is fast for them.

Keys and values in int8 or fp8 become fp16 or bf16 without a loss; a key's scale multiplies its score, a value's scale
its weight, relative to the tile's largest scale so that nothing underflows in fp16.

Shapes: q: [tokens, heads, head_dim], heads side by side in memory. Rows past query_start[-1] (the padding of a captured
graph) are left undefined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.triton.elementwise import tanh_fp32
from safegen.kernels.triton.kv_write import cache_kind
from safegen.kernels.triton.runtime import contiguous_rows, num_processors, power_of_two, upcasts

_PROGRAMS_A_PROCESSOR = 4  # that a decode launch aims at: enough loads in flight to fill the memory's bandwidth
_LEAST_SPLIT_TOKENS = 256
_MOST_SPLITS = 64
_FIXED_SPLIT_TOKENS = 1024  # of deterministic launches


@triton.jit
def sequence_of(query_start, q_block, num_sequences, BLOCK_Q: tl.constexpr):
    """The last sequence whose first tile is at most q_block. Sequence s begins at tile query_start[s] // BLOCK_Q + s:
    room for all its tiles, known without a look at the sequences before it."""
    low = q_block * 0  # not the number 0: a single sequence would leave it one, and no tensor
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // BLOCK_Q + middle <= q_block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def attention_kernel(
    q, key, value, key_scale, value_scale, query_start, position, block_table,
    out, shares, maxima, sums,
    num_sequences, scale, cap, window, split_tokens, num_splits, q_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KEY_RUN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_SPLITS: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid: query tiles, kv_heads, splits. One tile: BLOCK_M // GROUP query tokens of a sequence, with all heads of a
    group. shares: fp32 [tokens, heads, splits, dim]; maxima, sums: fp32 [tokens, heads, splits]."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    HEADS: tl.constexpr = KV_HEADS * GROUP
    q_block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = sequence_of(query_start, q_block, num_sequences, BLOCK_Q)
    first_token = tl.load(query_start + sequence)
    num_queries = tl.load(query_start + sequence + 1) - first_token
    first_query = (q_block - (first_token // BLOCK_Q + sequence)) * BLOCK_Q
    if first_query >= num_queries:
        return
    row = tl.arange(0, BLOCK_M)
    query = first_query + row // GROUP
    is_row = (query < num_queries) & (row < BLOCK_Q * GROUP)
    token = (first_token + query).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    at = tl.load(position + token, mask=is_row, other=-1)

    # The keys that some row of the tile sees, cut to this split; their tiles begin at multiples of BLOCK_N.
    end = tl.minimum(tl.max(at) + 1, (split + 1) * split_tokens)
    begin = split * split_tokens
    if HAS_WINDOW:
        oldest = tl.min(tl.where(is_row, at, 2147483647))
        begin = tl.maximum(begin, oldest - window + 1)
    if begin >= end:
        return
    begin = (begin // BLOCK_N) * BLOCK_N

    dim = tl.arange(0, BLOCK_DIM)
    q_at = q + token[:, None] * q_stride + head[:, None] * DIM + dim[None, :]
    if BLOCK_DIM == DIM:
        queries = tl.load(q_at, mask=is_row[:, None], other=0.0)
    else:
        queries = tl.load(q_at, mask=is_row[:, None] & (dim < DIM)[None, :], other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_DIM], tl.float32)
    table = block_table + sequence.to(tl.int64) * table_stride
    for start in range(begin, end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        n = start + tl.arange(0, BLOCK_N)
        is_key = n < end
        # A key past the end is read from block 0 and never counts: a mask along the keys would forbid wide loads.
        block = tl.load(table + n // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        head_row = block * KV_HEADS + kv_head
        key_at = head_row * (DIM * BLOCK_SIZE) + n % BLOCK_SIZE
        if KEY_RUN > 1:
            key_at = tl.max_contiguous(tl.multiple_of(key_at, [KEY_RUN]), [KEY_RUN])
        if BLOCK_DIM == DIM:
            keys = tl.load(key + key_at[None, :] + dim[:, None] * BLOCK_SIZE)
        else:
            keys = tl.load(key + key_at[None, :] + dim[:, None] * BLOCK_SIZE, mask=(dim < DIM)[:, None], other=0.0)
        scores = tl.dot(queries, keys.to(queries.dtype), input_precision="ieee") * scale
        if HAS_SCALES:
            scores *= tl.load(key_scale + head_row * BLOCK_SIZE + n % BLOCK_SIZE, mask=is_key, other=0.0)[None, :]
        if HAS_CAP:
            scores = cap * tanh_fp32(scores / cap)
        seen = is_key[None, :] & (n[None, :] <= at[:, None])
        if HAS_WINDOW:
            seen = seen & (n[None, :] > at[:, None] - window)
        scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))

        higher = tl.maximum(highest, tl.max(scores, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        value_at = (head_row * BLOCK_SIZE + n % BLOCK_SIZE) * DIM
        if BLOCK_DIM == DIM:
            values = tl.load(value + value_at[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
        else:
            within = is_key[:, None] & (dim < DIM)[None, :]
            values = tl.load(value + value_at[:, None] + dim[None, :], mask=within, other=0.0)
        if HAS_SCALES:
            sizes = tl.load(value_scale + head_row * BLOCK_SIZE + n % BLOCK_SIZE, mask=is_key, other=0.0)
            size = tl.max(sizes)
            size = tl.where(size > 0.0, size, 1.0)
            weights = tl.where(seen, weights * (sizes / size)[None, :], 0.0)
            part = tl.dot(weights.to(queries.dtype), values.to(queries.dtype), input_precision="ieee") * size
        else:
            part = tl.dot(weights.to(queries.dtype), values.to(queries.dtype), input_precision="ieee")
        mixed = mixed * shrink[:, None] + part
        highest = higher

    is_out = is_row[:, None] & (dim < DIM)[None, :]
    if not HAS_SPLITS:
        mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        out_at = out + (token * HEADS + head)[:, None] * DIM + dim[None, :]
        tl.store(out_at, mixed.to(out.dtype.element_ty), mask=is_out)
    else:
        share = (token * HEADS + head) * num_splits + split
        tl.store(shares + share[:, None] * DIM + dim[None, :], mixed, mask=is_out)
        tl.store(maxima + share, highest, mask=is_row)
        tl.store(sums + share, total, mask=is_row)


@triton.jit
def join_kernel(
    shares, maxima, sums, query_start, position, out, num_sequences, window, split_tokens, num_splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Joins the shares of one row, those of the splits it sees, in their order. Grid: tokens, heads."""
    token = tl.program_id(0)
    if token >= tl.load(query_start + num_sequences):
        return
    at = tl.load(position + token)
    row = token.to(tl.int64) * HEADS + tl.program_id(1)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(at - window + 1, 0) // split_tokens
    dim = tl.arange(0, BLOCK_DIM)
    highest = float("-inf")
    total = 0.0
    mixed = tl.zeros([BLOCK_DIM], tl.float32)
    for split in range(begin, at // split_tokens + 1):
        share = row * num_splits + split
        higher = tl.maximum(highest, tl.load(maxima + share))
        shrink = tl.exp2(highest - higher)
        grow = tl.exp2(tl.load(maxima + share) - higher)
        total = total * shrink + tl.load(sums + share) * grow
        mixed = mixed * shrink + tl.load(shares + share * DIM + dim, mask=dim < DIM, other=0.0) * grow
        highest = higher
    tl.store(out + row * DIM + dim, (mixed / total).to(out.dtype.element_ty), mask=dim < DIM)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The shape of a launch. block_m: rows of a tile, query tokens x group. block_n: keys of a tile. split_tokens: keys
    of a split, a multiple of block_n; num_splits: of the longest table."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    split_tokens: int = 0
    num_splits: int = 1


def attention_tile(head_dim: int, group: int, max_query_len: int | None, scaled: bool) -> AttentionTile:
    """The tile for query runs of up to that length (None: unknown), without splits. scaled: an int8 or fp8 cache.

    Few rows (decode, short drafts) fill one instruction's height, and more stages of keys are in flight; many rows take
    more warps, and so do scales and heads of more than 128 dimensions, which take registers: each shape compiles for
    sm_80, sm_89 and sm_90 without spilling one.
    """
    least = power_of_two(group, 16)
    rows = least if max_query_len is None else max_query_len * group
    tall = head_dim > 128
    if rows <= least and max_query_len is not None:
        if tall or scaled:
            return AttentionTile(least, 32, num_warps=8, num_stages=2 if tall else 3)
        return AttentionTile(least, 64, num_warps=4, num_stages=3)
    if rows <= 32 and max_query_len is not None:
        return AttentionTile(max(least, 32), 32 if tall else 64, num_warps=8, num_stages=2)
    if tall and scaled:
        return AttentionTile(max(least, 32), 32, num_warps=8, num_stages=2)
    return AttentionTile(max(least, 64), 32 if tall or scaled else 64, num_warps=8, num_stages=2)


def fixed_tile(head_dim: int, group: int, scaled: bool, max_context: int) -> AttentionTile:
    """The deterministic launch: that of decode with splits of a fixed length, whatever is in the batch."""
    return _split(attention_tile(head_dim, group, 1, scaled), _FIXED_SPLIT_TOKENS, max_context)


def _split(tile: AttentionTile, split_tokens: int, max_context: int) -> AttentionTile:
    return replace(tile, split_tokens=split_tokens, num_splits=max(1, triton.cdiv(max_context, split_tokens)))


def launch_tile(tile: AttentionTile, max_context: int, num_programs: int, num_sms: int) -> AttentionTile:
    """The fast launch: splits only where the tiles alone (num_programs) leave processors idle."""
    wanted = triton.cdiv(_PROGRAMS_A_PROCESSOR * num_sms, max(num_programs, 1))
    splits = max(1, min(wanted, _MOST_SPLITS, max_context // _LEAST_SPLIT_TOKENS))
    split_tokens = triton.cdiv(triton.cdiv(max(max_context, 1), splits), tile.block_n) * tile.block_n
    return _split(tile, split_tokens, max_context)


def paged_attention(
    q: Tensor,
    cache: KvLayer,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    tile: AttentionTile | None = None,
) -> Tensor:
    """As `Ops.paged_attention`. tile: a launch of the caller's own choice (tests, tuning)."""
    tokens, heads, dim = q.shape
    kv_heads, block_size = cache.value.shape[1], cache.value.shape[2]
    _check(q, cache, window, softcap)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    sequences = plan.block_table.shape[0]
    if not tokens or not sequences:
        return out
    group, max_context = heads // kv_heads, plan.block_table.shape[1] * block_size
    scaled = cache.key_scale is not None
    if tile is None and deterministic:
        tile = fixed_tile(dim, group, scaled, max_context)
    elif tile is None:
        tile = attention_tile(dim, group, plan.max_query_len, scaled)
        programs = (tokens // (tile.block_m // group) + sequences) * kv_heads
        tile = launch_tile(tile, max_context, programs, num_processors(q.device))
    _launch(q, cache, plan, out, tile, scale, window, softcap)
    return out


def _launch(
    q: Tensor, cache: KvLayer, plan: AttentionPlan, out: Tensor, tile: AttentionTile,
    scale: float, window: int | None, softcap: float | None,
) -> None:  # fmt: skip
    (tokens, heads, dim), (_, kv_heads, block_size, _) = q.shape, cache.value.shape
    sequences, group, splits = plan.block_table.shape[0], heads // kv_heads, tile.num_splits
    split_tokens = tile.split_tokens if splits > 1 else 1 << 30
    shares = maxima = sums = out
    if splits > 1:
        shares = torch.empty((tokens, heads, splits, dim), dtype=torch.float32, device=q.device)
        maxima, sums = torch.empty((2, tokens, heads, splits), dtype=torch.float32, device=q.device)
    scales = (cache.key, cache.value) if cache.key_scale is None else (cache.key_scale, cache.value_scale)
    attention_kernel[(tokens // (tile.block_m // group) + sequences, kv_heads, splits)](
        q, cache.key, cache.value, *scales, plan.query_start, plan.position, plan.block_table,
        out, shares, maxima, sums,
        sequences, scale, softcap or 1.0, window or 0, split_tokens, splits, q.stride(0), plan.block_table.stride(0),
        KV_HEADS=kv_heads, GROUP=group, DIM=dim, BLOCK_DIM=power_of_two(dim, 16), BLOCK_SIZE=block_size,
        KEY_RUN=key_run(block_size), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, HAS_SPLITS=splits > 1,
        HAS_SCALES=cache.key_scale is not None, HAS_WINDOW=window is not None, HAS_CAP=softcap is not None,
        UPCAST=upcasts(q.dtype), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if splits > 1:
        join_kernel[(tokens, heads)](
            shares, maxima, sums, plan.query_start, plan.position, out, sequences, window or 0, split_tokens, splits,
            HEADS=heads, DIM=dim, BLOCK_DIM=power_of_two(dim, 16), HAS_WINDOW=window is not None, num_warps=1,
        )  # fmt: skip


def key_run(block_size: int) -> int:
    """How many neighbouring keys a load may take at once: the power of two that divides a block, at most 16."""
    return min(16, block_size & -block_size)


def _check(q: Tensor, cache: KvLayer, window: int | None, softcap: float | None) -> None:
    heads, dim = q.shape[1:]
    kv_heads = cache.value.shape[1]
    cache_kind(cache)
    contiguous_rows(q, "q")
    if dim != cache.value.shape[3] or heads % kv_heads:
        raise ValueError(f"q: [tokens, {heads}, {dim}] does not fit {kv_heads} heads of {cache.value.shape[3]}")
    if q.numel() and q.stride(1) != dim and heads > 1:
        raise ValueError(f"q: heads must lie side by side, got strides {q.stride()}")
    if window is not None and window < 1:
        raise ValueError(f"window: must be at least 1, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: must be positive, got {softcap}")


__all__ = ["AttentionTile", "attention_tile", "fixed_tile", "key_run", "launch_tile", "paged_attention"]
