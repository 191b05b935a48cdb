"""Packed weights with quantized activations: every kind and instruction set against the torch twin.

That their bits depend on nothing else is held by test_cpu_linear.py, beside the weights in file layout.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from safegen.kernels import cpu
from safegen.kernels.api import Quantization, Weight
from safegen.kernels.cpu import CpuOps
from safegen.kernels.quant import dequantize, round_trip_activations
from tests.kernels.cpu_cases import FLOATS, GGUF_TYPES, isa, make_weight, randn

OPS = CpuOps()
ISAS = cpu.available_isas()
# fp16 products of two scales: what rounding them costs, relative to a sum of magnitudes.
SUPER_BLOCKS = ("q4_k", "q5_k", "q6_k")


def twin(x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64 of rounded activations, and the sum of its magnitudes."""
    rounded = round_trip_activations(x).double()
    return rounded @ values.double().T, rounded.abs() @ values.double().abs().T


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", GGUF_TYPES)
@pytest.mark.parametrize(("out_features", "in_features"), [(37, 512), (64, 256), (1, 768), (50, 1024)])
def test_packed_products_equal_the_twin(name: str, kind: str, out_features: int, in_features: int) -> None:
    weight, values = make_weight(kind, out_features, in_features)
    bias = randn(out_features, seed=2)
    with isa(name):
        prepared = OPS.prepare(weight)
        for rows in (1, 2, 3, 5, 7, 13, 16, 19, 33):
            x = randn(rows, in_features, seed=rows)
            expected, magnitude = twin(x, values)
            plain = OPS.linear(x, prepared)
            bound = (2e-4 if kind in SUPER_BLOCKS else 1e-6) * magnitude + 1e-30
            assert ((plain - expected).abs() <= bound).all()
            assert torch.equal(OPS.linear(x, prepared, bias), plain + bias)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", ["q4_1", "q5_0", "q6_k", "q8_0"])
def test_a_rows_bits_are_the_same_whichever_tile_it_is_in(name: str, kind: str) -> None:
    weight = OPS.prepare(make_weight(kind, 20, 256)[0])
    x = randn(150, 256)
    with isa(name):
        alone = torch.cat([OPS.linear(row[None], weight) for row in x])
        for rows in (*range(2, 70), 84, 100, 105, 128, 150):
            assert torch.equal(OPS.linear(x[:rows], weight), alone[:rows])


def test_other_block_types_keep_32_features_a_group_whatever_the_length() -> None:
    """Lengths that are no multiple of 256 exist for the types of 32 weights alone."""
    for kind in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        weight, values = make_weight(kind, 17, 96)
        x = randn(5, 96)
        expected, magnitude = twin(x, values)
        assert ((OPS.linear(x, OPS.prepare(weight)) - expected).abs() <= 1e-6 * magnitude).all()


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_embedding_rows_are_what_the_products_use(kind: str) -> None:
    weight, values = make_weight(kind, 29, 512)
    ids = torch.tensor([28, 0, 5, 5, 17])
    rows = OPS.embedding(ids, OPS.prepare(weight))
    if kind in SUPER_BLOCKS:
        assert ((rows - values[ids]).abs() <= 1e-3 * values[ids].abs().amax(-1, keepdim=True)).all()
    else:
        assert torch.equal(rows, values[ids])


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("kind", SUPER_BLOCKS)
def test_scales_of_any_size_keep_their_digits(kind: str, scale: float) -> None:
    """The 256-weight types' scales are stored as fp16 times a power of two for each row."""
    weight, _ = make_weight(kind, 8, 512)
    raw = weight.data.clone()
    halves = {"q6_k": [208]}.get(kind, [0, 2])
    blocks = raw.view(8, 2, -1)
    for at in halves:
        tiny = torch.full((8, 2, 1), min(scale, 6e4), dtype=torch.float16)
        blocks[..., at : at + 2] = tiny.view(torch.uint8)
    values = dequantize(kind, raw)
    rows = OPS.embedding(torch.arange(8), OPS.prepare(Weight(kind, (8, 512), raw)))
    assert ((rows - values).abs() <= 1e-3 * values.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
@pytest.mark.parametrize("rows", [1, 13])
def test_nan_and_infinity_stay_in_their_row_and_show(name: str, kind: str, rows: int) -> None:
    weight = OPS.prepare(make_weight(kind, 20, 64)[0])
    x = randn(rows, 64)
    with isa(name):
        clean = OPS.linear(x, weight)
        for bad in (torch.nan, torch.inf, -torch.inf):
            dirty = x.clone()
            dirty[-1, 3] = bad
            out = OPS.linear(dirty, weight)
            assert torch.equal(out[:-1], clean[:-1])
            assert not out[-1].isfinite().any()


@pytest.mark.parametrize("name", ISAS)
def test_activations_of_any_size_are_rounded_by_their_group(name: str) -> None:
    """Zeros, the smallest and the largest numbers, an outlier beside small ones."""
    weight, values = make_weight("q4_1", 20, 128)
    x = randn(6, 128)
    x[0] = 0.0
    x[1] *= 1e-37
    x[2] *= 1e30
    x[3, 40] = 5e4
    x[4, :32] = 0.0
    with isa(name):
        out = OPS.linear(x, OPS.prepare(weight))
    expected, magnitude = twin(x, values)
    assert ((out - expected).abs() <= 1e-6 * magnitude + 1e-30).all()


# --- on-load quantization ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("in_features", [1, 31, 64, 100])
def test_float_weights_quantize_within_half_a_step(kind: str, quantization: Quantization, in_features: int) -> None:
    weight, values = make_weight(kind, 19, in_features)
    ops = CpuOps(quantization)
    prepared = ops.prepare(weight)
    kept = ops.embedding(torch.arange(19), prepared)
    padded = torch.nn.functional.pad(values, (0, -in_features % 32)).view(19, -1, 32)
    if quantization == "int8":
        step = padded.abs().amax(-1, keepdim=True) / 127
    else:
        step = (padded.amax(-1, keepdim=True) - padded.amin(-1, keepdim=True)) / 15
    apart = torch.nn.functional.pad(kept - values, (0, -in_features % 32)).view(19, -1, 32)
    if quantization == "int8":
        assert (apart.abs() <= 0.51 * step + 1e-3 * padded.abs().amax(-1, keepdim=True)).all()
    # Clipping the extremes buys a smaller error of the whole: never more than rounding over the full range has.
    assert (apart.square().mean(-1) <= (step[..., 0] ** 2) / 9 + 1e-5).all()
    x = randn(7, in_features)
    expected, magnitude = twin(x, kept)
    assert ((ops.linear(x, prepared) - expected).abs() <= 1e-6 * magnitude + 1e-6).all()


def test_int4_keeps_vocabulary_weights_in_int8() -> None:
    weight, values = make_weight("bf16", 32, 256)
    ops = CpuOps("int4")
    coarse, fine = ops.prepare(weight), ops.prepare(weight, vocabulary=True)
    ids = torch.arange(32)
    error = [(ops.embedding(ids, each) - values).abs().mean() for each in (coarse, fine)]
    assert error[1] < error[0] / 8
    assert coarse.packed.num_bytes < 0.65 * fine.packed.num_bytes


def test_a_weight_with_nan_does_not_pass_for_a_number() -> None:
    weight, _ = make_weight("f32", 16, 64)
    weight.data[3, 40] = torch.nan
    for quantization in ("int8", "int4"):
        ops = CpuOps(quantization)  # type: ignore[arg-type]
        out = ops.linear(randn(2, 64), ops.prepare(weight))
        assert out[:, 3].isnan().all() and out[:, :3].isfinite().all()


def test_constant_and_zero_groups_are_kept_exactly() -> None:
    data = torch.zeros(16, 64)
    data[1] = 0.5
    data[2, 32:] = -2.0
    for quantization in ("int8", "int4"):
        ops = CpuOps(quantization)  # type: ignore[arg-type]
        kept = ops.embedding(torch.arange(16), ops.prepare(Weight("f32", (16, 64), data)))
        torch.testing.assert_close(kept, data, rtol=1e-3, atol=0)


def test_a_packed_weight_lets_go_of_the_file() -> None:
    weight, _ = make_weight("q4_1", 64, 256)
    prepared = OPS.prepare(weight)
    assert prepared.data.numel() == 0 and prepared.packed.is_packed
    assert prepared.packed.num_bytes == 64 * 256 // 512 * 320


def test_unknown_quantizations_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="quantization: must be 'int8', 'int4' or None, got 'int3'"):
        CpuOps("int3")  # type: ignore[arg-type]
