"""How many threads a process computes with: a setting of the process, which no result depends on."""

from __future__ import annotations

import torch

from safegen.kernels import cpu


def num_threads() -> int:
    """Of the native kernels; until it is set, one for each physical core that the process may use."""
    return cpu.num_threads()


def set_num_threads(threads: int) -> None:
    """Of the native kernels and of torch, 1 to 256."""
    cpu.set_num_threads(threads)
    torch.set_num_threads(threads)
