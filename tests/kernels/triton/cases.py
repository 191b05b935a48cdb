"""What the tests of the GPU kernels share: random tensors, tensors amid guard regions, and tolerances.

Tolerances. fp32 kernels differ from their twins by the order of sums alone: 2e-6 of a result's size. fp16 and bf16
results are rounded once from fp32, so they may differ by one unit in the last place: 2^-10 and 2^-7 of their size. The
interpreter cuts bf16 off instead of rounding it, so there it is twice that.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float32: 4e-6, torch.float16: 2**-10, torch.bfloat16: 2**-6}
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.wide)]
ROWS = [1, 7, pytest.param(2, marks=pytest.mark.wide), pytest.param(33, marks=pytest.mark.wide)]


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def guarded(tensor: Tensor, extra_columns: int = 3) -> Tensor:
    """The same numbers as a view into a larger tensor of NaN: what is read beside them shows in the result."""
    rows, width = tensor.shape[0], tensor[0].numel()
    around = torch.full((rows + 4, width + extra_columns), torch.nan, dtype=tensor.dtype)
    view = (
        around[2 : 2 + rows, :width].unflatten(1, tensor.shape[1:])
        if tensor.dim() > 2
        else around[2 : 2 + rows, :width]
    )
    view.copy_(tensor)
    return view


def assert_close(got: Tensor, expected: Tensor, factor: float = 1.0) -> None:
    """Within the tolerance of the result's type, relative to each number and to the largest ones' average size."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    tolerance = TOLERANCE[got.dtype] * factor
    atol = tolerance * max(1e-3, float(expected.float().abs().mean())) if expected.numel() else 0.0
    torch.testing.assert_close(got.float(), expected.float(), rtol=tolerance, atol=atol)
