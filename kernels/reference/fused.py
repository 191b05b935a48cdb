"""Twins of what `kernels.triton` fuses: several operations of the protocol in one call, as plain formulas."""

from __future__ import annotations

import torch
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual: [rows, dim] -> rms_norm(x + residual), and x + residual, rounded to x's type before its norm."""
    total = (x.float() + residual.float()).to(x.dtype)
    numbers = total.float()
    normed = numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + eps) * weight.float()
    return normed.to(x.dtype), total


__all__ = ["add_rms_norm"]
