"""What every launch needs to know: whether kernels are interpreted, and how wide a tile is."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

INTERPRETING = bool(triton.knobs.runtime.interpret)


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return max(least, 1 << max(number - 1, 0).bit_length())


def upcasts(dtype: torch.dtype) -> bool:
    """Whether operands of this type are multiplied as fp32: bfloat16 in the interpreter, which cannot multiply it."""
    return INTERPRETING and dtype == torch.bfloat16


def contiguous_rows(tensor: Tensor, name: str) -> Tensor:
    """The tensor, if its last dimension is contiguous. ValueError else: a copy here would hide a slow caller."""
    if tensor.numel() and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: the last dimension must be contiguous, got strides {tensor.stride()}")
    return tensor


def check_fp8(dtype: torch.dtype, device: torch.device, name: str) -> None:
    """ValueError for fp8 numbers on a GPU that has none (before sm_89)."""
    if dtype == torch.float8_e4m3fn and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        major, minor = torch.cuda.get_device_capability(device)
        raise ValueError(f"{name}: fp8 needs a GPU of sm_89 or newer, this one is sm_{major}{minor}; use int8")


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors that a launch can fill."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


__all__ = ["INTERPRETING", "check_fp8", "contiguous_rows", "num_processors", "power_of_two", "upcasts"]
