"""Linears of 8-bit weights: W8A8 in int8 and fp8 with activations quantized a row at a time, int8 weights alone; and of
float weights, where torch's choice of a product by the number of rows is not wanted.

One product kernel serves them all. Weights lie as in checkpoints, [out, in], so both operands of a tile are contiguous
along the inputs, as the tensor cores' 8-bit instructions want them. int8 digits are summed in int32, exactly; fp8 in
fp32. Scales (one a row of x, one an output) multiply the sum, never a digit. Where few rows leave processors idle, the
inputs are split among programs (split-K), and a second kernel adds the shares in order: no atomics, so the same call
always gives the same bits.

`deterministic=True` fixes tile and split by the weight's shape, so that a row's bits do not depend on the rows beside
it. Shapes: x: [rows, in], rows contiguous; weight: int8 or fp8 (e4m3) [out, in]; scale: fp32 [out]; result: [rows, out]
in x's type.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.triton.kv_write import nearest_e4m3, nearest_even, quotient
from safegen.kernels.triton.runtime import check_fp8, contiguous_rows, num_processors, power_of_two, upcasts

_CHUNK = 2048  # numbers that `quantize_rows` reads at once
_LEAST_SPLIT_INPUTS = 512
_MOST_SPLITS = 16


@triton.jit
def quantize_rows_kernel(x, digits, scales, num_inputs, x_stride, LARGEST: tl.constexpr, IS_INT: tl.constexpr,
                         BLOCK: tl.constexpr):  # fmt: skip
    """A row a program, read twice (the second time from the cache): its largest number, then its digits."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    sizes = tl.zeros([BLOCK], tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_inputs, BLOCK):
        numbers = tl.load(x + row * x_stride + start + at, mask=start + at < num_inputs, other=0.0).to(tl.float32)
        is_finite = tl.abs(numbers) < float("inf")
        sizes = tl.maximum(sizes, tl.where(is_finite, tl.abs(numbers), 0.0))
        broken += tl.where(is_finite, 0, 1)
    largest = tl.max(sizes)
    is_broken = tl.sum(broken) > 0
    kept = (largest >= 1e-30) & (is_broken == 0)
    factor = tl.where(kept, quotient(largest * 0.0 + LARGEST, tl.where(kept, largest, 1.0)), 0.0)
    for start in range(0, num_inputs, BLOCK):
        inside = start + at < num_inputs
        numbers = tl.load(x + row * x_stride + start + at, mask=inside, other=0.0).to(tl.float32)
        numbers = tl.where(factor > 0.0, numbers * factor, 0.0)
        numbers = tl.minimum(tl.maximum(numbers, -LARGEST), LARGEST)
        if IS_INT:
            numbers = nearest_even(numbers)
        else:
            numbers = nearest_e4m3(numbers)
        tl.store(digits + row * num_inputs + start + at, numbers.to(digits.dtype.element_ty), mask=inside)
    tl.store(
        scales + row, tl.where(is_broken, float("nan"), tl.where(kept, quotient(largest, largest * 0.0 + LARGEST), 0.0))
    )


@triton.jit
def product_kernel(
    x, weight, x_scale, scale, bias, out, shares, num_rows, num_outputs, num_inputs, split_inputs, x_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_SPLITS: tl.constexpr,
    HAS_X_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, IS_INT: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of outputs, tiles of rows, splits. shares: int32 or fp32 [splits, rows, outputs]."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    is_row, is_column = row < num_rows, column < num_outputs
    # Rows and outputs past the end repeat the last one: loads need no mask along them, and they are never stored.
    x_at = x + tl.minimum(row, num_rows - 1).to(tl.int64)[:, None] * x_stride
    weight_at = weight + tl.minimum(column, num_outputs - 1).to(tl.int64)[None, :] * num_inputs
    if IS_INT:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(split * split_inputs, tl.minimum((split + 1) * split_inputs, num_inputs), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(x_at + k[None, :], mask=(k < num_inputs)[None, :], other=0.0)
        right = tl.load(weight_at + k[:, None], mask=(k < num_inputs)[:, None], other=0.0)
        if UPCAST:
            left = left.to(tl.float32)
        if IS_INT:
            total += tl.dot(left, right, out_dtype=tl.int32)
        else:
            total += tl.dot(left, right.to(left.dtype), input_precision="ieee")
    at = row.to(tl.int64)[:, None] * num_outputs + column[None, :]
    inside = is_row[:, None] & is_column[None, :]
    if not HAS_SPLITS:
        result = total.to(tl.float32) * tl.load(scale + column, mask=is_column, other=0.0)[None, :]
        if HAS_X_SCALE:
            result *= tl.load(x_scale + row, mask=is_row, other=0.0)[:, None]
        if HAS_BIAS:
            result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(shares + split.to(tl.int64) * num_rows * num_outputs + at, total, mask=inside)


@triton.jit
def add_shares_kernel(
    shares, x_scale, scale, bias, out, num_rows, num_outputs, num_splits, HAS_X_SCALE: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows, tiles of outputs. The shares in order, then the scales and the bias."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_outputs
    at = row * num_outputs + column
    share_stride = (row * 0 + num_rows) * num_outputs  # in 64 bits
    total = tl.load(shares + at, mask=inside, other=0)
    for split in range(1, num_splits):
        total += tl.load(shares + split * share_stride + at, mask=inside, other=0)
    result = total.to(tl.float32)
    if HAS_SCALE:
        result *= tl.load(scale + column, mask=inside, other=0.0)
    if HAS_X_SCALE:
        result *= tl.load(x_scale + row)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class LinearTile:
    """The shape of a launch. split_inputs: inputs of a split, a multiple of block_k."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    split_inputs: int = 0
    num_splits: int = 1


def linear_tile(num_rows: int, x_bytes: int) -> LinearTile:
    """By the number of rows, without splits; x_bytes: of a number of x. At most 96 KiB of shared memory."""
    if num_rows <= 16:
        return LinearTile(16, 64, 128, num_warps=4, num_stages=4)
    if num_rows <= 32:
        return LinearTile(32, 64, 128, num_warps=4, num_stages=4)
    if num_rows <= 64:
        return LinearTile(64, 64, 128 if x_bytes == 1 else 64, num_warps=4, num_stages=3)
    return LinearTile(128, 128, 128 if x_bytes == 1 else 64, num_warps=8, num_stages=3)


def split_tile(tile: LinearTile, num_inputs: int, num_programs: int, num_sms: int) -> LinearTile:
    """As many splits as fill the processors twice, of at least 512 inputs."""
    wanted = triton.cdiv(2 * num_sms, max(num_programs, 1))
    splits = max(1, min(wanted, _MOST_SPLITS, num_inputs // _LEAST_SPLIT_INPUTS))
    split_inputs = triton.cdiv(triton.cdiv(num_inputs, splits), tile.block_k) * tile.block_k
    return LinearTile(
        tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.num_stages,
        split_inputs, triton.cdiv(num_inputs, split_inputs),
    )  # fmt: skip


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x: [rows, in] -> digits int8 or fp8 (e4m3) [rows, in], scales fp32 [rows]. A row without a number of at least
    1e-30 is zeros; one that holds NaN or infinity has the scale NaN."""
    contiguous_rows(x, "x")
    rows, num_inputs = x.shape
    digits = torch.empty((rows, num_inputs), dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        is_int = dtype == torch.int8
        quantize_rows_kernel[(rows,)](
            x, digits, scales, num_inputs, x.stride(0), LARGEST=127.0 if is_int else 448.0, IS_INT=is_int,
            BLOCK=min(_CHUNK, power_of_two(num_inputs, 16)), num_warps=8,
        )  # fmt: skip
    return digits, scales


def int8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, *, deterministic: bool = False,
    tile: LinearTile | None = None,
) -> Tensor:  # fmt: skip
    """W8A8: x quantized a row at a time to int8; weight: int8."""
    _check(x, weight, scale, torch.int8)
    return _product(*quantize_rows(x, torch.int8), weight, scale, bias, x.dtype, deterministic, tile)


def fp8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, *, deterministic: bool = False,
    tile: LinearTile | None = None,
) -> Tensor:  # fmt: skip
    """W8A8: x quantized a row at a time to fp8; weight: fp8 (e4m3). sm_89 and newer."""
    _check(x, weight, scale, torch.float8_e4m3fn)
    return _product(*quantize_rows(x, torch.float8_e4m3fn), weight, scale, bias, x.dtype, deterministic, tile)


def int8_weight_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, *, deterministic: bool = False,
    tile: LinearTile | None = None,
) -> Tensor:  # fmt: skip
    """weight: int8, turned into x's type on the way; x as it is."""
    _check(x, weight, scale, torch.int8)
    return _product(x, None, weight, scale, bias, x.dtype, deterministic, tile)


def dense_linear(
    x: Tensor, weight: Tensor, ones: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype | None = None,
    tile: LinearTile | None = None,
) -> Tensor:  # fmt: skip
    """weight: floats of x's type [out, in]; ones: fp32 [out], the scales that the kernel multiplies by. The launch is
    the deterministic one. -> dtype, or x's type."""
    _check(x, weight, ones, x.dtype)
    return _product(x, None, weight, ones, bias, dtype or x.dtype, True, tile)


def _check(x: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
    contiguous_rows(x, "x")
    check_fp8(dtype, x.device, "weight")
    if weight.dtype != dtype or not weight.is_contiguous():
        raise ValueError(f"weight: must be contiguous {dtype}, got {weight.dtype} with strides {weight.stride()}")
    if x.shape[1] != weight.shape[1] or scale.shape != weight.shape[:1]:
        raise ValueError(
            f"x: {list(x.shape)} does not fit a weight {list(weight.shape)} with scales {list(scale.shape)}"
        )


def _product(
    x: Tensor, x_scale: Tensor | None, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype,
    deterministic: bool, tile: LinearTile | None,
) -> Tensor:  # fmt: skip
    rows, (num_outputs, num_inputs) = len(x), weight.shape
    out = torch.empty((rows, num_outputs), dtype=dtype, device=x.device)
    if not rows or not num_outputs:
        return out
    is_int = x.dtype == torch.int8
    if tile is None:
        tile = linear_tile(64 if deterministic else rows, x.element_size())
        row_tiles = 1 if deterministic else triton.cdiv(rows, tile.block_m)
        programs = triton.cdiv(num_outputs, tile.block_n) * row_tiles
        tile = split_tile(tile, num_inputs, programs, num_processors(x.device))
    shares = out
    if tile.num_splits > 1:
        kind = torch.int32 if is_int else torch.float32
        shares = torch.empty((tile.num_splits, rows, num_outputs), dtype=kind, device=x.device)
    product_kernel[(triton.cdiv(num_outputs, tile.block_n), triton.cdiv(rows, tile.block_m), tile.num_splits)](
        x, weight, scale if x_scale is None else x_scale, scale, scale if bias is None else bias, out, shares,
        rows, num_outputs, num_inputs, tile.split_inputs or num_inputs, x.stride(0),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, HAS_SPLITS=tile.num_splits > 1,
        HAS_X_SCALE=x_scale is not None, HAS_BIAS=bias is not None, IS_INT=is_int, UPCAST=upcasts(x.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if tile.num_splits > 1:
        add_shares(shares, x_scale, scale, bias, out)
    return out


def add_shares(shares: Tensor, x_scale: Tensor | None, scale: Tensor | None, bias: Tensor | None, out: Tensor) -> None:
    """shares: [splits, rows, outputs], summed in order into out, [rows, outputs], with scales and bias if there are."""
    splits, rows, num_outputs = shares.shape
    add_shares_kernel[(rows, triton.cdiv(num_outputs, 512))](
        shares, shares if x_scale is None else x_scale, shares if scale is None else scale,
        shares if bias is None else bias, out, rows, num_outputs, splits, HAS_X_SCALE=x_scale is not None,
        HAS_SCALE=scale is not None, HAS_BIAS=bias is not None, BLOCK=512, num_warps=4,
    )  # fmt: skip


__all__ = ["LinearTile", "add_shares", "dense_linear", "fp8_linear", "int8_linear", "int8_weight_linear", "linear_tile",
           "quantize_rows", "split_tile"]  # fmt: skip
