"""Paged attention and the cache writes of the CPU kernels, against torch in float64 and against themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.kernels import cpu
from safegen.kernels.api import AttentionPlan, KvLayer, Ops
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from tests.kernels.cpu_cases import (
    KV_DTYPES,
    cached,
    empty_cache,
    int32,
    isa,
    paged_cache,
    randn,
    threads,
    torch_attention,
)

OPS = CpuOps()
ISAS = cpu.available_isas()
SHAPES = [(9, 3, 64), (4, 4, 16), (2, 1, 128), (4, 2, 12), (6, 2, 80), (3, 1, 5), (8, 4, 256)]


def sequences(lengths: list[int], kv_heads: int, dim: int) -> tuple[list[Tensor], list[Tensor]]:
    keys = [randn(n, kv_heads, dim, seed=10 + i) for i, n in enumerate(lengths)]
    return keys, [randn(n, kv_heads, dim, seed=50 + i) for i, n in enumerate(lengths)]


def compare(
    q: Tensor, cache: KvLayer, plan: AttentionPlan, rtol: float = 2e-5, atol: float = 5e-6, **options: Any
) -> None:
    """Attention equals torch in float64 over the numbers that the cache holds."""
    out = OPS.paged_attention(q, cache, plan, **options)
    keys, values = cached(cache)
    for s, context in enumerate(plan.context_len.tolist()):
        at = torch.arange(context)
        slot = plan.block_table[s].long()[at // plan.block_size] * plan.block_size + at % plan.block_size
        rows = slice(int(plan.query_start[s]), int(plan.query_start[s + 1]))
        expected = torch_attention(q[rows], keys[slot], values[slot], **options)
        torch.testing.assert_close(out[rows], expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (13, None), (64, 20.0), (None, 5.0), (1, None)])
def test_attention_equals_torch(
    name: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    keys, values = sequences([1, 17, 64, 65, 150], kv_heads, dim)
    query_lens = [1, 17, 3, 1, 20]
    q = randn(sum(query_lens), heads, dim) * 2
    cache, plan = paged_cache(keys, values, query_lens, block_size=16, dtype=dtype)
    with isa(name):
        compare(q, cache, plan, scale=dim**-0.5, window=window, softcap=softcap)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_attention_equals_torch_for_every_number_of_rows(name: str, dtype: torch.dtype, block_size: int) -> None:
    for rows in range(1, 34):
        heads, kv_heads, dim = [(1, 1, 16), (2, 1, 40), (6, 2, 64), (10, 2, 72), (7, 1, 136), (8, 1, 256)][rows % 6]
        keys, values = sequences([rows + 7 * (rows % 11)], kv_heads, dim)
        cache, plan = paged_cache(keys, values, [rows], block_size=block_size, dtype=dtype)
        with isa(name):
            compare(randn(rows, heads, dim), cache, plan, scale=dim**-0.5, window=29 if rows % 3 == 0 else None)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window", "softcap"),
    [
        (6, 2, 64, None, None),
        (6, 2, 64, 50, 30.0),
        (4, 2, 32, 50, None),
        (1, 1, 24, None, None),
        (16, 2, 16, None, 20.0),
    ],
)
def test_attention_bits_depend_on_neither_chunks_nor_blocks_nor_company_nor_threads(
    name: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    length = 203
    (key,), (value,) = sequences([length], kv_heads, dim)
    others = sequences([40, 90], kv_heads, dim)
    q = randn(length, heads, dim)

    def attend(chunk: int, block_size: int, seed: int, company: bool, start: int = 0) -> Tensor:
        parts = []
        for first in range(start, length, chunk):
            last = min(first + chunk, length)
            keys, values, queries, lens = [key[:last]], [value[:last]], [q[first:last]], [last - first]
            if company:
                keys, values = [others[0][0], *keys, others[0][1]], [others[1][0], *values, others[1][1]]
                queries, lens = [randn(3, heads, dim), *queries, randn(1, heads, dim)], [3, *lens, 1]
            cache, plan = paged_cache(keys, values, lens, block_size=block_size, seed=seed, dtype=dtype)
            out = OPS.paged_attention(torch.cat(queries), cache, plan, scale=0.125, window=window, softcap=softcap)
            before = 3 if company else 0
            parts.append(out[before : before + last - first])
        return torch.cat(parts)

    with isa(name):
        whole = attend(length, 16, 0, False)
        assert whole.isfinite().all()
        for chunk, block_size, seed, company, start in [
            (1, 16, 1, False, 170),
            (2, 8, 6, True, 160),
            (7, 1, 2, True, 100),
            (64, 32, 3, True, 0),
            (100, 5, 4, False, 0),
        ]:
            assert torch.equal(attend(chunk, block_size, seed, company, start), whole[start:]), (chunk, block_size)
        with threads(1):
            assert torch.equal(attend(31, 16, 5, True), whole)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_attention_and_cache_writes_equal_the_reference_backend(name: str, dtype: torch.dtype) -> None:
    keys, values = sequences([33, 5], 2, 24)
    q = randn(12, 4, 24)
    results = []
    with isa(name):
        for backend in (OPS, ReferenceOps()):
            cache, plan = paged_cache(keys, values, [7, 5], block_size=8, dtype=dtype)
            backend.kv_write(randn(12, 2, 24, seed=4), randn(12, 2, 24, seed=5), cache, plan)
            results.append(backend.paged_attention(q, cache, plan, scale=0.2, window=9, softcap=4.0))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_avx2_and_avx512_agree_bitwise_in_attention(dtype: torch.dtype) -> None:
    if "avx512" not in ISAS:
        pytest.skip("this processor has no AVX-512")
    (key,), (value,) = sequences([130], 2, 72)
    cache, plan = paged_cache([key], [value], [130], block_size=16, dtype=dtype)
    results = []
    for name in ("avx2", "avx512"):
        with isa(name):
            results.append(OPS.paged_attention(randn(130, 4, 72), cache, plan, scale=0.1, softcap=10.0))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ISAS)
def test_scores_too_large_for_exp_do_not_overflow(name: str) -> None:
    (key,), (value,) = sequences([70], 1, 16)
    q = randn(70, 1, 16) * 1e4
    cache, plan = paged_cache([key], [value], [70], block_size=16)
    with isa(name):
        out = OPS.paged_attention(q, cache, plan, scale=1.0)
    # At scores of 1e5, one rounding in fp32 moves a weight by a percent: what is tested is that nothing overflows.
    torch.testing.assert_close(out, torch_attention(q, key, value, scale=1.0), rtol=0.0, atol=2e-2)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("spoilt", ["key", "value"])
def test_nan_shows_in_every_query_that_sees_it_and_in_no_other(name: str, dtype: torch.dtype, spoilt: str) -> None:
    (key,), (value,) = sequences([100], 1, 16)
    (key if spoilt == "key" else value)[40] = torch.nan
    cache, plan = paged_cache([key], [value], [100], block_size=16, dtype=dtype)
    with isa(name):
        out = OPS.paged_attention(randn(100, 2, 16), cache, plan, scale=0.25, window=20)
    hit = out.isnan().all(-1).all(-1)
    assert hit[40:60].all()
    assert out[:40].isfinite().all()
    assert out[60:].isfinite().all()


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_kv_write_puts_each_token_in_its_slot_and_touches_no_other(dtype: torch.dtype) -> None:
    cache = empty_cache(4, 8, 2, 6, dtype)
    key, value = randn(3, 2, 6), randn(3, 2, 6, seed=2)
    plan = AttentionPlan(int32([0, 3]), int32([3]), int32([[0]]), int32([31, 0, 9]), int32([0, 1, 2]), 8)
    OPS.kv_write(key, value, cache, plan)
    for numbers, written in zip(cached(cache), (key, value), strict=True):
        bound = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.int8: 0.5 / 127}[dtype]
        error = (numbers[[31, 0, 9]] - written).abs().amax(-1)
        assert (error <= written.abs().amax(-1) * bound * 1.0001).all()
        assert numbers.isnan().all(-1).all(-1).sum() == 29


def hard_rows(dim: int) -> Tensor:
    """[tokens, 1, dim]: zeros, subnormals, halves' ties and limits, very large and very small numbers, signs."""
    special = [0.0, -0.0, 1e-45, -1e-40, 6e-8, 2.98e-8, 2.9802322387695312e-8, 6.0975552e-5, 6.1035156e-5, 1.0]
    special += [1.00048828125, 1.00146484375, 2049.0, 65503.0, 65504.0, 65519.0, 65520.0, -7e4, 3e38, -3e38, 1e-31]
    rows = torch.tensor(special)[torch.randint(len(special), (40, 1, dim), generator=torch.Generator().manual_seed(8))]
    rows[:10] = randn(10, 1, dim) * torch.logspace(-44, 37, 10)[:, None, None]
    rows[10] = 0.0
    rows[11] = 9e-31
    return rows


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 21])
def test_every_instruction_set_writes_the_bits_of_the_reference(name: str, dtype: torch.dtype, dim: int) -> None:
    rows = hard_rows(dim)
    plan = AttentionPlan(int32([0, 40]), int32([40]), int32([[0]]), torch.arange(40, dtype=torch.int32), int32([0]), 8)
    written = []
    with isa(name):
        for backend in (OPS, ReferenceOps()):
            cache = empty_cache(5, 8, 1, dim, dtype)
            backend.kv_write(rows, -rows, cache, plan)
            written.append([t for t in (cache.key, cache.value, cache.key_scale, cache.value_scale) if t is not None])
    for ours, theirs in zip(*written, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert ours.isfinite().all()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("backend", [OPS, ReferenceOps()], ids=["cpu", "reference"])
def test_infinity_is_the_largest_half_and_spoils_an_int8_head_and_nan_stays_nan(name: str, backend: Ops) -> None:
    rows = torch.ones(4, 1, 20)
    rows[0, 0, 3], rows[1, 0, 19], rows[2, 0, 7] = torch.inf, -torch.inf, torch.nan
    plan = AttentionPlan(int32([0, 4]), int32([4]), int32([[0]]), int32([0, 1, 2, 3]), int32([0, 1, 2, 3]), 4)
    with isa(name):
        halves, digits = empty_cache(1, 4, 1, 20, torch.float16), empty_cache(1, 4, 1, 20, torch.int8)
        for cache in (halves, digits):
            backend.kv_write(rows, rows, cache, plan)
    expected = rows[:, 0].clamp(-65504.0, 65504.0)
    torch.testing.assert_close(cached(halves)[0][:, 0], expected, rtol=0.0, atol=0.0, equal_nan=True)
    for numbers in cached(digits):
        assert numbers[:3].isnan().all() and torch.equal(numbers[3], rows[3])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 4e-4), (torch.int8, 1e-2)], ids=str)
def test_error_of_a_narrow_cache_against_float32_is_bounded(dtype: torch.dtype, bound: float) -> None:
    """Relative to the norm of a head's output, over heads like the default model's."""
    keys, values = sequences([300], 3, 64)
    q = randn(40, 9, 64)
    outputs = []
    for kept in (torch.float32, dtype):
        cache, plan = paged_cache(keys, values, [40], block_size=16, dtype=kept)
        outputs.append(OPS.paged_attention(q, cache, plan, scale=0.125))
    exact, narrow = outputs
    error = (narrow - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert bound / 20 < error.mean() < bound and error.max() < 3 * bound


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start": int32([0, 2])}, "plan.query_start"),
        ({"query_start": int32([1, 3])}, "plan.query_start"),
        ({"context_len": int32([99])}, "plan.context_len"),
        ({"context_len": int32([4])}, "plan.position"),
        ({"position": int32([2, 3, -1])}, "plan.position"),
        ({"block_table": int32([0, 9]).view(1, 2)}, "plan.block_table"),
        ({"block_table": int32([-1, 0]).view(1, 2)}, "plan.block_table"),
        ({"block_table": torch.zeros(1, 2)}, "plan.block_table"),
        ({"position": torch.tensor([2, 3, 4])}, "plan.position"),
    ],
)
def test_a_plan_that_points_outside_the_cache_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    (key,), (value,) = sequences([5], 1, 16)
    cache, plan = paged_cache([key], [value], [3], block_size=4)
    with pytest.raises(ValueError, match=message):
        OPS.paged_attention(randn(3, 1, 16), cache, replace(plan, **changes), scale=1.0)


def test_attention_arguments_are_checked() -> None:
    (key,), (value,) = sequences([5], 2, 16)
    cache, plan = paged_cache([key], [value], [3], block_size=4)
    q = randn(3, 4, 16)
    with pytest.raises(ValueError, match="q: heads"):
        OPS.paged_attention(randn(3, 3, 16), cache, plan, scale=1.0)
    with pytest.raises(ValueError, match=r"q: must have shape \[any, any, 16\]"):
        OPS.paged_attention(randn(3, 4, 8), cache, plan, scale=1.0)
    with pytest.raises(ValueError, match=r"cache\.key: must be of type float32, float16 or int8"):
        OPS.paged_attention(q, KvLayer(cache.key.double(), cache.value.double()), plan, scale=1.0)
    with pytest.raises(ValueError, match=r"cache\.value: must be of type float32"):
        OPS.paged_attention(q, KvLayer(cache.key, cache.value.half()), plan, scale=1.0)
    with pytest.raises(ValueError, match=r"cache\.key_scale: an int8 cache has scales"):
        OPS.paged_attention(q, KvLayer(cache.key.to(torch.int8), cache.value.to(torch.int8)), plan, scale=1.0)
    with pytest.raises(ValueError, match=r"cache\.key_scale: an int8 cache has scales"):
        OPS.kv_write(randn(3, 2, 16), randn(3, 2, 16), replace(cache, key_scale=torch.ones(4, 2, 4)), plan)
    with pytest.raises(ValueError, match="q: must be contiguous"):
        OPS.paged_attention(randn(3, 16, 4).transpose(1, 2), cache, plan, scale=1.0)
    with pytest.raises(ValueError, match="window"):
        OPS.paged_attention(q, cache, plan, scale=1.0, window=0)
    with pytest.raises(ValueError, match="softcap"):
        OPS.paged_attention(q, cache, plan, scale=1.0, softcap=-1.0)
    with pytest.raises(ValueError, match=r"plan\.slot"):
        OPS.kv_write(randn(3, 2, 16), randn(3, 2, 16), cache, replace(plan, slot=int32([0, 1, 400])))
    with pytest.raises(ValueError, match=r"cache\.value"):
        OPS.kv_write(randn(3, 2, 16), randn(3, 2, 16), KvLayer(cache.key, cache.value[:1].clone()), plan)


def test_a_step_without_tokens_gives_an_empty_result() -> None:
    cache = empty_cache(1, 4, 1, 16)
    plan = AttentionPlan(int32([0]), int32([]), torch.zeros(0, 1, dtype=torch.int32), int32([]), int32([]), 4)
    assert OPS.paged_attention(torch.zeros(0, 2, 16), cache, plan, scale=1.0).shape == (0, 2, 16)
