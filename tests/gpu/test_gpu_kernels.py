"""Compiled kernels on the device against their twins, in the types and shapes of real models."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer, RowSettings
from safegen.kernels.int4 import pack_int4
from safegen.kernels.reference import ReferenceOps, linears, sampling

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def ints(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def paged(
    contexts: list[int], queries: list[int], kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[KvLayer, AttentionPlan]:
    """A cache of whole sequences in shuffled blocks of 16, and the plan of a step over their last tokens."""
    from safegen.kernels.triton.kv_write import kv_write

    counts = [-(-context // 16) for context in contexts]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).tolist()
    shapes = KvLayer.shapes(sum(counts), 16, kv_heads, dim)
    scales = [torch.zeros(shapes[2], device="cuda") for _ in range(2)] if dtype.itemsize == 1 else [None, None]
    cache = KvLayer(*(torch.zeros(shape, dtype=dtype, device="cuda") for shape in shapes[:2]), *scales)
    table = torch.zeros((len(contexts), max(counts)), dtype=torch.int32, device="cuda")
    slots, asked, positions = list[int](), list[int](), list[int]()
    for row, (context, count, num_queries) in enumerate(zip(contexts, counts, queries)):
        mine, order = order[:count], order[count:]
        table[row, :count] = ints(mine)
        own = [mine[p // 16] * 16 + p % 16 for p in range(context)]
        slots += own
        asked += own[context - num_queries :]
        positions += range(context - num_queries, context)
    starts = ints([0, *torch.tensor(queries).cumsum(0).tolist()])
    plan = AttentionPlan(starts, ints(contexts), table, ints(asked), ints(positions), 16, max(queries))
    total = sum(contexts)
    key, value = randn(total, kv_heads, dim, seed=11), randn(total, kv_heads, dim, seed=12)
    kv_write(key, value, cache, replace(plan, slot=ints(slots)))
    return cache, plan


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("queries", [[1, 1, 1, 1], [1, 5, 3, 1], [40, 1, 130, 16]], ids=["decode", "drafts", "chunks"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_equals_the_reference(kv_dtype: torch.dtype, queries: list[int], deterministic: bool) -> None:
    from safegen.kernels.triton.attention import paged_attention

    if kv_dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs sm_89")
    dtype = torch.float16 if kv_dtype == torch.float16 else torch.bfloat16
    cache, plan = paged([70, 2100, 333, 16], queries, 8, 128, kv_dtype)
    q = randn(sum(queries), 32, 128, dtype=dtype)
    got = paged_attention(q, cache, plan, scale=128**-0.5, deterministic=deterministic)
    expected = ReferenceOps().paged_attention(q.float(), cache, plan, scale=128**-0.5)
    torch.testing.assert_close(got.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("rows", [1, 7, 64, 200])
@pytest.mark.parametrize("name", ["int8_linear", "fp8_linear", "int8_weight_linear"])
def test_eight_bit_linears_equal_their_twins(name: str, rows: int) -> None:
    from safegen.kernels.triton import linear

    if name == "fp8_linear" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs sm_89")
    x, scale = randn(rows, 1024, dtype=torch.bfloat16), randn(512).abs() / 50
    kind = torch.float8_e4m3fn if name == "fp8_linear" else torch.int8
    weight = (randn(512, 1024, seed=5) * 40).clamp(-127, 127).to(kind)
    for deterministic in (False, True):
        got = getattr(linear, name)(x, weight, scale, deterministic=deterministic)
        expected = getattr(linears, name)(x, weight, scale)
        torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=2e-2 * float(expected.abs().mean()))


@pytest.mark.parametrize("rows", [1, 2, 17, 64, 256])
def test_int4_linear_equals_its_twin(rows: int) -> None:
    from safegen.kernels.triton.linear_int4 import int4_linear

    digits = torch.randint(0, 16, (1024, 512), generator=torch.Generator().manual_seed(1)).cuda()
    weight = pack_int4(digits, randn(8, 512).abs() / 20, torch.full((8, 512), 8, device="cuda"), 128)
    x = randn(rows, 1024, dtype=torch.bfloat16)
    for deterministic in (False, True):
        got, expected = int4_linear(x, weight, deterministic=deterministic), linears.int4_linear(x, weight)
        torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=2e-2 * float(expected.abs().mean()))


def test_draws_are_those_of_the_law() -> None:
    """Token for token, over a real vocabulary: temperatures, cuts, masks."""
    from safegen.kernels.triton.sampling import sample

    rows, vocab = 24, 128256
    logits = randn(rows, vocab) * 3
    words = torch.randint(-(2**31), 2**31 - 1, (4, vocab // 32), dtype=torch.int32, device="cuda")
    mask_rows = ints([row % 6 - 2 for row in range(rows)]).clamp_min(-1)
    heat = torch.tensor([0.0, 0.7, 1.3] * 8, dtype=torch.float64, device="cuda")
    counters = [torch.arange(rows, device="cuda") + start for start in (100, 0, 7, 0)]
    settings = RowSettings(
        heat, ints([0, 0, 0, 50] * 6), torch.tensor([1.0, 0.9] * 12, dtype=torch.float64, device="cuda"),
        torch.tensor([0.0, 0.0, 0.02] * 8, dtype=torch.float64, device="cuda"), *counters,
    )  # fmt: skip
    tokens, faults, _ = sample(logits, words, mask_rows, settings, vocab)
    on_host = RowSettings(*(getattr(settings, field.name).cpu() for field in fields(settings)))
    expected, _, _ = sampling.sample(logits.cpu(), words.cpu(), mask_rows.cpu(), on_host, vocab)
    assert not faults.any() and torch.equal(tokens.cpu(), expected)
