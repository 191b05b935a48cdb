"""Norms, RoPE and activations, interpreted, against plain torch in fp32."""

from __future__ import annotations

import pytest
import torch

from safegen.kernels.reference import ReferenceOps, fused
from safegen.kernels.triton import elementwise
from tests.kernels.triton.cases import DTYPES, ROWS, assert_close, guarded, randn

REFERENCE = ReferenceOps()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [1, 96, 576, 1500])
def test_rms_norm_equals_its_twin(dtype: torch.dtype, rows: int, dim: int) -> None:
    x, weight = guarded(randn(rows, dim, dtype=dtype) * 3), randn(dim, seed=2).to(dtype)
    expected = REFERENCE.rms_norm(x.float(), weight.float(), 1e-5).to(dtype)
    assert_close(elementwise.rms_norm(x, weight, 1e-5), expected)


def test_rms_norm_of_heads_takes_each_head_by_itself() -> None:
    x, weight = randn(5, 9, 64), randn(64, seed=2)
    got = elementwise.rms_norm(x, weight, 1e-6)
    assert_close(got, REFERENCE.rms_norm(x, weight, 1e-6))
    assert torch.equal(got[2:3], elementwise.rms_norm(x[2:3], weight, 1e-6))
    fused = torch.full((5, 12, 64), torch.nan)
    fused[:, 2:11] = x
    assert torch.equal(elementwise.rms_norm(fused[:, 2:11], weight, 1e-6), got)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [80, 1100])
def test_add_rms_norm_equals_its_twin(dtype: torch.dtype, rows: int, dim: int) -> None:
    x, residual = guarded(randn(rows, dim, dtype=dtype)), guarded(randn(rows, dim, seed=3, dtype=dtype))
    weight = randn(dim, seed=2)
    for got, expected in zip(
        elementwise.add_rms_norm(x, residual, weight, 1e-5), fused.add_rms_norm(x, residual, weight, 1e-5), strict=True
    ):
        assert_close(got, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "dim", "rotary"), [(1, 64, 64), (9, 64, 64), (7, 80, 80), (4, 96, 72), (3, 128, 32), (2, 24, 6)]
)
def test_rope_equals_its_twin(interleaved: bool, dtype: torch.dtype, heads: int, dim: int, rotary: int) -> None:
    tokens = 7
    x = guarded(randn(tokens, heads, dim, dtype=dtype))
    angle = torch.outer(torch.arange(50).float(), 100.0 ** -(torch.arange(0, rotary, 2) / rotary))
    position = torch.tensor([0, 49, 3, 3, 17, 48, 1], dtype=torch.int32)
    got = elementwise.rope(x, angle.cos(), angle.sin(), position, interleaved)
    expected = REFERENCE.rope(x.float(), angle.cos(), angle.sin(), position, interleaved).to(dtype)
    assert_close(got, expected)
    assert torch.equal(got[..., rotary:], x[..., rotary:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 1025])
def test_activations_equal_their_twins(dtype: torch.dtype, rows: int, width: int) -> None:
    gate, up = guarded(randn(rows, width, dtype=dtype) * 4), guarded(randn(rows, width, seed=2, dtype=dtype))
    for ours, twin in (
        (elementwise.silu_mul, REFERENCE.silu_mul),
        (elementwise.gelu_mul, REFERENCE.gelu_mul),
    ):
        assert_close(ours(gate, up), twin(gate.float(), up.float()).to(dtype), factor=2.0)
    assert_close(elementwise.softcap(gate, 5.0), REFERENCE.softcap(gate.float(), 5.0).to(dtype), factor=2.0)


def test_activations_hold_at_the_ends_of_the_number_line() -> None:
    x = torch.tensor([[-torch.inf, -1e30, -90.0, 0.0, 90.0, 1e30]])
    assert torch.equal(elementwise.softcap(x, 2.0), torch.tensor([[-2.0, -2.0, -2.0, 0.0, 2.0, 2.0]]))
    ones = torch.ones(1, 5)
    assert torch.equal(elementwise.silu_mul(x[:, 1:], ones)[0, [0, 2, 3]], torch.tensor([0.0, 0.0, 90.0]))


def test_a_tensor_whose_rows_are_not_contiguous_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="gate: the last dimension must be contiguous"):
        elementwise.silu_mul(randn(4, 6).T, randn(6, 4))
    with pytest.raises(ValueError, match="rows of 70000 numbers"):
        elementwise.rms_norm(torch.zeros(1, 70000), torch.zeros(70000), 1e-5)


def test_no_rows_give_no_rows() -> None:
    nothing = torch.zeros(0, 8)
    assert elementwise.rms_norm(nothing, torch.ones(8), 1e-5).shape == (0, 8)
    assert elementwise.silu_mul(nothing, nothing).shape == (0, 8)
