"""Plain torch in fp32: the oracle that every other backend is compared with, and the parity path to `transformers`.

Weights are dequantized once, by `prepare`, so a quantized model takes its fp32 size in memory here. Nothing is fused
and nothing is fast: each operation is the formula. One promise of the protocol is not kept: torch's matrix products
choose their reduction order by shape, so a row's value can differ in the last bits with the number of rows beside it.
Backends that serve requests must keep it; comparisons against this one take a tolerance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from safegen.kernels.api import AttentionPlan, KvLayer, Weight
from safegen.kernels.quant import dequantize
from safegen.kernels.scaled import dequantize_scaled

_LARGEST_HALF = 65504.0
_ZERO_HEAD = 1e-30  # a quantized head without a number of at least this is kept as zeros


class ReferenceOps:
    """`Ops` in plain torch; runs on any device the tensors lie on. See kernels/api.py for the contract."""

    name = "reference"

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        return Weight("f32", weight.shape, _dense(weight))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, _dense(weight), bias)

    def embedding(self, ids: Tensor, weight: Weight) -> Tensor:
        return _dense(weight)[ids.long()] if weight.scales else dequantize(weight.kind, weight.data[ids.long()])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
        half = cos.shape[-1]
        rows = position.long()
        c, s = cos[rows].unsqueeze(1), sin[rows].unsqueeze(1)
        rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
        if interleaved:
            a, b = rotary[..., 0::2], rotary[..., 1::2]
            rotated = torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2)
        else:
            a, b = rotary[..., :half], rotary[..., half:]
            rotated = torch.cat((a * c - b * s, b * c + a * s), dim=-1)
        return torch.cat((rotated, rest), dim=-1)

    def kv_write(self, key: Tensor, value: Tensor, cache: KvLayer, plan: AttentionPlan) -> None:
        written = plan.slot >= 0
        slot = plan.slot[written].long()
        block_size = cache.value.shape[2]
        at = slot // block_size, slot % block_size
        for numbers, (kept, scales) in zip((key, value), cache.by_token()):
            rows = numbers[written].float()
            if scales is not None:
                digits, scales[at] = head_digits(rows, kept.dtype)
                kept.view(torch.uint8)[at] = digits.view(torch.uint8)  # torch indexes no fp8 on a CPU
            elif kept.dtype == torch.float16:
                kept[at] = rows.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()
            else:
                kept[at] = rows.to(kept.dtype)

    def paged_attention(
        self,
        q: Tensor,
        cache: KvLayer,
        plan: AttentionPlan,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        output = torch.empty_like(q)
        starts, contexts = plan.query_start.tolist(), plan.context_len.tolist()
        for index, num_cached in enumerate(contexts):
            rows = slice(starts[index], starts[index + 1])
            blocks = plan.block_table[index, : -(-num_cached // plan.block_size)].long()
            key, value = (_cached(*numbers, blocks, num_cached) for numbers in cache.by_token())
            visible = _visible(plan.position[rows], num_cached, window)
            output[rows] = _attend(q[rows], key, value, visible, scale, softcap)
        return output

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        return cap * (x / cap).tanh()

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.gelu(gate, approximate="tanh") * up


def _dense(weight: Weight) -> Tensor:
    return dequantize_scaled(weight) if weight.scales else dequantize(weight.kind, weight.data)


def head_digits(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """rows: fp32 [..., head_dim] -> digits of the same shape, int8 or fp8 (e4m3), and float32 scales [...]."""
    span = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    largest = rows.abs().amax(-1)
    kept = largest.isfinite() & (largest >= _ZERO_HEAD)
    # torch takes a number divided by a tensor for a reciprocal times that number, rounded twice: hence the full tensor.
    factor = torch.where(kept, torch.full_like(largest, span) / largest, 0.0).unsqueeze(-1)
    digits = torch.where(kept.unsqueeze(-1), rows * factor, 0.0)
    digits = (digits.round() if dtype == torch.int8 else digits.clamp(-span, span)).to(dtype)
    return digits, torch.where(kept, largest / span, torch.where(largest.isfinite(), 0.0, torch.nan))


def _cached(kept: Tensor, scales: Tensor | None, blocks: Tensor, num_cached: int) -> Tensor:
    """The first num_cached keys (or values) of the blocks as float32 [num_cached, kv_heads, head_dim]."""
    bits = kept.view(torch.uint8) if kept.dtype.itemsize == 1 else kept
    rows = bits[blocks].view(kept.dtype).flatten(0, 1)[:num_cached].float()
    return rows if scales is None else rows * scales[blocks].flatten(0, 1)[:num_cached].unsqueeze(-1)


def _visible(position: Tensor, num_cached: int, window: int | None) -> Tensor:
    """bool [rows, cached]: which cached positions each query row sees."""
    key_position = torch.arange(num_cached, device=position.device)
    distance = position.unsqueeze(1) - key_position
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)


def _attend(q: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, softcap: float | None) -> Tensor:
    """q: [rows, heads, dim]; key, value: [cached, kv_heads, dim]; each key head serves heads / kv_heads query heads."""
    group = q.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,chd->hrc", q, key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hrc,chd->rhd", weights, value)


__all__ = ["ReferenceOps"]
