"""Work on single rows, fused so that a row is read and written once: RMS norm with its residual, RoPE, activations.

All of it is bound by memory bandwidth, so a program takes whole rows and keeps them in registers: a norm's row is one
tile (up to 65,536 numbers), short rows (the norms of heads) several to a program. RoPE loads a token's angles once for
all its heads. Interleaved pairs are loaded side by side and split in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.triton.runtime import contiguous_rows, power_of_two

_TILE = 1024  # numbers of an elementwise program
_SHORT_ROW = 1024  # norms of shorter rows share a program
_LONGEST_ROW = 65536


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, num_rows, num_heads, eps, x_stride, x_head_stride, residual_stride,
    DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """out = norm(x [+ residual]) * weight; total = x + residual. ROWS rows of DIM (a tile of BLOCK) a program.

    x: [tokens, heads, dim], a head a row, strided as it likes but for its last dimension."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < DIM)
    source = x + (row // num_heads) * x_stride + (row % num_heads) * x_head_stride
    numbers = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        numbers += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        rounded = numbers.to(total.dtype.element_ty)
        tl.store(total + row * DIM + column, rounded, mask=inside)
        numbers = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(numbers * numbers, axis=1) / DIM + eps)
    gain = tl.load(weight + column, mask=column < DIM, other=0.0).to(tl.float32)
    normed = numbers * inverse[:, None] * gain
    tl.store(out + row * DIM + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rope_kernel(
    x, cos, sin, position, out, x_token_stride, x_head_stride, num_heads,
    HALF: tl.constexpr, DIM: tl.constexpr, HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one token. Pair i turns by the angle of (position, i); dimensions past 2 * HALF are copied."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    at = tl.load(position + token).to(tl.int64)
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < num_heads) & (pair < HALF)
    c = tl.load(cos + at * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + at * HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    source = x + token * x_token_stride + head * x_head_stride
    target = out + (token * num_heads + head) * DIM
    if INTERLEAVED:
        place = 2 * pair[:, :, None] + tl.arange(0, 2)[None, None, :]
        a, b = tl.split(tl.load(source[:, :, None] + place, mask=inside[:, :, None], other=0.0).to(tl.float32))
        turned = tl.join(a * c - b * s, b * c + a * s).to(out.dtype.element_ty)
        tl.store(target[:, :, None] + place, turned, mask=inside[:, :, None])
    else:
        a = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(source + HALF + pair, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + pair, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
        tl.store(target + HALF + pair, (b * c + a * s).to(out.dtype.element_ty), mask=inside)
    if BLOCK_REST > 0:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
        beyond = (head < num_heads) & (rest < DIM)
        tl.store(target + rest, tl.load(source + rest, mask=beyond, other=0.0), mask=beyond)


@triton.jit
def tanh_fp32(x):
    """tanh by one exponential of a number that is never positive, so that nothing overflows."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def gated_kernel(gate, up, out, gate_stride, up_stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """out = activation(gate) * up; a tile of one row a program. ACTIVATION: "silu" or "gelu_tanh"."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        active = g * tl.sigmoid(g)
    else:
        active = 0.5 * g * (1.0 + tanh_fp32(0.7978845608028654 * (g + 0.044715 * g * g * g)))
    tl.store(out + row * width + column, (active * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def softcap_kernel(x, out, x_stride, width, cap, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    numbers = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (cap * tanh_fp32(numbers / cap)).to(out.dtype.element_ty), mask=inside)


def norm_tile(dim: int) -> tuple[int, int, int]:
    """Rows and columns of a norm's tile, and its warps. ValueError for rows that are too long."""
    if dim > _LONGEST_ROW:
        raise ValueError(f"x: rows of {dim} numbers; a norm's row is one tile of at most {_LONGEST_ROW}")
    block = power_of_two(dim, 16)
    rows = max(1, _SHORT_ROW // block)
    return rows, block, min(16, max(4, block // 1024))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [..., dim] -> same shape and type; x / sqrt(mean(x^2) + eps) * weight. Heads may be slices of wider tokens."""
    heads = contiguous_rows(x, "x") if x.dim() == 3 else contiguous_rows(x, "x").reshape(-1, 1, x.shape[-1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(heads, None, weight, out, out, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual: [rows, dim] -> rms_norm(x + residual), and x + residual, rounded to x's type before its norm."""
    contiguous_rows(x, "x"), contiguous_rows(residual, "residual")
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _norm(x.unsqueeze(1), residual, weight, out, total, eps)
    return out, total


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, total: Tensor, eps: float) -> None:
    tokens, heads, dim = x.shape
    num_rows = tokens * heads
    if not num_rows:
        return
    rows, block, warps = norm_tile(dim)
    other = x if residual is None else residual
    rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x, other, weight, out, total, num_rows, heads, eps, x.stride(0), x.stride(1), other.stride(0),
        DIM=dim, ROWS=rows, BLOCK=block, HAS_RESIDUAL=residual is not None, num_warps=warps,
    )  # fmt: skip


def rope_tile(heads: int, half: int, rest: int) -> dict[str, int]:
    """The tile of `rope_kernel`: at most 4,096 pairs a program."""
    block = power_of_two(half)
    return {
        "HEADS": min(power_of_two(heads), max(1, 4096 // block)),
        "BLOCK_HALF": block,
        "BLOCK_REST": power_of_two(rest) if rest else 0,
    }


def rope(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
    """x: [tokens, heads, head_dim]; cos, sin: [max_position, rotary_dim / 2], contiguous. As `Ops.rope`."""
    contiguous_rows(x, "x")
    tokens, heads, dim = x.shape
    half = cos.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    tile = rope_tile(heads, half, dim - 2 * half)
    rope_kernel[(tokens, triton.cdiv(heads, tile["HEADS"]))](
        x, cos, sin, position, out, x.stride(0), x.stride(1), heads,
        HALF=half, DIM=dim, INTERLEAVED=interleaved, num_warps=4, **tile,
    )  # fmt: skip
    return out


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, [rows, intermediate]; the two may be halves of one wider tensor."""
    return _gated(gate, up, "silu")


def gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, [rows, intermediate]."""
    return _gated(gate, up, "gelu_tanh")


def _gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    contiguous_rows(gate, "gate"), contiguous_rows(up, "up")
    rows, width = gate.shape
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if rows:
        gated_kernel[(rows, triton.cdiv(width, _TILE))](
            gate, up, out, gate.stride(0), up.stride(0), width, ACTIVATION=activation, BLOCK=_TILE, num_warps=4
        )
    return out


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), [rows, width]; cap is positive."""
    contiguous_rows(x, "x")
    rows, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows:
        softcap_kernel[(rows, triton.cdiv(width, _TILE))](x, out, x.stride(0), width, cap, BLOCK=_TILE, num_warps=4)
    return out


__all__ = ["add_rms_norm", "gelu_mul", "norm_tile", "rms_norm", "rope", "rope_tile", "silu_mul", "softcap"]
