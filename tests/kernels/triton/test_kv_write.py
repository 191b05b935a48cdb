"""Cache writes, interpreted, against the reference: the same digits in the same places, and nothing else touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.triton.kv_write import kv_write
from tests.kernels.triton.cases import ROWS, guarded, randn

REFERENCE = ReferenceOps()
KINDS = [torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn]


def poisoned_cache(blocks: int, block_size: int, kv_heads: int, dim: int, dtype: torch.dtype) -> KvLayer:
    """Every byte is 0x5A, so a write that strays shows."""
    key, value, scale = KvLayer.shapes(blocks, block_size, kv_heads, dim)
    tensors = [
        torch.full((*shape, dtype.itemsize), 0x5A, dtype=torch.uint8).view(dtype)[..., 0] for shape in (key, value)
    ]
    scales = [torch.full(scale, -7.0), torch.full(scale, -7.0)] if dtype.itemsize == 1 else [None, None]
    return KvLayer(tensors[0].contiguous(), tensors[1].contiguous(), *scales)


def bits(cache: KvLayer) -> list[Tensor]:
    tensors = (cache.key, cache.value, cache.key_scale, cache.value_scale)
    return [tensor.view(torch.uint8) for tensor in tensors if tensor is not None]


def plan_of(slots: list[int], block_size: int) -> AttentionPlan:
    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return AttentionPlan(ints([0, len(slots)]), ints([0]), ints([0]).view(1, 1), ints(slots), ints(slots), block_size)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("tokens", ROWS)
@pytest.mark.parametrize(("kv_heads", "dim", "block_size"), [(1, 64, 16), (3, 80, 8), (2, 96, 5), (4, 128, 32)])
def test_writes_are_those_of_the_reference(
    dtype: torch.dtype, tokens: int, kv_heads: int, dim: int, block_size: int
) -> None:
    blocks = 40 // block_size + 2
    order = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(tokens))
    slots = order[:tokens].tolist()
    key, value = (guarded(randn(tokens, kv_heads, dim, seed=seed) * 3) for seed in (1, 2))
    caches = [poisoned_cache(blocks, block_size, kv_heads, dim, dtype) for _ in range(2)]
    kv_write(key, value, caches[0], plan_of(slots, block_size))
    REFERENCE.kv_write(key, value, caches[1], plan_of(slots, block_size))
    for ours, theirs in zip(bits(caches[0]), bits(caches[1]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("inputs", [torch.float16, torch.bfloat16], ids=str)
def test_bfloat16_cache_keeps_what_the_model_computed(inputs: torch.dtype) -> None:
    key, value = randn(7, 2, 64, dtype=inputs), randn(7, 2, 64, seed=2, dtype=inputs)
    cache = poisoned_cache(1, 16, 2, 64, torch.bfloat16)
    kv_write(key, value, cache, plan_of(list(range(7)), 16))
    for kept, written in ((cache.key[0].permute(2, 0, 1), key), (cache.value[0].transpose(0, 1), value)):
        torch.testing.assert_close(kept[:7].float(), written.float(), rtol=2**-7, atol=0.0)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_numbers_that_do_not_fit_follow_the_contract(dtype: torch.dtype) -> None:
    """Halves saturate and keep NaN; a quantized head with NaN or infinity reads as NaN; a tiny one as zeros."""
    key = torch.ones(6, 1, 16)
    key[0, 0, 3], key[1, 0, 4], key[2, 0, 5] = torch.inf, torch.nan, 1e9
    key[3], key[4, 0, 7] = 1e-31, -torch.inf
    caches = [poisoned_cache(1, 16, 1, 16, dtype) for _ in range(2)]
    kv_write(key, -key, caches[0], plan_of(list(range(6)), 16))
    REFERENCE.kv_write(key, -key, caches[1], plan_of(list(range(6)), 16))
    (keys, scales), _ = caches[0].by_token()
    (twins, twin_scales), _ = caches[1].by_token()
    numbers = [k.float() if s is None else k.float() * s[..., None] for k, s in ((keys, scales), (twins, twin_scales))]
    torch.testing.assert_close(numbers[0][0, :6], numbers[1][0, :6], rtol=0.0, atol=0.0, equal_nan=True)


def test_padding_is_not_written() -> None:
    cache, untouched = (poisoned_cache(2, 16, 2, 64, torch.float16) for _ in range(2))
    kv_write(randn(3, 2, 64), randn(3, 2, 64), cache, plan_of([-1, -1, -1], 16))
    assert all(torch.equal(ours, before) for ours, before in zip(bits(cache), bits(untouched), strict=True))


def test_caches_that_do_not_fit_are_refused_by_name() -> None:
    cache = poisoned_cache(2, 16, 2, 64, torch.int8)
    rows, plan = randn(3, 2, 64), plan_of([0, 1, 2], 16)
    with pytest.raises(ValueError, match=r"cache\.key_scale: an int8 or fp8 cache has scales"):
        kv_write(rows, rows, KvLayer(cache.key, cache.value), plan)
    with pytest.raises(ValueError, match=r"cache\.key: must be float32"):
        kv_write(rows, rows, KvLayer(cache.key.long(), cache.value.long()), plan)
    with pytest.raises(ValueError, match="heads must lie side by side"):
        kv_write(randn(2, 3, 64).transpose(0, 1), randn(3, 2, 64), cache, plan)
