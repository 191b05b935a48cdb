"""Named arrays side by side in one run of bytes, so that all inputs of a step cross to the device in one copy.

The same layout is laid over staging (as numpy arrays, to be written) and over the device's buffer (as tensors, to be
captured). It follows from the graph's key alone, so a graph finds its inputs where they were when it was captured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16
_DTYPES: Mapping[torch.dtype, type[np.generic]] = {
    torch.int32: np.int32, torch.int64: np.int64, torch.float64: np.float64
}  # fmt: skip

Shape = tuple[int, ...]


class Layout:
    """fields: name -> (shape, type)."""

    def __init__(self, fields: Mapping[str, tuple[Shape, torch.dtype]]) -> None:
        self._fields: dict[str, tuple[int, int, Shape, torch.dtype]] = {}
        at = 0
        for name, (shape, dtype) in fields.items():
            num_bytes = math.prod(shape) * dtype.itemsize
            self._fields[name] = (at, at + num_bytes, shape, dtype)
            at += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = at

    def tensors(self, memory: Tensor) -> dict[str, Tensor]:
        """memory: uint8, at least num_bytes. Views into it."""
        views = {}
        for name, (begin, end, shape, dtype) in self._fields.items():
            views[name] = memory[begin:end].view(dtype).view(shape)
        return views

    def arrays(self, memory: Tensor) -> dict[str, NDArray[Any]]:
        """The same over host memory, to be written."""
        whole = memory.numpy()
        return {
            name: whole[begin:end].view(_DTYPES[dtype]).reshape(shape)
            for name, (begin, end, shape, dtype) in self._fields.items()
        }


class StagingRing:
    """Staging for uploads and downloads that follow each other faster than they are done: a few buffers in turns, each
    taken again when the copy before is over. device: the `Device` that copies."""

    def __init__(self, device: Any, num_bytes: int, count: int = 3) -> None:
        self._device = device
        self._buffers = [device.staging(num_bytes) for _ in range(count)]
        self._marks: list[Any] = [None] * count
        self._next = 0

    def take(self) -> Tensor:
        """The next buffer; `release` it once its copy was started."""
        if self._marks[self._next] is not None:
            self._device.wait(self._marks[self._next])
        buffer: Tensor = self._buffers[self._next]
        return buffer

    def release(self, mark: Any) -> None:
        """mark: behind the copy from, or into, the buffer that was taken last."""
        self._marks[self._next] = mark
        self._next = (self._next + 1) % len(self._buffers)


__all__ = ["Layout", "StagingRing"]
