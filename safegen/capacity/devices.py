"""What devices can do: published figures of accelerators, and this processor, which is measured.

Published, dense (no sparsity), bf16 products with fp32 sums where the maker tells them apart:

    A100 80GB SXM   312 TFLOP/s    2,039 GB/s   80 GB    NVIDIA A100 Tensor Core GPU datasheet
    H100 SXM        989 TFLOP/s    3,350 GB/s   80 GB    NVIDIA H100 Tensor Core GPU datasheet (half of sparse 1,979)
    H200 SXM        989 TFLOP/s    4,800 GB/s   141 GB   NVIDIA H200 Tensor Core GPU datasheet (half of sparse 1,979)
    L4              121 TFLOP/s    300 GB/s     24 GB    NVIDIA L4 Tensor Core GPU datasheet (half of sparse 242)
    RTX 4090        165 TFLOP/s    1,008 GB/s   24 GB    NVIDIA Ada GPU Architecture whitepaper, appendix A

No kernel reaches these. `attained_*` say which share we count on; they are assumptions, not measurements: safegen has
no GPU kernels in this version. GB are 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GB = 10**9
_GPU_MEMORY_SHARE = 0.9  # the rest: the driver's context, fragmentation


@dataclass(frozen=True, slots=True)
class Device:
    """read_bytes_per_s, products_per_s (a multiply-add is two): peaks. attained_bandwidth, attained_products: the share
    of them that a plan counts on. memory_bytes: for weights, activations and the cache. step_overhead_s: of a step,
    whatever it computes. measured: the figures are of this machine; else they are published ones."""

    name: str
    read_bytes_per_s: float
    products_per_s: float
    memory_bytes: int
    attained_bandwidth: float = 0.8
    attained_products: float = 0.5
    step_overhead_s: float = 5e-4
    measured: bool = False

    @property
    def usable_memory_bytes(self) -> int:
        return self.memory_bytes if self.measured else int(self.memory_bytes * _GPU_MEMORY_SHARE)


PUBLISHED: Mapping[str, Device] = MappingProxyType(
    {
        "a100": Device("A100 80GB SXM", 2_039 * GB, 312e12, 80 * GB),
        "h100": Device("H100 SXM", 3_350 * GB, 989e12, 80 * GB),
        "h200": Device("H200 SXM", 4_800 * GB, 989e12, 141 * GB),
        "l4": Device("L4", 300 * GB, 121e12, 24 * GB),
        "rtx4090": Device("RTX 4090", 1_008 * GB, 165.2e12, 24 * GB),
    }
)

__all__ = ["PUBLISHED", "Device"]
