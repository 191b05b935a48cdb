"""Keys and values of new tokens into the paged cache: fp32, fp16, bf16 as they are, int8 and fp8 with a scale a head.

A program takes TOKENS tokens of one head. The cache keeps keys with the tokens of a block side by side ([head_dim,
block_size]), so keys are loaded along their dimensions, turned in registers, and stored along the tokens: a prompt's
neighbouring tokens fill whole memory sectors. int8 follows `Ops.kv_write` (digits to nearest even, scale max|x| / 127);
fp8 (e4m3, sm_89 and newer) is the same with 448 for 127, so a head's largest number is a largest fp8 number. A slot
below zero is not written: the padding of a captured graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer
from safegen.kernels.triton.runtime import check_fp8, contiguous_rows, power_of_two

TOKENS = 16
_KINDS = {
    torch.float32: "float", torch.float16: "half", torch.bfloat16: "float",
    torch.int8: "int8", torch.float8_e4m3fn: "fp8",
}  # fmt: skip


@triton.jit
def nearest_even(x):
    """x, of at most 2^22 in size, rounded to a whole number: adding 1.5 * 2^23 leaves no bits for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def quotient(a, b):
    """a / b, correctly rounded: the plain division of fp32 on a GPU is not, and digits would differ at ties."""
    return tl.div_rn(a, b)


@triton.jit
def nearest_e4m3(x):
    """x, of at most 448 in size, rounded to a number that fp8 (e4m3) has: three bits after the first, and no step below
    2^-9. Of a number that it has, a conversion to fp8 changes nothing (the interpreter's does not round)."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    small = (x + 24576.0) - 24576.0  # 1.5 * 2^23 steps of 2^-9
    return tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))


@triton.jit
def head_digits(numbers, LARGEST: tl.constexpr, IS_INT: tl.constexpr):
    """numbers: fp32 [rows, dim] -> digits of the same shape, still fp32, and scales [rows]. Rows without a number of at
    least 1e-30 are zeros; rows that hold NaN or infinity have the scale NaN. Digits times scale are the numbers."""
    finite = tl.min((tl.abs(numbers) < float("inf")).to(tl.int32), axis=1) == 1
    largest = tl.max(tl.where(finite[:, None], tl.abs(numbers), 0.0), axis=1)
    kept = largest >= 1e-30
    factor = tl.where(kept, quotient(largest * 0.0 + LARGEST, tl.where(kept, largest, 1.0)), 0.0)
    digits = tl.where(kept[:, None], numbers * factor[:, None], 0.0)
    digits = tl.minimum(tl.maximum(digits, -LARGEST), LARGEST)
    if IS_INT:
        digits = nearest_even(digits)
    else:
        digits = nearest_e4m3(digits)
    scale = tl.where(kept, quotient(largest, largest * 0.0 + LARGEST), 0.0)
    return digits, tl.where(finite, scale, float("nan"))


@triton.jit
def stored(numbers, KIND: tl.constexpr):
    """What a cache of this kind keeps of fp32 numbers: halves are never infinite, and NaN stays."""
    if KIND == "half":
        numbers = tl.where(numbers > 65504.0, 65504.0, tl.where(numbers < -65504.0, -65504.0, numbers))
    return numbers


@triton.jit
def kv_write_kernel(
    key, value, slots, cache_key, cache_value, key_scale, value_scale, num_tokens, key_stride, value_stride,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KIND: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """key, value: [tokens, kv_heads, dim]. Grid: tiles of TOKENS, kv_heads."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_DIM)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    inside = (slot >= 0)[:, None] & (dim < DIM)[None, :]
    row = token.to(tl.int64)[:, None]
    keys = tl.load(key + row * key_stride + head * DIM + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    values = tl.load(value + row * value_stride + head * DIM + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    head_row = (slot // BLOCK_SIZE) * KV_HEADS + head
    offset = slot % BLOCK_SIZE
    if KIND == "int8" or KIND == "fp8":
        LARGEST: tl.constexpr = 127.0 if KIND == "int8" else 448.0
        keys, key_scales = head_digits(keys, LARGEST, KIND == "int8")
        values, value_scales = head_digits(values, LARGEST, KIND == "int8")
        tl.store(key_scale + head_row * BLOCK_SIZE + offset, key_scales, mask=slot >= 0)
        tl.store(value_scale + head_row * BLOCK_SIZE + offset, value_scales, mask=slot >= 0)
    keys = stored(keys, KIND).to(cache_key.dtype.element_ty)
    values = stored(values, KIND).to(cache_value.dtype.element_ty)
    key_at = head_row * (DIM * BLOCK_SIZE) + offset
    tl.store(cache_key + key_at[None, :] + dim[:, None] * BLOCK_SIZE, tl.trans(keys), mask=tl.trans(inside))
    value_at = (head_row * BLOCK_SIZE + offset) * DIM
    tl.store(cache_value + value_at[:, None] + dim[None, :], values, mask=inside)


def kv_write(key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
    """key, value: [tokens, kv_heads, head_dim], heads contiguous, into cache at plan.slot. As `Ops.kv_write`."""
    tokens, kv_heads, dim = key.shape
    kind = cache_kind(cache)
    for rows, name in ((key, "key"), (value, "value")):
        contiguous_rows(rows, name)
        if rows.numel() and kv_heads > 1 and rows.stride(1) != dim:
            raise ValueError(f"{name}: heads must lie side by side, got strides {rows.stride()}")
    if not tokens:
        return
    scales = (cache.key_scale, cache.value_scale) if cache.key_scale is not None else (cache.key, cache.value)
    kv_write_kernel[(triton.cdiv(tokens, TOKENS), kv_heads)](
        key, value, plan.slot, cache.key, cache.value, *scales, tokens, key.stride(0), value.stride(0),
        KV_HEADS=kv_heads, DIM=dim, BLOCK_DIM=power_of_two(dim, 16), BLOCK_SIZE=cache.value.shape[2], KIND=kind,
        TOKENS=TOKENS, num_warps=4,
    )  # fmt: skip


def cache_kind(cache: KvLayer) -> str:
    """ "float", "half", "int8" or "fp8". ValueError for a cache that no kernel here knows, or that lacks its scales."""
    kind = _KINDS.get(cache.key.dtype)
    if kind is None or cache.value.dtype != cache.key.dtype:
        raise ValueError(f"cache.key: must be float32, float16, bfloat16, int8 or float8_e4m3fn, got {cache.key.dtype}")
    check_fp8(cache.key.dtype, cache.key.device, "cache.key")
    if (kind in ("int8", "fp8")) != (cache.key_scale is not None and cache.value_scale is not None):
        raise ValueError("cache.key_scale: an int8 or fp8 cache has scales, and no other")
    for tensor, name in ((cache.key, "cache.key"), (cache.value, "cache.value")):
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: must be contiguous")
    return kind


__all__ = ["TOKENS", "cache_kind", "head_digits", "kv_write"]
