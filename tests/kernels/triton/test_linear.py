"""Quantized linears, interpreted, against their twins.

Tolerances: int8 products are exact sums, so their results are within the rounding of the output type; the others sum in
fp32, in another order than float64: 1e-5 of the size of the numbers summed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.kernels.int4 import Int4Weight, pack_int4
from safegen.kernels.reference import linears as twin
from safegen.kernels.triton import linear, linear_int4
from safegen.kernels.triton.linear import LinearTile
from tests.kernels.triton.cases import DTYPES, ROWS, guarded, randn

INT8, FP8 = torch.int8, torch.float8_e4m3fn
TINY = LinearTile(16, 16, 32, num_warps=4, num_stages=2)
SPLIT = LinearTile(16, 16, 32, num_warps=4, num_stages=2, split_inputs=64, num_splits=3)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def weight_of(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    numbers = randn(outputs, inputs, seed=5)
    return twin.quantize_rows(numbers, dtype)


def int4_of(outputs: int, inputs: int, group: int, shuffled: bool = False) -> Int4Weight:
    generator = torch.Generator().manual_seed(4)
    digits = torch.randint(0, 16, (inputs, outputs), generator=generator)
    shape = (-(-inputs // group), outputs)
    zero, scale = torch.randint(0, 17, shape, generator=generator), torch.rand(shape, generator=generator) * 0.1
    order = torch.randperm(inputs, generator=generator) if shuffled else None
    return pack_int4(digits, scale.half(), zero, group, order)


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape
    tolerance = TOLERANCE[got.dtype]
    size = float(expected.float().abs().mean()) if expected.numel() else 0.0
    torch.testing.assert_close(got.float(), expected.float(), rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("inputs", [1, 100, 2050])
def test_rows_are_quantized_to_the_digits_of_the_twin(dtype: torch.dtype, rows: int, inputs: int) -> None:
    x = guarded(randn(rows, inputs) * 5)
    for got, expected in zip(linear.quantize_rows(x, dtype), twin.quantize_rows(x, dtype), strict=True):
        assert torch.equal(got.float(), expected.float())


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
def test_rows_that_cannot_be_quantized_are_zeros_or_nan(dtype: torch.dtype) -> None:
    x = torch.ones(4, 40)
    x[0], x[1, 3], x[2, 39] = 1e-31, torch.nan, -torch.inf
    digits, scales = linear.quantize_rows(x, dtype)
    assert not digits[0].float().any() and scales[0] == 0.0
    assert scales[1].isnan() and scales[2].isnan() and torch.equal(digits[3].float() * scales[3], x[3])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("tile", [TINY, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 160), (33, 170)])
def test_eight_bit_linears_equal_their_twins(
    dtype: torch.dtype, rows: int, tile: LinearTile, outputs: int, inputs: int
) -> None:
    x = guarded(randn(rows, inputs, dtype=dtype))
    bias = randn(outputs, seed=6).to(dtype) if rows != 2 else None
    cases: list[tuple[Any, Any, torch.dtype]] = [
        (linear.int8_linear, twin.int8_linear, INT8),
        (linear.fp8_linear, twin.fp8_linear, FP8),
        (linear.int8_weight_linear, twin.int8_weight_linear, INT8),
    ]
    for ours, theirs, kind in cases:
        weight, scale = weight_of(outputs, inputs, kind)
        assert_close(ours(x, weight, scale, bias, tile=tile), theirs(x, weight, scale, bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("outputs", "inputs", "group"), [(8, 128, 128), (33, 256, 32), (24, 208, 16), (130, 384, 384), (1, 640, 64)]
)
def test_int4_linear_equals_its_twin(dtype: torch.dtype, rows: int, outputs: int, inputs: int, group: int) -> None:
    x, weight = guarded(randn(rows, inputs, dtype=dtype)), int4_of(outputs, inputs, group, shuffled=rows == 7)
    bias = randn(outputs, seed=6).to(dtype) if rows != 2 else None
    expected = twin.int4_linear(x, weight, bias)
    assert_close(linear_int4.int4_linear(x, weight, bias), expected)
    blocks = 1 if rows == 1 else 16
    split = LinearTile(blocks, 16, 128, num_warps=4, num_stages=2, split_inputs=128, num_splits=-(-inputs // 128))
    assert_close(linear_int4.int4_linear(x, weight, bias, tile=split), expected)


@pytest.mark.wide
@pytest.mark.parametrize("rows", [64, 100, 256])
def test_many_rows_equal_their_twins(rows: int) -> None:
    x = randn(rows, 256, dtype=torch.float16)
    weight = int4_of(72, 256, 128)
    assert_close(linear_int4.int4_linear(x, weight), twin.int4_linear(x, weight))
    digits, scale = weight_of(72, 256, INT8)
    assert_close(linear.int8_linear(x, digits, scale), twin.int8_linear(x, digits, scale))


def test_deterministic_rows_have_the_same_bits_in_any_company() -> None:
    x, (weight, scale) = randn(70, 300, dtype=torch.float16), weight_of(20, 300, FP8)
    four = int4_of(20, 300, 32)
    functions: list[Any] = [
        lambda rows: linear.fp8_linear(rows, weight, scale, deterministic=True),
        lambda rows: linear.int8_weight_linear(rows, weight_of(20, 300, INT8)[0], scale, deterministic=True),
        lambda rows: linear_int4.int4_linear(rows, four, deterministic=True),
    ]
    for function in functions:
        together = function(x)
        for start, end in ((0, 1), (5, 7), (3, 70)):
            assert torch.equal(function(x[start:end]), together[start:end])


def test_tiles_fit_the_weight_and_fill_the_processors() -> None:
    tile = linear.linear_tile(1, 2)
    split = linear.split_tile(tile, 14336, num_programs=64, num_sms=132)
    assert split.num_splits == 5 and split.split_inputs % tile.block_k == 0
    assert (split.num_splits - 1) * split.split_inputs < 14336 <= split.num_splits * split.split_inputs
    assert linear.split_tile(tile, 14336, num_programs=1000, num_sms=132).num_splits == 1
    assert linear.split_tile(tile, 100, num_programs=1, num_sms=132).num_splits == 1


def test_arguments_that_do_not_fit_are_refused_by_name() -> None:
    weight, scale = weight_of(8, 32, INT8)
    with pytest.raises(ValueError, match=r"x: \[2, 31\] does not fit a weight \[8, 32\]"):
        linear.int8_linear(randn(2, 31), weight, scale)
    with pytest.raises(ValueError, match=r"weight: must be contiguous torch\.float8_e4m3fn"):
        linear.fp8_linear(randn(2, 32), weight, scale)
    with pytest.raises(ValueError, match="rows of 31 numbers for a weight of 128 inputs"):
        linear_int4.int4_linear(randn(2, 31), int4_of(8, 128, 32))


def test_no_rows_give_no_rows() -> None:
    weight, scale = weight_of(8, 32, INT8)
    assert linear.int8_linear(torch.zeros(0, 32), weight, scale).shape == (0, 8)
    assert linear_int4.int4_linear(torch.zeros(0, 128), int4_of(8, 128, 32)).shape == (0, 8)
