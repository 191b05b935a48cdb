"""RMSNorm, rotary embedding and gated activations of the CPU kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from safegen.kernels import cpu
from safegen.kernels.cpu import CpuOps
from tests.kernels.cpu_cases import int32, isa, randn, threads

OPS = CpuOps()
ISAS = cpu.available_isas()
Gate = Callable[[Tensor, Tensor], Tensor]


def rotary_table(positions: int, half: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(positions)[:, None] * 100.0 ** -(torch.arange(half) / max(half, 1))
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(1, 576), (7, 64), (3, 5, 12), (2, 1), (4, 33), (0, 16), (100, 2048), (64,)])
def test_rms_norm_equals_torch(name: str, shape: tuple[int, ...]) -> None:
    x, weight = randn(*shape) * 3, randn(shape[-1], seed=2)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    with isa(name):
        torch.testing.assert_close(OPS.rms_norm(x, weight, 1e-5), expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (12, 12), (80, 32), (6, 2)])
def test_rope_equals_complex_rotation(interleaved: bool, head_dim: int, rotary_dim: int) -> None:
    half = rotary_dim // 2
    x, position = randn(9, 3, head_dim), int32([0, 1, 2, 49, 7, 7, 30, 3, 11])
    cos, sin = rotary_table(50, half)
    turned = x[..., :rotary_dim].contiguous()
    pairs = turned.view(9, 3, half, 2) if interleaved else turned.view(9, 3, 2, half).transpose(-1, -2)
    rotation = torch.complex(cos, sin)[position.long()][:, None]
    rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * rotation)
    rotated = rotated.flatten(-2) if interleaved else rotated.transpose(-1, -2).flatten(-2)
    out = OPS.rope(x, cos, sin, position, interleaved)
    torch.testing.assert_close(out[..., :rotary_dim], rotated, rtol=1e-6, atol=1e-6)
    assert torch.equal(out[..., rotary_dim:], x[..., rotary_dim:])
    with threads(1):
        assert torch.equal(OPS.rope(x[3:4], cos, sin, position[3:4], interleaved), out[3:4])


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("op", "formula"),
    [(OPS.silu_mul, lambda g, u: silu(g) * u), (OPS.gelu_mul, lambda g, u: gelu(g, approximate="tanh") * u)],
    ids=["silu", "gelu"],
)
def test_gated_activation_error_is_a_few_units_in_the_last_place(name: str, op: Gate, formula: Gate) -> None:
    gate = torch.cat([torch.linspace(-20, 20, 40_001), torch.logspace(-30, 1, 1000), -torch.logspace(-30, 1, 1000)])[
        None
    ]
    up = torch.ones_like(gate)
    expected = formula(gate.double(), up.double())
    if op == OPS.gelu_mul:  # 0.5 * (1 + tanh(u)) cancels even in float64: the same function without that
        g = gate.double()
        expected = g * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (g + 0.044715 * g**3))
    with isa(name):
        out = op(gate, up)
    normal = expected.abs() > 1e-37
    error = ((out - expected).abs() / expected.abs())[normal]
    # The exponential's argument is rounded too: its absolute error is a relative error of the result.
    magnitude = (1 + gate.abs().double() ** (3 if op == OPS.gelu_mul else 1))[normal]
    assert (error / magnitude).max() < 4e-7
    torch.testing.assert_close(out.double(), formula(gate.double(), up.double()), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("op", [OPS.silu_mul, OPS.gelu_mul], ids=["silu", "gelu"])
def test_extreme_gates_saturate_and_nan_stays_nan(name: str, op: Gate) -> None:
    gate = torch.tensor([[-1e30, -1000.0, -90.0, 0.0, 90.0, 1000.0, 1e12, torch.inf, torch.nan]])
    with isa(name):
        out = op(gate, torch.ones_like(gate))[0]
    assert out[:4].abs().max() < 1e-35
    assert torch.equal(out[4:8], gate[0, 4:8])
    assert out[8].isnan()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("width", [1, 15, 64, 100, 1536])
def test_rows_have_the_same_bits_alone_in_batches_and_with_any_threads(name: str, width: int) -> None:
    x, y, weight = randn(33, width) * 4, randn(33, width, seed=2), randn(width, seed=3)
    ops: list[Callable[[Tensor, Tensor], Tensor]] = [
        OPS.silu_mul,
        OPS.gelu_mul,
        lambda a, _: OPS.rms_norm(a, weight, 1e-6),
    ]
    with isa(name):
        for op in ops:
            alone = torch.cat([op(x[i : i + 1], y[i : i + 1]) for i in range(33)])
            for count in (1, 2, 5):
                with threads(count):
                    for first in (0, 1, 20):
                        assert torch.equal(op(x[first:], y[first:]), alone[first:])


def test_avx2_and_avx512_agree_bitwise() -> None:
    if "avx512" not in ISAS:
        pytest.skip("this processor has no AVX-512")
    x, y = randn(5, 1003) * 5, randn(5, 1003, seed=2)
    results = []
    for name in ("avx2", "avx512"):
        with isa(name):
            results.append(
                torch.cat([OPS.silu_mul(x, y), OPS.gelu_mul(x, y), OPS.rms_norm(x, y[0].contiguous(), 1e-5)])
            )
    assert torch.equal(*results)


def test_wrong_arguments_are_refused_by_name() -> None:
    x = randn(4, 2, 8)
    cos, sin = rotary_table(10, 4)
    position = int32([0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"position: element 3 is 10, must be in \[0, 10\)"):
        OPS.rope(x, cos, sin, int32([0, 1, 2, 10]), False)
    with pytest.raises(ValueError, match="position: must have shape"):
        OPS.rope(x, cos, sin, position[:3], False)
    with pytest.raises(ValueError, match="cos: rotates more dimensions"):
        OPS.rope(randn(4, 2, 6), cos, sin, position, False)
    with pytest.raises(ValueError, match="sin: must have shape"):
        OPS.rope(x, cos, sin[:5], position, False)
    with pytest.raises(ValueError, match="up: must have shape"):
        OPS.silu_mul(randn(2, 8), randn(2, 7))
    with pytest.raises(ValueError, match="gate: must be contiguous"):
        OPS.gelu_mul(randn(8, 2).T, randn(2, 8))
    with pytest.raises(ValueError, match="weight: must have shape"):
        OPS.rms_norm(randn(2, 8), randn(7), 1e-5)
    with pytest.raises(ValueError, match="x: must be of type float32"):
        OPS.rms_norm(randn(2, 8).half(), randn(8), 1e-5)
    with pytest.raises(ValueError, match="eps"):
        OPS.rms_norm(randn(2, 8), randn(8), float("nan"))
    with pytest.raises(ValueError, match="x: must be contiguous"):
        OPS.rms_norm(randn(8, 2).T, randn(8), 1e-5)
