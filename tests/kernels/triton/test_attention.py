"""Paged attention, interpreted, against the reference over the same cache: decode, drafts and chunks in one launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.triton.attention import AttentionTile, attention_tile, launch_tile, paged_attention
from tests.kernels.triton.cases import DTYPES, guarded, randn

REFERENCE = ReferenceOps()
TINY = AttentionTile(block_m=16, block_n=16, num_warps=4, num_stages=2)
# Scores and weights are rounded to fp16 or bf16 before they are multiplied; over a row these errors average out.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def ints(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def case(
    contexts: list[int], queries: list[int], kv_heads: int, dim: int, block_size: int, dtype: torch.dtype, seed: int = 0
) -> tuple[KvLayer, AttentionPlan]:
    """A cache of whole sequences in shuffled blocks, NaN wherever nothing was written, block tables filled up with an
    id far outside; and the plan of a step in which the last queries[s] tokens of each ask."""
    counts = [-(-context // block_size) for context in contexts]
    blocks = sum(counts) + 2
    order = (torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    key_shape, value_shape, scale_shape = KvLayer.shapes(blocks, block_size, kv_heads, dim)
    poison = torch.zeros if dtype.itemsize == 1 else lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype)
    scales = [torch.full(scale_shape, torch.nan) for _ in range(2)] if dtype.itemsize == 1 else [None, None]
    cache = KvLayer(poison(key_shape, dtype=dtype), poison(value_shape, dtype=dtype), *scales)
    table = torch.full((len(contexts), max(counts) + 1), 1 << 28, dtype=torch.int32)
    slots: list[int] = []
    asked: list[int] = []
    positions: list[int] = []
    for s, (context, count, num_queries) in enumerate(zip(contexts, counts, queries, strict=True)):
        mine, order = order[:count], order[count:]
        table[s, :count] = ints(mine)
        own = [mine[p // block_size] * block_size + p % block_size for p in range(context)]
        slots += own
        asked += own[context - num_queries :]
        positions += range(context - num_queries, context)
    starts = ints([0, *torch.tensor(queries).cumsum(0).tolist()])
    plan = AttentionPlan(starts, ints(contexts), table, ints(asked), ints(positions), block_size, max(queries))
    total = sum(contexts)
    key, value = randn(total, kv_heads, dim, seed=seed + 11), randn(total, kv_heads, dim, seed=seed + 12)
    REFERENCE.kv_write(key, value, cache, replace(plan, slot=ints(slots)))
    return cache, plan


def compare(q: Tensor, cache: KvLayer, plan: AttentionPlan, tile: AttentionTile | None, **options: Any) -> Tensor:
    got = paged_attention(guarded(q), cache, plan, tile=tile, **options)
    expected = REFERENCE.paged_attention(
        q.float(), cache, plan, **{k: v for k, v in options.items() if k != "deterministic"}
    )
    tolerance = TOLERANCE[q.dtype]
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(4, 1, 64, 16), (9, 3, 64, 16), (7, 1, 80, 16), (2, 2, 96, 8), (8, 2, 128, 32), (28, 4, 32, 5), (4, 2, 256, 16)],
)
def test_decode_equals_the_reference(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    cache, plan = case([1, 33, 16, 47], [1, 1, 1, 1], kv_heads, dim, block_size, dtype)
    compare(randn(4, heads, dim, dtype=dtype), cache, plan, None, scale=dim**-0.5)


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("q_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_splits", [1, 3])
def test_narrow_caches_are_read_as_the_reference_reads_them(
    kv_dtype: torch.dtype, q_dtype: torch.dtype, num_splits: int
) -> None:
    tile = replace(TINY, num_splits=num_splits, split_tokens=32)
    cache, plan = case([70, 5], [3, 1], 2, 64, 16, kv_dtype)
    compare(randn(4, 4, 64, dtype=q_dtype), cache, plan, tile, scale=0.125)


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (13, None), (40, 20.0), (None, 5.0)])
def test_windows_and_caps_equal_the_reference(num_splits: int, window: int | None, softcap: float | None) -> None:
    tile = replace(TINY, num_splits=num_splits, split_tokens=32)
    cache, plan = case([100, 1, 64, 17], [5, 1, 1, 17], 2, 64, 16, torch.float32)
    compare(randn(24, 6, 64) * 2, cache, plan, tile, scale=0.125, window=window, softcap=softcap)


@pytest.mark.parametrize(
    "context", [1, 17, 64, *(pytest.param(n, marks=pytest.mark.wide) for n in (15, 16, 31, 32, 33, 63, 65))]
)
def test_lengths_around_the_edges_of_blocks_tiles_and_splits(context: int) -> None:
    for queries in {1, min(context, 2), min(context, 17)}:
        cache, plan = case([context, 20], [queries, 1], 1, 64, 16, torch.float32, seed=context)
        q = randn(queries + 1, 3, 64)
        plain = compare(q, cache, plan, TINY, scale=0.125)
        split = compare(q, cache, plan, replace(TINY, num_splits=3, split_tokens=32), scale=0.125)
        torch.testing.assert_close(plain, split, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("queries", [[0, 1, 0, 0, 33, 0], [2, 0, 1, 7, 0, 3], [0, 0, 0, 0, 0, 1]])
@pytest.mark.parametrize("known", [True, False])
def test_sequences_without_queries_take_no_place(queries: list[int], known: bool) -> None:
    cache, plan = case([4, 9, 1, 20, 40, 33], queries, 2, 64, 16, torch.float16)
    plan = plan if known else replace(plan, max_query_len=None)
    compare(randn(sum(queries), 4, 64, dtype=torch.float16), cache, plan, None, scale=0.125)


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.wide), 7, 33])
@pytest.mark.parametrize("window", [None, 24])
def test_deterministic_rows_have_the_same_bits_in_any_chunk_and_company(chunk: int, window: int | None) -> None:
    length, block_size = 66, 16
    cache, whole = case([length, 50], [length, 50], 2, 64, block_size, torch.float16)
    q = randn(length + 50, 4, 64, dtype=torch.float16)
    options: dict[str, Any] = {"scale": 0.125, "window": window, "deterministic": True}
    expected = paged_attention(q, cache, whole, **options)[:length]
    assert expected.isfinite().all()
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        plan = AttentionPlan(
            ints([0, stop - start]), ints([stop]), whole.block_table[:1, : -(-stop // block_size)], ints([]),
            ints(list(range(start, stop))), block_size, stop - start,
        )  # fmt: skip
        assert torch.equal(paged_attention(q[start:stop], cache, plan, **options), expected[start:stop])


def test_later_tokens_with_broken_scales_do_not_reach_earlier_rows() -> None:
    cache, plan = case([20], [20], 1, 64, 16, torch.int8)
    good = paged_attention(randn(20, 1, 64), cache, plan, scale=0.125)
    assert cache.key_scale is not None and cache.value_scale is not None
    last = int(plan.slot[19])
    for scale in (cache.key_scale, cache.value_scale):
        scale[last // 16, 0, last % 16] = torch.nan
    broken = paged_attention(randn(20, 1, 64), cache, plan, scale=0.125)
    assert torch.equal(broken[:19], good[:19]) and broken[19].isnan().all()


def test_padding_rows_change_nothing() -> None:
    cache, plan = case([30, 9], [1, 1], 2, 64, 16, torch.float32)
    q = randn(5, 4, 64)
    expected = paged_attention(q[:2], cache, plan, scale=0.125)
    padded = replace(plan, position=ints([29, 8, -1, -1, -1]))
    for tile in (TINY, replace(TINY, num_splits=2, split_tokens=32)):
        torch.testing.assert_close(paged_attention(q, cache, padded, scale=0.125, tile=tile)[:2], expected)


def test_launches_fill_the_processors_and_stay_within_the_table() -> None:
    tile = attention_tile(128, 4, 1, scaled=False)
    lone = launch_tile(tile, max_context=4096, num_programs=8, num_sms=132)
    assert lone.num_splits == 16 and lone.split_tokens == 256 and lone.split_tokens % lone.block_n == 0
    assert launch_tile(tile, max_context=4096, num_programs=1024, num_sms=132).num_splits == 1
    assert launch_tile(tile, max_context=16, num_programs=1, num_sms=132).num_splits == 1
    assert attention_tile(128, 4, 512, scaled=False).block_m == attention_tile(128, 4, None, scaled=False).block_m == 64
    assert attention_tile(64, 71, 1, scaled=False).block_m == 128


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    cache, plan = case([5], [3], 2, 64, 16, torch.float32)
    q = randn(3, 4, 64)
    for bad, options, message in [
        (randn(3, 3, 64), {}, "q: "),
        (randn(3, 4, 32), {}, "q: "),
        (randn(4, 3, 64).transpose(0, 1), {}, "heads must lie side by side"),
        (q, {"window": 0}, "window: must be at least 1"),
        (q, {"softcap": 0.0}, "softcap: must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            paged_attention(bad, cache, plan, scale=1.0, **options)


def test_a_step_without_tokens_gives_an_empty_result() -> None:
    cache, plan = case([5], [0], 2, 64, 16, torch.float32)
    assert paged_attention(torch.zeros(0, 4, 64), cache, plan, scale=1.0).shape == (0, 4, 64)
