"""The engine's counter-based random numbers on the device: Philox4x64-10 by (seed, position, index, attempt).

The function of `engine/rng.py`, bit for bit, so a draw needs no number from the host, and a captured graph none from
the step before. 64-bit words; the high halves of products are `mul.hi.u64`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox_uniform(seed, index, position, attempt):
    """A float64 in [0, 1): the upper 53 bits of the first word of the counter (position, index, attempt, 0) under the
    key (seed, 0). All are uint64 (int64 bits)."""
    c0 = position.to(tl.uint64)
    c1 = index.to(tl.uint64)
    c2 = attempt.to(tl.uint64)
    c3 = c0 ^ c0
    k0 = seed.to(tl.uint64)
    k1 = c3
    first = c3 + 0xD2E7470EE14C6C93
    second = c3 + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high0 = tl.umulhi(first, c0)
        high1 = tl.umulhi(second, c2)
        low0 = first * c0
        low1 = second * c2
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + 0x9E3779B97F4A7C15
        k1 = k1 + 0xBB67AE8584CAA73B
    return (c0 >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


__all__ = ["philox_uniform"]
