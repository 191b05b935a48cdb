"""Paged attention and the cache writes of the CPU kernels, against torch in float64 and against themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.kernels import cpu
from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from tests.kernels.cpu_cases import int32, isa, paged_cache, randn, threads, torch_attention

OPS = CpuOps()
ISAS = cpu.available_isas()
SHAPES = [(9, 3, 64), (4, 4, 16), (2, 1, 128), (4, 2, 12), (6, 2, 80), (3, 1, 5), (8, 4, 256)]


def sequences(lengths: list[int], kv_heads: int, dim: int) -> tuple[list[Tensor], list[Tensor]]:
    keys = [randn(n, kv_heads, dim, seed=10 + i) for i, n in enumerate(lengths)]
    return keys, [randn(n, kv_heads, dim, seed=50 + i) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (13, None), (64, 20.0), (None, 5.0), (1, None)])
def test_attention_equals_torch(
    name: str, heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    lengths, query_lens = [1, 17, 64, 65, 150], [1, 17, 3, 1, 20]
    keys, values = sequences(lengths, kv_heads, dim)
    q = randn(sum(query_lens), heads, dim) * 2
    cache, plan = paged_cache(keys, values, query_lens, block_size=16)
    with isa(name):
        out = OPS.paged_attention(q, cache, plan, scale=dim**-0.5, window=window, softcap=softcap)
    for s, (key, value) in enumerate(zip(keys, values, strict=True)):
        rows = slice(int(plan.query_start[s]), int(plan.query_start[s + 1]))
        expected = torch_attention(q[rows], key, value, scale=dim**-0.5, window=window, softcap=softcap)
        torch.testing.assert_close(out[rows], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (50, 30.0)])
def test_attention_bits_depend_on_neither_chunks_nor_blocks_nor_company_nor_threads(
    name: str, window: int | None, softcap: float | None
) -> None:
    heads, kv_heads, dim, length = 6, 2, 64, 203
    (key,), (value,) = sequences([length], kv_heads, dim)
    others = sequences([40, 90], kv_heads, dim)
    q = randn(length, heads, dim)

    def attend(chunk: int, block_size: int, seed: int, company: bool) -> Tensor:
        parts = []
        for first in range(0, length, chunk):
            last = min(first + chunk, length)
            keys, values, queries, lens = [key[:last]], [value[:last]], [q[first:last]], [last - first]
            if company:
                keys, values = [others[0][0], *keys, others[0][1]], [others[1][0], *values, others[1][1]]
                queries, lens = [randn(3, heads, dim), *queries, randn(1, heads, dim)], [3, *lens, 1]
            cache, plan = paged_cache(keys, values, lens, block_size=block_size, seed=seed)
            out = OPS.paged_attention(torch.cat(queries), cache, plan, scale=0.125, window=window, softcap=softcap)
            start = 3 if company else 0
            parts.append(out[start : start + last - first])
        return torch.cat(parts)

    with isa(name):
        whole = attend(length, 16, 0, False)
        assert whole.isfinite().all()
        for chunk, block_size, seed, company in [
            (1, 16, 1, False),
            (7, 1, 2, True),
            (64, 32, 3, True),
            (100, 5, 4, False),
        ]:
            assert torch.equal(attend(chunk, block_size, seed, company), whole), (chunk, block_size)
        with threads(1):
            assert torch.equal(attend(31, 16, 5, True), whole)


def test_attention_and_cache_writes_equal_the_reference_backend() -> None:
    keys, values = sequences([33, 5], 2, 24)
    q = randn(12, 4, 24)
    results = []
    for backend in (OPS, ReferenceOps()):
        cache, plan = paged_cache(keys, values, [7, 5], block_size=8)
        backend.kv_write(randn(12, 2, 24, seed=4), randn(12, 2, 24, seed=5), cache, plan)
        results.append(backend.paged_attention(q, cache, plan, scale=0.2, window=9, softcap=4.0))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_avx2_and_avx512_agree_bitwise_in_attention() -> None:
    if "avx512" not in ISAS:
        pytest.skip("this processor has no AVX-512")
    (key,), (value,) = sequences([130], 2, 72)
    cache, plan = paged_cache([key], [value], [130], block_size=16)
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
def test_nan_key_shows_in_every_query_that_sees_it_and_in_no_other(name: str) -> None:
    (key,), (value,) = sequences([100], 1, 16)
    key[40] = torch.nan
    cache, plan = paged_cache([key], [value], [100], block_size=16)
    with isa(name):
        out = OPS.paged_attention(randn(100, 2, 16), cache, plan, scale=0.25, window=20)
    hit = out.isnan().all(-1).all(-1)
    assert hit[40:60].all()
    assert out[:40].isfinite().all()
    assert out[60:].isfinite().all()


def test_kv_write_puts_each_token_in_its_slot_and_touches_no_other() -> None:
    cache = KvLayer(torch.zeros(4, 8, 2, 6), torch.zeros(4, 8, 2, 6))
    key, value = randn(3, 2, 6), randn(3, 2, 6, seed=2)
    plan = AttentionPlan(int32([0, 3]), int32([3]), int32([[0]]), int32([31, 0, 9]), int32([0, 1, 2]), 8)
    OPS.kv_write(key, value, cache, plan)
    for cached, written in ((cache.key, key), (cache.value, value)):
        flat = cached.view(32, 2, 6)
        assert torch.equal(flat[[31, 0, 9]], written)
        assert flat.count_nonzero() == written.numel()


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
    with pytest.raises(ValueError, match=r"cache\.key"):
        OPS.paged_attention(randn(3, 4, 8), cache, plan, scale=1.0)
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
    cache = KvLayer(torch.zeros(1, 4, 1, 16), torch.zeros(1, 4, 1, 16))
    plan = AttentionPlan(int32([0]), int32([]), torch.zeros(0, 1, dtype=torch.int32), int32([]), int32([]), 4)
    assert OPS.paged_attention(torch.zeros(0, 2, 16), cache, plan, scale=1.0).shape == (0, 2, 16)
