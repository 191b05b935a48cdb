"""GGUF block types as plain torch: layouts, and exact dequantization. The oracle of every native kernel.

A weight row is a run of blocks; a block holds `elements` values in `block_bytes` bytes: fp16 scales (and minima), then
packed integers. The legacy types (q4_0 .. q8_0) have one scale for 32 values; the k-types a super-block of 256 with
6-bit (q4_k, q5_k) or 8-bit (q6_k) scales of 32 or 16 values. Layouts follow ggml-common.h; the arithmetic is fp32 in
ggml's order, so results equal ggml's scalar code bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockType:
    """One GGUF block type. unpack: uint8 [blocks, block_bytes] -> fp32 [blocks, elements]."""

    kind: str
    elements: int
    block_bytes: int
    unpack: Callable[[Tensor], Tensor]


FLOAT_KINDS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def row_bytes(kind: str, in_features: int) -> int:
    """Bytes of one weight row of in_features values. Raises ValueError where they are no whole number of blocks."""
    if kind in FLOAT_KINDS:
        return in_features * FLOAT_KINDS[kind].itemsize
    block = BLOCK_TYPES[kind]
    if in_features % block.elements:
        raise ValueError(f"a row of {in_features} values is no whole number of {kind} blocks of {block.elements}")
    return in_features // block.elements * block.block_bytes


def dequantize(kind: str, rows: Tensor) -> Tensor:
    """rows: raw uint8 [..., bytes] of whole blocks, or floats [..., in] -> fp32 [..., in]."""
    if kind in FLOAT_KINDS:
        return rows.float()
    block = BLOCK_TYPES[kind]
    blocks = rows.reshape(-1, block.block_bytes)
    return block.unpack(blocks).reshape(*rows.shape[:-1], rows.shape[-1] // block.block_bytes * block.elements)


def round_trip_activations(x: Tensor, group: int = 32) -> Tensor:
    """x: [rows, in] -> the values that int8 activations stand for: each group of a row by itself, symmetric, to nearest
    even. The twin of what the native kernels multiply packed weights with; the last group may be shorter."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % group)).reshape(len(x), -1, group)
    largest = padded.abs().amax(-1, keepdim=True)
    usable = largest >= 1e-34
    digits = torch.where(usable, padded * (127.0 / largest.clamp_min(1e-34)), torch.zeros_like(padded)).round()
    return (digits * (largest / 127.0) * usable).reshape(len(x), -1)[:, : x.shape[-1]]


def _half(blocks: Tensor, start: int) -> Tensor:
    """The fp16 at byte `start` of each block: fp32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, group: int) -> Tensor:
    """uint8 [blocks, bytes], in runs of `group`: low nibbles of a run, then its high ones. -> [blocks, 2 * bytes]."""
    runs = packed.reshape(len(packed), -1, 1, group)
    return torch.cat((runs & 15, runs >> 4), dim=2).reshape(len(packed), -1)


def _bits(packed: Tensor) -> Tensor:
    """uint8 [blocks, bytes] -> single bits, lowest first: uint8 [blocks, 8 * bytes]."""
    shift = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shift) & 1).reshape(len(packed), -1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 4:], 16).float().mul_(_half(blocks, 0))).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 6:], 16) | (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks, 0) * (quants.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    quants = _nibbles(blocks[:, 8:], 16) | (_bits(blocks[:, 4:8]) << 4)
    return quants.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_half(blocks, 0))


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima out of the 12 bytes of q4_k and q5_k: fp32 [blocks, 8] each.

    Bytes 0-3 hold scales 0-3, bytes 4-7 minima 0-3, each with two upper bits of entry 4-7 on top; bytes 8-11 hold the
    lower nibbles of scales (low) and minima (high) 4-7.
    """
    scale, minimum, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((scale & 63, (rest & 15) | ((scale >> 6) << 4)), dim=1)
    minima = torch.cat((minimum & 63, (rest >> 4) | ((minimum >> 6) << 4)), dim=1)
    return scales.float(), minima.float()


def _q4_k(blocks: Tensor) -> Tensor:
    return _scaled_groups(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Tensor) -> Tensor:
    # Bit g of high-bit byte i belongs to value i of group g.
    shift = torch.arange(8, dtype=torch.uint8, device=blocks.device).reshape(1, 8, 1)
    high = ((blocks[:, None, 16:48] >> shift) & 1).reshape(len(blocks), 256)
    return _scaled_groups(blocks, _nibbles(blocks[:, 48:], 32) | (high << 4))


def _scaled_groups(blocks: Tensor, quants: Tensor) -> Tensor:
    """Eight groups of 32: d * scale * quant - dmin * minimum."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales).unsqueeze(-1)
    minimum = (_half(blocks, 2) * minima).unsqueeze(-1)
    return quants.reshape(-1, 8, 32).float().mul_(scale).sub_(minimum).reshape(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128], 64)
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device).reshape(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shift) & 3).reshape(-1, 256)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    scale = (_half(blocks, 208) * scales).unsqueeze(-1)
    return (low | (high << 4)).reshape(-1, 16, 16).float().sub_(32).mul_(scale).reshape(-1, 256)


BLOCK_TYPES: dict[str, BlockType] = {
    block.kind: block
    for block in (
        BlockType("q4_0", 32, 18, _q4_0),
        BlockType("q4_1", 32, 20, _q4_1),
        BlockType("q5_0", 32, 22, _q5_0),
        BlockType("q5_1", 32, 24, _q5_1),
        BlockType("q8_0", 32, 34, _q8_0),
        BlockType("q4_k", 256, 144, _q4_k),
        BlockType("q5_k", 256, 176, _q5_k),
        BlockType("q6_k", 256, 210, _q6_k),
    )
}

__all__ = ["BLOCK_TYPES", "FLOAT_KINDS", "BlockType", "dequantize", "row_bytes"]
