"""Digits and scales of quantized checkpoints (AWQ, GPTQ, FP8, INT8): their numbers, and the forms that kernels take.

A reader (engine/quantized) brings every layout to one form: digits less their zero points, and a scale for each output
and group of inputs (`Scales`). number = digit * scale, in fp32. From there:

- `dequantize_scaled`: the numbers, for the reference.
- `as_blocks`: GGUF blocks of the very same digits, which the native kernels pack. Digits are kept exactly: int4 about
  its middle (-8 .. 7, as symmetric checkpoints have it) is q4_0, with any other zero point q5_0, which costs half a bit
  more and needs no rounded minimum as q4_1 would; int8 is q8_0. Scales are fp16 there: those of fp16 and bf16
  checkpoints as they are, of fp32 ones rounded to 11 bits. Inputs of a group must lie together: with act-order they are
  sorted by group, and whoever multiplies sorts x alike.
- `as_half`: fp16 numbers, where there are no such blocks: fp8, groups that are no multiple of 32, scales beyond fp16's
  range, 8-bit digits beyond int8's. It rounds to 11 bits; bf16 stands in where a number is beyond 65504.
- `as_int4`, `as_rows`: what the GPU's linears take (kernels.int4, kernels.triton.linear).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safegen.kernels.api import Scales, Weight
from safegen.kernels.int4 import Int4Weight, pack_int4

_BLOCK = 32
_LEAST_HALF, _MOST_HALF = 2.0**-14, 65504.0  # the range in which fp16 has all of its 11 bits


@dataclass(frozen=True, slots=True)
class SortedWeight:
    """A weight whose inputs lie sorted by their groups. order: int64 [in], which of the model's inputs comes where;
    None is as it was."""

    weight: Weight
    order: Tensor | None


def dequantize_scaled(weight: Weight) -> Tensor:
    """The numbers of a weight with scales: fp32 [out, in]."""
    return _multiplied(weight.data.float(), _scales(weight))


def sort_inputs(weight: Weight) -> SortedWeight | None:
    """Act-order undone: inputs of a group as neighbours. None where the groups are not of one size."""
    scales = _scales(weight)
    if scales.group_of is None:
        return SortedWeight(weight, None)
    order = torch.argsort(scales.group_of, stable=True)
    in_order = torch.arange(weight.shape[1], device=order.device) // scales.group
    if not torch.equal(scales.group_of[order], in_order):
        return None
    sorted_weight = replace(weight, data=_columns(weight.data, order), scales=Scales(scales.scale, scales.group))
    return SortedWeight(sorted_weight, order)


def as_blocks(weight: Weight) -> Weight | None:
    """The same digits as GGUF blocks, None where no block type has room for them. Not with act-order: sort first."""
    scales, num_inputs = _scales(weight), weight.shape[1]
    one_group = scales.scale.shape[1] == 1
    aligned = num_inputs % _BLOCK == 0 and (one_group or scales.group % _BLOCK == 0)
    if weight.data.dtype != torch.int8 or scales.group_of is not None or not aligned:
        return None
    halves = _as_half_scales(scales.scale)
    if halves is None:
        return None
    digits = weight.data.reshape(weight.shape[0], -1, _BLOCK)
    repeats = digits.shape[1] if one_group else scales.group // _BLOCK
    repeated = halves.repeat_interleave(repeats, dim=1)[:, : digits.shape[1]]
    blocks_scale = repeated.unsqueeze(-1).contiguous().view(torch.uint8)
    least, most = (int(each) for each in torch.aminmax(digits)) if digits.numel() else (0, 0)
    if least >= -8 and most <= 7:
        kind, stored = "q4_0", [_paired(digits + 8)]
    elif least >= -16 and most <= 15:
        kind, stored = "q5_0", _five_bits(digits + 16)
    else:
        kind, stored = "q8_0", [digits.view(torch.uint8)]
    return Weight(kind, weight.shape, torch.cat((blocks_scale, *stored), dim=-1).flatten(1))


def as_half(weight: Weight) -> Weight:
    """The numbers rounded to fp16, or to bf16 where fp16's range does not hold them. Row by row: no fp32 copy."""
    scales, num_outputs = _scales(weight), weight.shape[0]
    for kind, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        numbers = torch.empty(weight.shape, dtype=dtype, device=weight.data.device)
        for start in range(0, num_outputs, 256):
            part = weight.rows(start, min(num_outputs, start + 256))
            numbers[start : start + 256] = _multiplied(part.data.float(), replace(scales, scale=_scales(part).scale))
        # An infinity that the checkpoint itself holds is none of fp16's doing, and would be one in bf16 as well.
        if kind == "bf16" or not torch.isinf(numbers).any():
            break
    return Weight(kind, weight.shape, numbers)


def as_int4(weight: Weight) -> Int4Weight:
    """An "int4" weight as the GPU's int4 linear takes it. ValueError where it has no room for it: groups that are no
    multiple of 16 inputs or, by act-order, not of one size."""
    kept = sort_inputs(weight)
    if kept is None:
        raise ValueError(f"group_of: every group must have {_scales(weight).group} inputs")
    scales, (num_outputs, num_inputs) = _scales(kept.weight), weight.shape
    group = scales.group if scales.scale.shape[1] > 1 else -(-num_inputs // 16) * 16
    digits, padding = kept.weight.data, -num_inputs % group
    by_group = torch.cat((digits, digits[:, -1:].expand(-1, padding)), dim=1).reshape(num_outputs, -1, group)
    least, most = by_group.amin(-1), by_group.amax(-1)
    if bool(((most - least) > 15).any()):
        raise ValueError(f"data: digits of a group span more than 4 bits (kind {weight.kind!r})")
    unsigned = (by_group - least.unsqueeze(-1)).flatten(1)[:, :num_inputs]
    return pack_int4(unsigned.T, scales.scale.T, -least.T, group, kept.order)


def as_rows(weight: Weight) -> tuple[Tensor, Tensor] | None:
    """An 8-bit weight as the GPU's 8-bit linears take it: digits int8 or fp8 [out, in] and fp32 scales [out]. None
    where an output has several scales."""
    scales = _scales(weight)
    if weight.data.dtype not in (torch.int8, torch.float8_e4m3fn) or scales.scale.shape[1] != 1:
        return None
    return weight.data.contiguous(), scales.scale[:, 0].float().contiguous()


def _scales(weight: Weight) -> Scales:
    if weight.scales is None:
        raise ValueError(f"weight: kind {weight.kind!r} has no scales")
    return weight.scales


def _multiplied(digits: Tensor, scales: Scales) -> Tensor:
    """digits: fp32 [out, in], multiplied in place."""
    scale = scales.scale.float()
    if scales.group_of is not None:
        return digits.mul_(scale[:, scales.group_of])
    if scale.shape[1] == 1:
        return digits.mul_(scale)
    return digits.mul_(scale.repeat_interleave(scales.group, dim=1)[:, : digits.shape[1]])


def _columns(digits: Tensor, order: Tensor) -> Tensor:
    """Columns in another order; torch indexes no fp8 on a CPU."""
    if digits.dtype == torch.float8_e4m3fn:
        return digits.view(torch.uint8)[:, order].view(torch.float8_e4m3fn)
    return digits[:, order]


def _as_half_scales(scale: Tensor) -> Tensor | None:
    """As fp16, with all of its 11 bits or exactly; None where one is out of range."""
    halves = scale.half()
    size = scale.float().abs()
    in_range = (size >= _LEAST_HALF) & (size <= _MOST_HALF)
    return halves if bool((in_range | (halves.float() == scale.float())).all()) else None


def _paired(digits: Tensor) -> Tensor:
    """Nibbles [out, blocks, 32] -> bytes [out, blocks, 16]: number i low, number 16 + i high."""
    nibbles = digits.view(torch.uint8) & 15
    return nibbles[..., :16] | (nibbles[..., 16:] << 4)


def _five_bits(digits: Tensor) -> list[Tensor]:
    """Numbers 0 .. 31, [out, blocks, 32] -> the fifth bits, 4 bytes, and the nibbles, 16 bytes."""
    fifth = (digits.view(torch.uint8) >> 4).view(torch.int64)  # eight bytes of 0 or 1
    # The bit of byte i, at 8 i, meets 2^(56 - 7 i): of all products these alone reach the top byte, as its bit i.
    gathered = fifth.mul_(0x0102040810204080).bitwise_right_shift_(56)
    return [gathered.to(torch.uint8), _paired(digits)]


__all__ = ["SortedWeight", "as_blocks", "as_half", "as_int4", "as_rows", "dequantize_scaled", "sort_inputs"]
