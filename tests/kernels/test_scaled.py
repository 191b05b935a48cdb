"""Digits and scales in the forms that kernels take: the same numbers in each of them, or refused or rounded as said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safegen.kernels.api import Scales, Weight
from safegen.kernels.cpu import CpuOps
from safegen.kernels.int4 import dequantize_int4, int4_from_gptq
from safegen.kernels.quant import dequantize, round_trip_activations
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.reference.linears import fp8_linear, int4_linear, int8_weight_linear
from safegen.kernels.scaled import as_blocks, as_half, as_int4, as_rows, dequantize_scaled, sort_inputs


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    """low .. high, both of them there."""
    drawn = torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))
    drawn.view(-1)[0], drawn.view(-1)[-1] = low, high
    return drawn.to(torch.int8 if low >= -128 and high <= 127 else torch.int16)


def halves(*shape: int, seed: int = 1) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.02 + 0.005).half()


def weight_of(digits: Tensor, group: int, group_of: Tensor | None = None, kind: str = "int4") -> Weight:
    outputs, inputs = digits.shape
    return Weight(kind, (outputs, inputs), digits, None, Scales(halves(outputs, -(-inputs // group)), group, group_of))


def by_hand(weight: Weight) -> Tensor:
    assert weight.scales is not None
    rows = []
    for row, scale in zip(weight.data.tolist(), weight.scales.scale.tolist()):
        group_of = weight.scales.group_of
        group = [i // weight.scales.group for i in range(len(row))] if group_of is None else group_of.tolist()
        rows.append([digit * scale[group[i]] for i, digit in enumerate(row)])
    return torch.tensor(rows)


def shuffled_groups(inputs: int, group: int) -> Tensor:
    return (torch.arange(inputs) // group)[torch.randperm(inputs, generator=torch.Generator().manual_seed(4))]


@pytest.mark.parametrize("group", [16, 32, 96, 40])
def test_a_number_is_its_digit_times_the_scale_of_its_group(group: int) -> None:
    weight = weight_of(integers(-16, 15, 5, 96), group)
    assert torch.equal(dequantize_scaled(weight), by_hand(weight))
    ordered = weight_of(integers(-8, 7, 5, 96), 32, shuffled_groups(96, 32))
    assert torch.equal(dequantize_scaled(ordered), by_hand(ordered))


def test_rows_of_a_weight_are_a_view_with_their_scales() -> None:
    weight = weight_of(integers(-8, 7, 12, 64), 32)
    part = weight.rows(3, 7)
    assert part.shape == (4, 64) and part.data.data_ptr() == weight.data[3].data_ptr()
    assert torch.equal(dequantize_scaled(part), dequantize_scaled(weight)[3:7])


@pytest.mark.parametrize(
    "low, high, kind, group",
    [(-8, 7, "q4_0", 32), (-9, 6, "q5_0", 64), (-16, 15, "q5_0", 128), (-128, 127, "q8_0", 128), (-17, 0, "q8_0", 32)],
)
def test_blocks_hold_the_same_digits(low: int, high: int, kind: str, group: int) -> None:
    weight = weight_of(integers(low, high, 7, 128), group)
    blocks = as_blocks(weight)
    assert blocks is not None and blocks.kind == kind
    assert torch.equal(dequantize(kind, blocks.data), by_hand(weight))


def test_there_are_no_blocks_where_digits_or_groups_do_not_fit() -> None:
    fits = weight_of(integers(-8, 7, 4, 64), 32)
    assert as_blocks(fits) is not None
    assert as_blocks(weight_of(integers(-8, 7, 4, 64), 16)) is None
    assert as_blocks(weight_of(integers(-8, 7, 4, 48), 48)) is None
    assert as_blocks(weight_of(integers(-200, 255, 4, 64), 32)) is None
    assert as_blocks(weight_of(integers(-8, 7, 4, 64), 32, shuffled_groups(64, 32))) is None
    floats = Weight("fp8", (4, 64), torch.zeros(4, 64).to(torch.float8_e4m3fn), None, Scales(halves(4, 1), 64))
    assert as_blocks(floats) is None


@pytest.mark.parametrize(
    "scale, is_exact",
    [(0.0123, False), (2.0**-14, True), (2.0**-24, True), (3e-6, None), (0.0, True), (65504.0, True), (7e4, None)],
)
def test_scales_keep_eleven_bits_or_there_are_no_blocks(scale: float, is_exact: bool | None) -> None:
    digits = integers(-128, 127, 2, 32)
    weight = Weight("int8", (2, 32), digits, None, Scales(torch.full((2, 1), scale), 32))
    blocks = as_blocks(weight)
    assert (blocks is None) == (is_exact is None)
    if blocks is not None:
        apart = (dequantize("q8_0", blocks.data) - dequantize_scaled(weight)).abs()
        assert (apart <= dequantize_scaled(weight).abs() * 2.0**-11).all() and (apart.max() == 0) == is_exact


def test_bfloat16_scales_are_exact_in_blocks() -> None:
    scale = torch.rand(64, 1, generator=torch.Generator().manual_seed(8)).mul(0.01).add(1e-4).bfloat16()
    weight = Weight("int8", (64, 32), integers(-128, 127, 64, 32), None, Scales(scale, 32))
    blocks = as_blocks(weight)
    assert blocks is not None and torch.equal(dequantize("q8_0", blocks.data), dequantize_scaled(weight))


def test_halves_are_the_numbers_rounded_once() -> None:
    digits = torch.linspace(-448, 448, 300 * 40).reshape(300, 40).to(torch.float8_e4m3fn)  # more rows than one piece
    weight = Weight("fp8", (300, 40), digits, None, Scales(halves(300, 3).float() * 1.01, 16))
    rounded = as_half(weight)
    assert rounded.kind == "f16" and torch.equal(rounded.data, dequantize_scaled(weight).half())


def test_numbers_beyond_fp16_are_bfloat16() -> None:
    digits = torch.tensor([[448.0, 1.0]]).to(torch.float8_e4m3fn)
    weight = Weight("fp8", (1, 2), digits, None, Scales(torch.tensor([[1000.0]]), 2))
    rounded = as_half(weight)
    assert rounded.kind == "bf16" and torch.equal(rounded.data, torch.tensor([[448000.0, 1000.0]]).bfloat16())


def test_sorted_inputs_are_those_of_the_groups_in_order() -> None:
    weight = weight_of(integers(-8, 7, 3, 96), 32, shuffled_groups(96, 32))
    kept = sort_inputs(weight)
    assert kept is not None and kept.order is not None
    assert torch.equal(dequantize_scaled(kept.weight), dequantize_scaled(weight)[:, kept.order])
    uneven = weight_of(integers(-8, 7, 3, 96), 32, torch.cat((torch.zeros(40), torch.ones(56))).long())
    assert sort_inputs(uneven) is None


@pytest.mark.parametrize("case", ["in order", "act-order", "uneven groups", "groups of 16", "out of range"])
def test_the_native_linear_takes_every_weight(case: str) -> None:
    """Packed where there are blocks: activations are rounded in groups of 32 sorted inputs; else as halves."""
    group = 16 if case == "groups of 16" else 32
    group_of = shuffled_groups(96, 32) if case == "act-order" else None
    if case == "uneven groups":
        group_of = torch.cat((torch.zeros(40), torch.ones(50), torch.full((6,), 2))).long()
    low, high = (-200, 255) if case == "out of range" else (-16, 15)
    weight = weight_of(integers(low, high, 24, 96), group, group_of)
    ops, x = CpuOps(), torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    prepared, numbers = ops.prepare(weight), by_hand(weight)
    if case in ("in order", "act-order"):
        order = torch.arange(96) if group_of is None else torch.argsort(group_of, stable=True)
        expected = round_trip_activations(x[:, order]) @ numbers[:, order].T
        assert torch.equal(ops.embedding(torch.arange(24), prepared), numbers)
    else:
        expected = x @ numbers.half().float().T
        assert prepared.kind == "f16"
    assert (ops.linear(x, prepared) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(ops.linear(x[2:3], prepared), ops.linear(x, prepared)[2:3])


@pytest.mark.parametrize("group_of", [None, shuffled_groups(96, 32)])
def test_the_reference_takes_digits_with_scales(group_of: Tensor | None) -> None:
    weight = weight_of(integers(-16, 15, 24, 96), 32, group_of)
    ops, x = ReferenceOps(), torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    for each in (weight, ops.prepare(weight)):
        assert torch.equal(ops.linear(x, each), x @ by_hand(weight).T)
        assert torch.equal(ops.embedding(torch.tensor([3, 0]), each), by_hand(weight)[[3, 0]])


@pytest.mark.parametrize("group, inputs", [(32, 96), (16, 96), (96, 96), (200, 200), (64, 256)])
@pytest.mark.parametrize("low", [-16, -8, -3, 0])
def test_int4_weights_come_to_the_gpu_with_the_same_numbers(low: int, group: int, inputs: int) -> None:
    weight = weight_of(integers(low, low + 15, 24, inputs), group)
    packed, x = as_int4(weight), torch.randn(3, inputs, generator=torch.Generator().manual_seed(5))
    assert torch.equal(dequantize_int4(packed), by_hand(weight))
    torch.testing.assert_close(int4_linear(x, packed), x @ by_hand(weight).T, rtol=1e-5, atol=1e-5)


def test_act_order_comes_to_the_gpu_as_an_order_of_inputs() -> None:
    weight = weight_of(integers(-16, -1, 24, 96), 32, shuffled_groups(96, 32))
    packed = as_int4(weight)
    assert packed.order is not None and torch.equal(dequantize_int4(packed), by_hand(weight))


def test_weights_that_the_gpu_linear_has_no_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="digits of a group span more than 4 bits"):
        as_int4(weight_of(integers(-16, 15, 4, 32), 32))
    with pytest.raises(ValueError, match="a multiple of 16"):
        as_int4(weight_of(integers(-8, 7, 4, 48), 24))
    with pytest.raises(ValueError, match="every group must have 32 inputs"):
        as_int4(weight_of(integers(-8, 7, 4, 64), 32, torch.zeros(64, dtype=torch.long)))


def test_eight_bit_rows_come_to_the_gpu_as_they_are() -> None:
    digits = integers(-128, 127, 24, 96)
    weight = Weight("int8", (24, 96), digits, None, Scales(halves(24, 1), 96))
    rows, x = as_rows(weight), torch.randn(3, 96, generator=torch.Generator().manual_seed(5))
    assert rows is not None and rows[1].dtype == torch.float32
    torch.testing.assert_close(int8_weight_linear(x, *rows), x @ by_hand(weight).T, rtol=1e-5, atol=1e-4)
    floats = Weight("fp8", (24, 96), digits.float().to(torch.float8_e4m3fn), None, Scales(halves(24, 1), 96))
    rows = as_rows(floats)
    assert rows is not None and rows[0].dtype == torch.float8_e4m3fn
    expected = x @ dequantize_scaled(floats).T
    assert (fp8_linear(x, *rows) - expected).abs().max() < 0.05 * expected.abs().max()  # activations are fp8 there
    assert as_rows(weight_of(digits, 32)) is None


def test_forms_agree_with_the_packing_of_gptq_tensors() -> None:
    """The same tensors, by the reader's way and by the kernels' own."""
    words = torch.randint(-(2**31), 2**31, (16, 24), generator=torch.Generator().manual_seed(6)).int()
    zeros = torch.randint(-(2**31), 2**31, (4, 3), generator=torch.Generator().manual_seed(7)).int()
    direct = int4_from_gptq(words, zeros, halves(4, 24))
    digits = dequantize_int4(int4_from_gptq(words, zeros, torch.ones(4, 24).half())).to(torch.int8)
    weight = Weight("int4", (24, 128), digits, None, Scales(halves(4, 24).T.contiguous(), 32))
    assert torch.equal(dequantize_int4(as_int4(weight)), dequantize_int4(direct))
