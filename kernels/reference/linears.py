"""Twins of the GPU's quantized linears, as plain formulas in fp32.

Each has the signature of the one in `kernels.triton`. Activations of W8A8 are quantized as there, a row at a time, so
the products are of the same digits; sums of int8 digits are exact in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from safegen.kernels.int4 import Int4Weight, dequantize_int4
from safegen.kernels.reference import head_digits


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x: [rows, in] -> digits int8 or fp8 (e4m3) [rows, in], scales fp32 [rows]."""
    return head_digits(x.float(), dtype)


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, **_: bool) -> Tensor:
    """W8A8: x [rows, in], weight int8 [out, in], scale fp32 [out] -> [rows, out] in x's type."""
    return _quantized(x, weight, scale, bias)


def fp8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, **_: bool) -> Tensor:
    """W8A8: x [rows, in], weight fp8 (e4m3) [out, in], scale fp32 [out] -> [rows, out] in x's type."""
    return _quantized(x, weight, scale, bias)


def int8_weight_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, **_: bool) -> Tensor:
    """x [rows, in], weight int8 [out, in], scale fp32 [out] -> [rows, out] in x's type; x is not quantized."""
    return _rounded((x.double() @ weight.double().T) * scale.double(), bias, x.dtype)


def int4_linear(x: Tensor, weight: Int4Weight, bias: Tensor | None = None, **_: bool) -> Tensor:
    """x [rows, in] -> [rows, out] in x's type."""
    return _rounded(x.double() @ dequantize_int4(weight).double().T, bias, x.dtype)


def _quantized(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    digits, sizes = quantize_rows(x, weight.dtype)
    product = digits.double() @ weight.double().T
    return _rounded(product * sizes.double()[:, None] * scale.double(), bias, x.dtype)


def _rounded(product: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (product if bias is None else product + bias.double()).to(dtype)


__all__ = ["fp8_linear", "int4_linear", "int8_linear", "int8_weight_linear", "quantize_rows"]
