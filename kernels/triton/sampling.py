"""Draws tokens: mask, temperature, top-k, top-p, min-p and the inverse of the cumulative law, a row a program.

The law is that of `engine/logits.py` and `engine/sampler.py`: ids that the mask forbids never count, where one id is
legal its logit is not read, ties go to the lowest id, the nucleus is the smallest set of highest weights whose share is
at least top_p, and the token is the first whose cumulative weight exceeds u of the whole. Weights are fp32, sums
float64; so a draw differs from the float64 law's only where u, or the edge of a cut, lies within 1e-6 of a boundary.
Sums run in an order that depends on the vocabulary alone.

The cuts need no sort. A set of highest scores is a threshold and, among ids of the threshold's own score, the last id
that is in. The threshold of top-k (by count) and of top-p (by weight) is found by bisection over the bits of fp32,
whose order is that of the numbers: at most 32 passes over a row, which lies in the cache after the first. A row without
a cut takes three passes, a greedy one takes one.

A row that has no token gets a fault instead, as in `kernels/sampling.py`: 1 the mask is empty, 2 every legal logit is
-infinity, 3 a legal logit is NaN or the highest is infinite.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.api import RowSettings
from safegen.kernels.triton.rng import philox_uniform
from safegen.kernels.triton.runtime import contiguous_rows, power_of_two

_WIDEST_TILE = 4096
_NO_ID: tl.constexpr = tl.constexpr(2147483647)
_LOWEST_KEY: tl.constexpr = tl.constexpr(-2147483648)


@triton.jit
def legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE: tl.constexpr):
    """Ids from `start`, whether they are legal, and their logits (-infinity where not). num_masked: ids that the mask
    tells about, all or none."""
    ids = start + tl.arange(0, TILE)
    inside = ids < vocab_size
    word = tl.load(row_words + ids // 32, mask=ids < num_masked, other=-1)
    legal = inside & (((word >> (ids % 32)) & 1) == 1)
    scores = tl.load(row_logits + ids, mask=legal, other=float("-inf")).to(tl.float32)
    return ids, legal, tl.where(scores == 0.0, 0.0, scores)  # -0.0 and 0.0 are one number and must have one key


@triton.jit
def key_of(scores):
    """int32 in the order of the scores, none of which is NaN."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weights_of(scores, best, inverse_temperature):
    """exp((score - best) / temperature); the division in float64, for temperatures near zero."""
    return tl.exp(((scores - best).to(tl.float64) * inverse_temperature).to(tl.float32))


@triton.jit
def is_within(keys, ids, legal, edge_key, edge_id):
    return legal & ((keys > edge_key) | ((keys == edge_key) & (ids <= edge_id)))


@triton.jit
def amount_from(
    row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, key,
    BY_WEIGHT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """How many ids within the edge have at least this key; BY_WEIGHT: what they weigh. float64."""
    sums = tl.zeros([TILE], tl.float64)
    for start in range(0, vocab_size, TILE):
        ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
        keys = key_of(scores)
        taken = is_within(keys, ids, legal, edge_key, edge_id) & (keys >= key)
        if BY_WEIGHT:
            weights = weights_of(scores, best, inverse_temperature).to(tl.float64)
        else:
            weights = tl.full([TILE], 1.0, tl.float64)
        sums += tl.where(taken, weights, 0.0)
    return tl.sum(sums)


@triton.jit
def cut(
    row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, wanted,
    BY_WEIGHT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The edge of the smallest set of highest scores, within the edge so far, that amounts to at least `wanted`; it is
    known that all within the edge do."""
    low = edge_key.to(tl.int64)
    high = key_of(best).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        amount = amount_from(
            row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id,
            middle.to(tl.int32), BY_WEIGHT, TILE,
        )  # fmt: skip
        if amount >= wanted:
            low = middle
        else:
            high = middle - 1
    key = low.to(tl.int32)
    above = amount_from(
        row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, key + 1,
        BY_WEIGHT, TILE,
    )  # fmt: skip
    # Of the ids of this very score, in order, as many as are still wanted: one at least.
    above = tl.where(key == key_of(best), 0.0, above)
    so_far = above
    last = edge_id
    found = 0
    for start in range(0, vocab_size, TILE):
        ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
        keys = key_of(scores)
        equal = is_within(keys, ids, legal, edge_key, edge_id) & (keys == key)
        if BY_WEIGHT:
            amounts = tl.where(equal, weights_of(scores, best, inverse_temperature).to(tl.float64), 0.0)
        else:
            amounts = equal.to(tl.float64)
        if (found == 0) & (tl.sum(equal.to(tl.int32)) > 0):
            reached = so_far + tl.cumsum(amounts, axis=0)
            first = tl.min(tl.where(equal & (reached >= wanted), ids, _NO_ID))
            if first != _NO_ID:
                last = first
                found = 1
            so_far += tl.sum(amounts)
    # Where rounding keeps the sum below `wanted`, all ids of the score are in.
    return key, tl.where((found == 1) | (key == edge_key), last, _NO_ID)


@triton.jit
def inverse_draw(
    row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, least, uniform,
    TILE: tl.constexpr,
):  # fmt: skip
    """The first id whose cumulative weight exceeds `uniform` of the whole, the last with a weight where rounding leaves
    none; and the whole."""
    sums = tl.zeros([TILE], tl.float64)
    for start in range(0, vocab_size, TILE):
        ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
        weights = weights_of(scores, best, inverse_temperature).to(tl.float64)
        taken = is_within(key_of(scores), ids, legal, edge_key, edge_id) & (weights >= least)
        sums += tl.where(taken, weights, 0.0)
    total = tl.sum(sums)
    wanted = uniform * total
    so_far = total * 0.0
    last = tl.full([], 0, tl.int32)
    chosen = last + _NO_ID
    for start in range(0, vocab_size, TILE):
        if chosen == _NO_ID:
            ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
            weights = weights_of(scores, best, inverse_temperature).to(tl.float64)
            taken = is_within(key_of(scores), ids, legal, edge_key, edge_id) & (weights >= least)
            weights = tl.where(taken, weights, 0.0)
            reached = so_far + tl.cumsum(weights, axis=0)
            chosen = tl.min(tl.where(taken & (reached > wanted), ids, _NO_ID))
            last = tl.maximum(last, tl.max(tl.where(taken, ids, 0)))
            so_far += tl.sum(weights)
    return tl.where(chosen == _NO_ID, last, chosen), total


@triton.jit
def sample_kernel(
    logits, words, mask_rows, temperature, top_k, top_p, min_p, seed, index, position, attempt,
    tokens, faults, probs, vocab_size, logits_stride, words_stride, probs_stride,
    WITH_PROBS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One row a program; see the module."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * logits_stride
    mask_row = tl.load(mask_rows + row).to(tl.int64)
    num_masked = tl.where(mask_row >= 0, vocab_size, 0)
    row_words = words + mask_row * words_stride
    heat = tl.load(temperature + row)

    # First pass: how many ids are legal, the highest score and its lowest id, and whether there is NaN.
    highest = tl.full([TILE], float("-inf"), tl.float32)
    where = tl.full([TILE], 0, tl.int32) + _NO_ID
    lowest_legal = tl.full([TILE], 0, tl.int32) + _NO_ID
    counts = tl.zeros([TILE], tl.int32)
    broken = tl.zeros([TILE], tl.int32)
    for start in range(0, vocab_size, TILE):
        ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
        counts += legal.to(tl.int32)
        broken += (scores != scores).to(tl.int32)
        lowest_legal = tl.minimum(lowest_legal, tl.where(legal, ids, _NO_ID))
        higher = scores > highest
        where = tl.where(higher, ids, where)
        highest = tl.where(higher, scores, highest)
    num_legal = tl.sum(counts)
    best = tl.max(highest)
    token = tl.min(tl.where(highest == best, where, _NO_ID))
    is_broken = (tl.sum(broken) > 0) | (best == float("inf"))
    fault = tl.where(num_legal == 0, 1, tl.where(is_broken, 3, tl.where(best == float("-inf"), 2, 0)))
    if num_legal == 1:
        token = tl.min(lowest_legal)
        fault = num_legal * 0
    whole = best.to(tl.float64) * 0.0 + 1.0
    edge_key = num_legal * 0 + _LOWEST_KEY
    edge_id = num_legal * 0 + _NO_ID
    inverse_temperature = whole
    least = whole
    is_drawn = (fault == 0) & (num_legal > 1) & (heat > 0.0)
    if is_drawn:
        inverse_temperature = 1.0 / heat
        count = tl.load(top_k + row)
        if (count > 0) & (count < num_legal):
            edge_key, edge_id = cut(
                row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id,
                count.to(tl.float64), False, TILE,
            )  # fmt: skip
        share = tl.load(top_p + row)
        if share < 1.0:
            total = amount_from(
                row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, edge_key,
                True, TILE,
            )  # fmt: skip
            edge_key, edge_id = cut(
                row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id,
                share * total, True, TILE,
            )  # fmt: skip
        least = tl.maximum(tl.load(min_p + row), 1.1754943508222875e-38)
        uniform = philox_uniform(
            tl.load(seed + row), tl.load(index + row), tl.load(position + row), tl.load(attempt + row)
        )
        token, whole = inverse_draw(
            row_logits, row_words, vocab_size, num_masked, best, inverse_temperature, edge_key, edge_id, least, uniform,
            TILE,
        )  # fmt: skip
    tl.store(tokens + row, tl.where((fault == 0), token, 0))
    tl.store(faults + row, fault)
    if WITH_PROBS:
        for start in range(0, vocab_size, TILE):
            ids, legal, scores = legal_scores(row_logits, row_words, start, vocab_size, num_masked, TILE)
            weights = weights_of(scores, best, inverse_temperature).to(tl.float64)
            taken = is_within(key_of(scores), ids, legal, edge_key, edge_id) & (weights >= least)
            drawn = tl.where(taken, weights / whole, 0.0)
            lone = tl.where((ids == token) & (fault == 0), 1.0, 0.0)
            tl.store(
                probs + row * probs_stride + ids, tl.where(is_drawn, drawn, lone).to(tl.float32), mask=ids < vocab_size
            )


def sample(
    logits: Tensor,
    words: Tensor,
    mask_rows: Tensor,
    settings: RowSettings,
    vocab_size: int,
    *,
    with_probs: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """logits: [rows, >= vocab_size]; words, mask_rows: as `apply_mask` takes them. -> token ids int32 [rows], faults
    int32 [rows] (0 is none; a faulty row's token means nothing), and with_probs: the law, fp32 [rows, vocab_size]."""
    contiguous_rows(logits, "logits"), contiguous_rows(words, "words")
    rows, width = logits.shape
    if not 0 < vocab_size <= width:
        raise ValueError(f"vocab_size: {vocab_size} ids, but rows of {width}")
    tokens, faults = torch.empty((2, rows), dtype=torch.int32, device=logits.device)
    probs = torch.empty((rows, vocab_size), dtype=torch.float32, device=logits.device) if with_probs else None
    if rows:
        tile = sample_tile(vocab_size)
        sample_kernel[(rows,)](
            logits, words, mask_rows, settings.temperature, settings.top_k, settings.top_p, settings.min_p,
            settings.seed, settings.index, settings.position, settings.attempt,
            tokens, faults, logits if probs is None else probs, vocab_size, logits.stride(0), words.stride(0),
            0 if probs is None else probs.stride(0), WITH_PROBS=with_probs, TILE=tile,
            num_warps=16 if tile > 1024 else 4,
        )  # fmt: skip
    return tokens, faults, probs


def sample_tile(vocab_size: int) -> int:
    """Ids of a tile; sums are made in its order, so it follows from the vocabulary alone."""
    return min(_WIDEST_TILE, power_of_two(vocab_size, 32))


__all__ = ["sample", "sample_tile"]
