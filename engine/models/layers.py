"""The decoder that all families share: pre-norm attention and a gated MLP over the `Ops` protocol.

Families differ in data, not in code paths of their own: an absent norm or bias is None, a window or a second rope
table belongs to the layer. Fused projections of a checkpoint are split by rows at load (rows of a quantized weight are
independent), so every layer here has the same six linears and a backend that fuses a whole step finds them in one
place. Everything is computed a row at a time or through `Ops`, so the row independence that `Ops` promises carries
over to the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from safegen.engine.models.base import LogitMasks
from safegen.engine.models.config import Activation, ModelConfig
from safegen.engine.models.rope import RopeTable
from safegen.kernels.api import AttentionPlan, KvLayer, Ops, Weight


@dataclass(frozen=True, slots=True)
class Linear:
    """weight: prepared by the backend, [out, in]. bias: fp32 [out]."""

    weight: Weight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm. weight: fp32 [dim], any offset already added."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Attention:
    """q_norm, k_norm: over each head's dimensions, before the rotation. window: tokens a query sees, None is all."""

    q: Linear
    k: Linear
    v: Linear
    output: Linear
    rope: RopeTable
    rope_interleaved: bool
    head_dim: int
    scale: float
    window: int | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def forward(self, ops: Ops, x: Tensor, plan: AttentionPlan, cache: KvLayer) -> Tensor:
        """x: [tokens, hidden] -> [tokens, hidden]."""
        q, k, v = (_heads(ops, linear, x, self.head_dim) for linear in (self.q, self.k, self.v))
        q, k = _normed(ops, self.q_norm, q), _normed(ops, self.k_norm, k)
        q = ops.rope(q, self.rope.cos, self.rope.sin, plan.position, self.rope_interleaved)
        k = ops.rope(k, self.rope.cos, self.rope.sin, plan.position, self.rope_interleaved)
        ops.kv_write(k, v, cache, plan)
        attended = ops.paged_attention(q, cache, plan, scale=self.scale, window=self.window)
        return ops.linear(attended.flatten(1), self.output.weight, self.output.bias)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        """x: [tokens, hidden] -> [tokens, hidden]."""
        gate = ops.linear(x, self.gate.weight, self.gate.bias)
        up = ops.linear(x, self.up.weight, self.up.bias)
        hidden = ops.silu_mul(gate, up) if self.activation == "silu" else ops.gelu_mul(gate, up)
        return ops.linear(hidden, self.down.weight, self.down.bias)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """attention_norm and mlp_norm come before their part; the post norms (Gemma) after it, before the residual."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: GatedMlp
    post_attention_norm: Norm | None = None
    post_mlp_norm: Norm | None = None

    def forward(self, ops: Ops, x: Tensor, plan: AttentionPlan, cache: KvLayer) -> Tensor:
        attended = self.attention.forward(ops, _normed(ops, self.attention_norm, x), plan, cache)
        x = x + _normed(ops, self.post_attention_norm, attended)
        transformed = self.mlp.forward(ops, _normed(ops, self.mlp_norm, x))
        return x + _normed(ops, self.post_mlp_norm, transformed)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model; implements `Model` (base.py), and computes all logits whatever the masks. head is the embedding's
    weight where the two are tied."""

    config: ModelConfig
    ops: Ops
    embedding: Weight
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear

    def forward(
        self,
        ids: Tensor,
        plan: AttentionPlan,
        cache: Sequence[KvLayer],
        sampled_rows: Tensor,
        masks: LogitMasks | None = None,
    ) -> Tensor:
        for layer in self.layers:
            layer.attention.rope.cover(plan.block_table.shape[1] * plan.block_size)
        x = self.ops.embedding(ids, self.embedding)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer.forward(self.ops, x, plan, layer_cache)
        x = _normed(self.ops, self.norm, x.index_select(0, sampled_rows))
        logits = self.ops.linear(x, self.head.weight, self.head.bias)
        softcap = self.config.logit_softcap
        return logits if softcap is None else self.ops.softcap(logits, softcap)


def _heads(ops: Ops, linear: Linear, x: Tensor, head_dim: int) -> Tensor:
    """x: [tokens, hidden] -> [tokens, heads, head_dim]."""
    return ops.linear(x, linear.weight, linear.bias).view(len(x), -1, head_dim)


def _normed(ops: Ops, norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else ops.rms_norm(x, norm.weight, norm.eps)


__all__ = ["Attention", "Decoder", "DecoderLayer", "GatedMlp", "Linear", "Norm"]
