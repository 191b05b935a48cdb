"""The tensors of the paged cache: their type, their bytes, and how they are made and copied.

One `KvLayer` a layer, zeroed by the operating system as pages are touched, so an idle pool costs address space rather
than memory; a large one lies in huge pages. "auto" is float16 on the native kernels, which convert as they read and sum
in fp32, bfloat16 on a GPU, and float32 on the reference, whose purpose is parity. A token's keys and values are rounded
once, when they are written; what is read back does not depend on how the prompt was cut.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safegen.engine import capacity
from safegen.engine.config import KvCacheDtype
from safegen.engine.models.config import ModelConfig
from safegen.errors import CapacityError
from safegen.kernels.api import KvLayer, Shape

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "int8": torch.int8}
_HOST = torch.device("cpu")
_LINE_BYTES, _HUGE_PAGE_BYTES = 64, 1 << 21
_LARGE_BYTES = 2 * _HUGE_PAGE_BYTES  # of a tensor that may have huge pages: a few tokens make all of one resident


def resolve_dtype(name: KvCacheDtype, kernels: str) -> torch.dtype:
    """The tensors' type by the option's value and the name of the kernels."""
    if name == "auto":
        return {"reference": torch.float32, "triton": torch.bfloat16}.get(kernels, torch.float16)
    return _DTYPES[name]


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """All layers' keys, values and scales of one token."""
    return capacity.bytes_per_token(
        config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize, per_head_scales=dtype.itemsize == 1
    )


def make_layers(
    config: ModelConfig, dtype: torch.dtype, num_blocks: int, block_size: int, device: torch.device = _HOST
) -> list[KvLayer]:
    """CapacityError when the memory cannot be had."""
    make = _untouched_zeros if device.type == "cpu" else partial(_device_zeros, device)
    try:
        shapes = KvLayer.shapes(num_blocks, block_size, config.num_kv_heads, config.head_dim)
        return [_make_layer(*shapes, dtype, make) for _ in range(config.num_layers)]
    except (MemoryError, RuntimeError, OSError, OverflowError) as exc:
        wanted = num_blocks * block_size * bytes_per_token(config, dtype)
        raise CapacityError(
            f"{wanted} bytes for {num_blocks} KV blocks cannot be allocated. Fix: lower kv_cache_memory."
        ) from exc


def copy_block(layers: list[KvLayer], source: int, destination: int) -> None:
    """One block's keys and values of every layer, with their scales."""
    for layer in layers:
        for tensor in (layer.key, layer.value, layer.key_scale, layer.value_scale):
            if tensor is not None:
                tensor[destination] = tensor[source]


def _make_layer(
    key_shape: Shape,
    value_shape: Shape,
    scale_shape: Shape,
    dtype: torch.dtype,
    make: Callable[[Shape, torch.dtype], Tensor],
) -> KvLayer:
    key, value = make(key_shape, dtype), make(value_shape, dtype)
    if dtype.itemsize > 1:
        return KvLayer(key, value)
    return KvLayer(key, value, make(scale_shape, torch.float32), make(scale_shape, torch.float32))


def _device_zeros(device: torch.device, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _untouched_zeros(shape: Shape, dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the operating system makes when they are touched. (torch.zeros writes them all.)

    A head's row begins where a cache line does, else it would lie in one more; large tensors get huge pages, where the
    system has them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    is_large = num_bytes >= _LARGE_BYTES
    alignment = _HUGE_PAGE_BYTES if is_large else _LINE_BYTES
    memory = _huge_pages(num_bytes + alignment) if is_large else np.zeros(num_bytes + alignment, dtype=np.uint8)
    start = -memory.ctypes.data % alignment
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)


def _huge_pages(num_bytes: int) -> NDArray[np.uint8]:
    """Untouched zeros of the process's own, in huge pages if the system grants them; plain ones elsewhere."""
    if sys.platform != "linux":
        return np.zeros(num_bytes, dtype=np.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


__all__ = ["bytes_per_token", "copy_block", "make_layers", "resolve_dtype"]
