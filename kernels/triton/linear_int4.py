"""Linears of int4 weights with groups (AWQ, GPTQ), for 1 to 256 rows.

The packing of `kernels.int4`: 16 words of 128 inputs; a shift by 4 * p leaves plane p, the digits of 16 neighbouring
inputs. One row is bound by the memory that the words come from, so it takes no tensor cores: digits meet x in place, 16
partial sums an output, added up once at the end. More rows multiply planes of 16 inputs, one instruction deep, in x's
type: digits less zero are exact there. Sums over a plane, or over a tile of one group, are scaled in fp32, so no weight
is ever rounded.

Splits of the inputs fill the processors, as in linear.py; `deterministic=True` takes the tensor cores for one row too,
with a tile and splits that follow from the weight's shape.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.int4 import TILE_INPUTS, Int4Weight
from safegen.kernels.triton.linear import LinearTile, add_shares, split_tile
from safegen.kernels.triton.runtime import contiguous_rows, num_processors, upcasts


@triton.jit
def plane_of(words, zeros, p: tl.constexpr):
    """Digits of plane p less their zeros, int32 [16, outputs]."""
    return ((words >> (4 * p)) & 15) - zeros[None, :]


@triton.jit
def int4_row_kernel(
    x, words, scale, zero, bias, out, shares, num_outputs, num_inputs, split_inputs,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, HAS_SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One row. Grid: tiles of outputs, splits."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < num_outputs
    split = tl.program_id(1)
    j = tl.arange(0, 16)
    total = tl.zeros([16, BLOCK_N], tl.float32)
    for start in range(split * split_inputs, tl.minimum((split + 1) * split_inputs, num_inputs), 128):
        word_row = (start // 8 + j).to(tl.int64)
        packed = tl.load(words + word_row[:, None] * num_outputs + column[None, :], mask=is_column[None, :], other=0)
        for p in tl.static_range(8):
            k = start + 16 * p + j
            numbers = tl.load(x + k, mask=k < num_inputs, other=0.0).to(tl.float32)
            # Inputs past the end are zeros of x; their group is taken for the last one's.
            group = tl.minimum(start + 16 * p, num_inputs - 1) // GROUP
            at = group.to(tl.int64) * num_outputs + column
            sizes = tl.load(scale + at, mask=is_column, other=0.0).to(tl.float32)
            zeros = tl.load(zero + at, mask=is_column, other=0).to(tl.int32)
            digits = plane_of(packed, zeros, p).to(tl.float32)
            total += numbers[:, None] * (digits * sizes[None, :])
    result = tl.sum(total, axis=0)
    if not HAS_SPLITS:
        if HAS_BIAS:
            result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
        tl.store(out + column, result.to(out.dtype.element_ty), mask=is_column)
    else:
        tl.store(shares + split.to(tl.int64) * num_outputs + column, result, mask=is_column)


@triton.jit
def int4_kernel(
    x, words, scale, zero, bias, out, shares, num_rows, num_outputs, num_inputs, split_inputs, x_stride,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of outputs, tiles of rows, splits."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    is_row, is_column = row < num_rows, column < num_outputs
    j = tl.arange(0, 16)
    x_at = x + tl.minimum(row, num_rows - 1).to(tl.int64)[:, None] * x_stride
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(split * split_inputs, tl.minimum((split + 1) * split_inputs, num_inputs), 128):
        word_row = (start // 8 + j).to(tl.int64)
        packed = tl.load(words + word_row[:, None] * num_outputs + column[None, :], mask=is_column[None, :], other=0)
        for p in tl.static_range(8):
            k = start + 16 * p + j
            left = tl.load(x_at + k[None, :], mask=(k < num_inputs)[None, :], other=0.0)
            if UPCAST:
                left = left.to(tl.float32)
            group = tl.minimum(start + 16 * p, num_inputs - 1) // GROUP
            at = group.to(tl.int64) * num_outputs + column
            zeros = tl.load(zero + at, mask=is_column, other=0).to(tl.int32)
            part = tl.dot(left, plane_of(packed, zeros, p).to(left.dtype), input_precision="ieee")
            total += part * tl.load(scale + at, mask=is_column, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None] * num_outputs + column[None, :]
    inside = is_row[:, None] & is_column[None, :]
    if not HAS_SPLITS:
        if HAS_BIAS:
            total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(shares + split.to(tl.int64) * num_rows * num_outputs + at, total, mask=inside)


def int4_tile(num_rows: int) -> LinearTile:
    """By the number of rows, without splits."""
    if num_rows == 1:
        return LinearTile(1, 128, TILE_INPUTS, num_warps=4, num_stages=3)
    if num_rows <= 32:
        return LinearTile(16 if num_rows <= 16 else 32, 64, TILE_INPUTS, num_warps=4, num_stages=3)
    return LinearTile(64, 128, TILE_INPUTS, num_warps=8, num_stages=3)


def int4_linear(
    x: Tensor, weight: Int4Weight, bias: Tensor | None = None, *, deterministic: bool = False,
    tile: LinearTile | None = None,
) -> Tensor:  # fmt: skip
    """x: [rows, in] fp16, bf16 or fp32 -> [rows, out] in x's type."""
    contiguous_rows(x, "x")
    rows, (num_outputs, num_inputs) = len(x), weight.shape
    if x.shape[1] != num_inputs:
        raise ValueError(f"x: rows of {x.shape[1]} numbers for a weight of {num_inputs} inputs")
    out = torch.empty((rows, num_outputs), dtype=x.dtype, device=x.device)
    if not rows:
        return out
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    if tile is None:
        tile = int4_tile(64 if deterministic else rows)
        row_tiles = 1 if deterministic else triton.cdiv(rows, tile.block_m)
        programs = triton.cdiv(num_outputs, tile.block_n) * row_tiles
        tile = split_tile(tile, num_inputs, programs, num_processors(x.device))
    _launch(x, weight, bias, out, tile)
    return out


def _launch(x: Tensor, weight: Int4Weight, bias: Tensor | None, out: Tensor, tile: LinearTile) -> None:
    rows, (num_outputs, num_inputs) = len(x), weight.shape
    shares = out
    if tile.num_splits > 1:
        shares = torch.empty((tile.num_splits, rows, num_outputs), dtype=torch.float32, device=x.device)
    tensors = (x, weight.words, weight.scale, weight.zero, weight.scale if bias is None else bias, out, shares)
    inputs = (num_outputs, num_inputs, tile.split_inputs or num_inputs)
    constants = {"GROUP": weight.group, "BLOCK_N": tile.block_n, "HAS_SPLITS": tile.num_splits > 1}
    options = {"HAS_BIAS": bias is not None, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
    columns = triton.cdiv(num_outputs, tile.block_n)
    if tile.block_m == 1:
        int4_row_kernel[(columns, tile.num_splits)](*tensors, *inputs, **constants, **options)
    else:
        grid = (columns, triton.cdiv(rows, tile.block_m), tile.num_splits)
        int4_kernel[grid](
            *tensors, rows, *inputs, x.stride(0), BLOCK_M=tile.block_m, UPCAST=upcasts(x.dtype), **constants, **options
        )
    if tile.num_splits > 1:
        add_shares(shares, None, None, bias, out)


__all__ = ["int4_linear", "int4_tile"]
