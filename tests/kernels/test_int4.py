"""Int4 packing: AWQ and GPTQ tensors come back as the numbers that their formats define, written out by hand here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safegen.kernels.int4 import (
    AWQ_NIBBLES,
    dequantize_int4,
    int4_from_awq,
    int4_from_gptq,
    pack_int4,
    unpack_words,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # as AutoAWQ packs: nibble i of a word holds number AWQ_ORDER[i]


def randint(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def packed(digits: Tensor, order: tuple[int, ...]) -> Tensor:
    """[rows, columns] -> int32 [rows, columns / 8]: the i-th nibble of a word holds number order[i] of its eight."""
    rows = []
    for row in digits.tolist():
        words = []
        for start in range(0, len(row), 8):
            word = sum(row[start + order[i]] << (4 * i) for i in range(8))
            words.append(word - 2**32 if word >= 2**31 else word)
        rows.append(words)
    return torch.tensor(rows, dtype=torch.int32)


def case(num_inputs: int, num_outputs: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """digits [in, out], zeros and scales [groups, out]."""
    groups = num_inputs // group
    scales = (torch.rand(groups, num_outputs, generator=torch.Generator().manual_seed(3)) + 0.5).half()
    return randint(16, num_inputs, num_outputs), randint(15, groups, num_outputs, seed=1), scales


def numbers(digits: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor) -> Tensor:
    return ((digits - zeros[group_of]).float() * scales[group_of].float()).T


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs", "group"), [(128, 8, 128), (256, 24, 32), (96, 16, 32), (192, 8, 64)]
)
def test_awq_tensors_come_back(num_inputs: int, num_outputs: int, group: int) -> None:
    digits, zeros, scales = case(num_inputs, num_outputs, group)
    weight = int4_from_awq(packed(digits, AWQ_ORDER), packed(zeros, AWQ_ORDER), scales)
    assert torch.equal(dequantize_int4(weight), numbers(digits, zeros, scales, torch.arange(num_inputs) // group))


def test_an_awq_word_written_out_by_hand() -> None:
    """AutoAWQ's pack: word |= number[(0, 2, 4, 6, 1, 3, 5, 7)[i]] << 4 * i. Numbers 1 .. 8 are 0x86427531 read back."""
    word = torch.tensor([[0x86427531 - 2**32]], dtype=torch.int32)
    assert unpack_words(word, places=AWQ_NIBBLES).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("num_inputs", "num_outputs", "group"), [(128, 8, 128), (256, 24, 32), (96, 16, 32)])
def test_gptq_tensors_come_back(version: int, act_order: bool, num_inputs: int, num_outputs: int, group: int) -> None:
    digits, zeros, scales = case(num_inputs, num_outputs, group)
    group_of = torch.arange(num_inputs) // group
    if act_order:
        group_of = group_of[torch.randperm(num_inputs, generator=torch.Generator().manual_seed(9))]
    in_order = tuple(range(8))
    stored = packed(zeros, in_order)
    weight = int4_from_gptq(packed(digits.T, in_order).T, stored, scales, group_of.int(), version=version)
    assert torch.equal(dequantize_int4(weight), numbers(digits, zeros + (version == 1), scales, group_of))
    assert (weight.order is None) == (not act_order or num_inputs == group)


def test_a_v1_zero_of_fifteen_stands_for_sixteen() -> None:
    digits, _, scales = case(128, 8, 128)
    zeros = torch.full((1, 8), 15)
    weight = int4_from_gptq(packed(digits.T, tuple(range(8))).T, packed(zeros, tuple(range(8))), scales)
    assert torch.equal(dequantize_int4(weight), numbers(digits, zeros + 1, scales, torch.zeros(128, dtype=torch.long)))


def test_groups_that_do_not_fit_are_refused_by_name() -> None:
    digits, zeros, scales = case(128, 8, 32)
    with pytest.raises(ValueError, match=r"scale: 128 inputs in groups of 64 .* need \[2, 8\], got \[4, 8\]"):
        pack_int4(digits, scales, zeros, 64)
    uneven = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(ValueError, match="g_idx: 4 groups of 128 inputs must have 32 inputs each"):
        int4_from_gptq(packed(digits.T, tuple(range(8))).T, packed(zeros, tuple(range(8))), scales, uneven)
