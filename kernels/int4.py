"""Int4 weights with groups: read from AWQ and GPTQ tensors, packed once for the kernels, and back to numbers.

A weight is (q - zero) * scale with a scale and a zero a group of inputs and an output. Checkpoints pack eight 4-bit
numbers into an int32: AWQ along the outputs, numbers 0 .. 7 at the nibbles 0, 4, 1, 5, 2, 6, 3, 7; GPTQ along the
inputs, in order, its zeros along the outputs. GPTQ v1 stores zero - 1 (v2 the zero); with act-order `g_idx` tells the
group of each input.

Packed here: tiles of 128 inputs. Word j of the 16 words of a tile and output holds the inputs 16 * p + j of the tile,
p = 0 .. 7, at bits 4 * p: so a shift by 4 * p gives 16 neighbouring inputs, which meet 16 neighbouring numbers of x
without a shuffle (the idea of Marlin, arXiv 2408.11743, for a layout that Triton can read). Inputs of a group must lie
together: with act-order the inputs are sorted by their group, and x is permuted in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE_INPUTS = 128
_WORDS = 16  # int32 of a tile and output
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # at which nibble of a word each of its eight numbers lies


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """shape: (out_features, in_features). words: int32 [tiles * 16, out]. scale: floats [groups, out]. zero: int8
    [groups, out]. group: inputs of a group, a multiple of 16. order: int64 [in], which input comes where, or None."""

    shape: tuple[int, int]
    words: Tensor
    scale: Tensor
    zero: Tensor
    group: int
    order: Tensor | None = None


def pack_int4(digits: Tensor, scale: Tensor, zero: Tensor, group: int, order: Tensor | None = None) -> Int4Weight:
    """digits: [in, out], 0 .. 15, in the given order; scale, zero: [ceil(in / group), out]. ValueError where they do
    not fit."""
    num_inputs, num_outputs = digits.shape
    groups = -(-num_inputs // group)
    if group % 16 or scale.shape != (groups, num_outputs) or zero.shape != scale.shape:
        raise ValueError(
            f"scale: {num_inputs} inputs in groups of {group} (a multiple of 16) and {num_outputs} outputs need "
            f"[{groups}, {num_outputs}], got {list(scale.shape)} and zeros {list(zero.shape)}"
        )
    padded = torch.nn.functional.pad(digits.int(), (0, 0, 0, -num_inputs % TILE_INPUTS))
    planes = padded.reshape(-1, 8, _WORDS, num_outputs)
    shift = 4 * torch.arange(8, dtype=torch.int64, device=digits.device).reshape(1, 8, 1, 1)
    words = (planes.long() << shift).sum(1)
    words = torch.where(words >= 2**31, words - 2**32, words).int().flatten(0, 1)
    return Int4Weight(
        (num_outputs, num_inputs),
        words.contiguous(),
        scale.contiguous(),
        zero.to(torch.int8).contiguous(),
        group,
        order,
    )


def int4_from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """qweight: int32 [in, out / 8]; qzeros: int32 [groups, out / 8]; scales: fp16 [groups, out]."""
    return pack_int4(
        unpack_words(qweight, places=AWQ_NIBBLES),
        scales,
        unpack_words(qzeros, places=AWQ_NIBBLES),
        qweight.shape[0] // scales.shape[0],
    )


def int4_from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, version: int = 1
) -> Int4Weight:
    """qweight: int32 [in / 8, out]; qzeros: int32 [groups, out / 8]; scales: fp16 [groups, out]; g_idx: int [in].

    ValueError for a g_idx whose groups are not of one size.
    """
    digits = unpack_words(qweight.T).T
    zero = unpack_words(qzeros) + (1 if version == 1 else 0)
    num_inputs, groups = len(digits), len(scales)
    group = num_inputs // groups
    if g_idx is None or torch.equal(g_idx.long(), torch.arange(num_inputs, device=g_idx.device) // group):
        return pack_int4(digits, scales, zero, group)
    order = torch.argsort(g_idx.long(), stable=True)
    if not torch.equal(g_idx.long()[order], torch.arange(num_inputs, device=g_idx.device) // group):
        raise ValueError(f"g_idx: {groups} groups of {num_inputs} inputs must have {group} inputs each")
    return pack_int4(digits[order], scales, zero, group, order)


def dequantize_int4(weight: Int4Weight) -> Tensor:
    """fp32 [out, in], the inputs in the model's order."""
    num_outputs, num_inputs = weight.shape
    shift = 4 * torch.arange(8, dtype=torch.int32, device=weight.words.device).reshape(1, 8, 1, 1)
    planes = (weight.words.reshape(-1, 1, _WORDS, num_outputs) >> shift) & 15
    digits = planes.reshape(-1, num_outputs)[:num_inputs].float()
    group = torch.arange(num_inputs, device=digits.device) // weight.group
    numbers = (digits - weight.zero[group].float()) * weight.scale[group].float()
    if weight.order is not None:
        numbers = torch.empty_like(numbers).index_copy_(0, weight.order, numbers)
    return numbers.T.contiguous()


def unpack_words(words: Tensor, bits: int = 4, places: tuple[int, ...] | None = None) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, words * 32 / bits], bits 4 or 8; number i of a word lies at place places[i],
    None: i. Bytes of a word are taken to lie lowest first, as on all processors that torch runs on."""
    numbers = words.contiguous().view(torch.uint8)
    if bits == 4:
        numbers = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(1)
    if places is None:
        return numbers
    by_word, ordered = numbers.reshape(-1, 32 // bits), torch.empty_like(numbers)
    for number, place in enumerate(places):
        ordered.view(-1, 32 // bits)[:, number] = by_word[:, place]
    return ordered


__all__ = [
    "AWQ_NIBBLES", "TILE_INPUTS", "Int4Weight", "dequantize_int4", "int4_from_awq", "int4_from_gptq", "pack_int4",
    "unpack_words",
]  # fmt: skip
