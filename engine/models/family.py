"""How a family is described, and the reading of its layers out of a checkpoint.

A family is data plus three functions: two that make its `ModelConfig` (from config.json, from GGUF metadata), one that
builds a layer with the `LayerReader`. Canonical tensor names are GGUF's, since GGUF uses one set for all families;
`hf_name` translates them for safetensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from safegen.engine.gguf import GgufFile
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.layers import Attention, DecoderLayer, GatedMlp, Linear, Norm
from safegen.engine.models.rope import RopeTable
from safegen.engine.weights import WeightSource
from safegen.kernels.api import Ops

# Where the decoder sits in a checkpoint: causal LM, bare model, and the two nestings of multimodal checkpoints.
HF_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.")
HF_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Family:
    """architecture: its name in GGUF files and in ModelConfig. model_types: its names in config.json. hf_names:
    canonical -> checkpoint names where they differ from HF_NAMES. hf_norm_offset: added to norm weights of safetensors
    checkpoints (GGUF files have it added already)."""

    architecture: str
    model_types: tuple[str, ...]
    from_hf: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[GgufFile], ModelConfig]
    layer: Callable[[LayerReader], DecoderLayer]
    hf_names: Mapping[str, str] = field(default_factory=dict)
    hf_norm_offset: float = 0.0

    def hf_name(self, canonical: str, names: frozenset[str]) -> str:
        """The checkpoint's name of a canonical one; names: all that the checkpoint holds."""
        prefix = next((p for p in HF_PREFIXES if f"{p}embed_tokens.weight" in names), HF_PREFIXES[0])
        if canonical == "output.weight":
            nested = "language_model.lm_head.weight"
            return nested if nested in names else "lm_head.weight"
        *block, role, suffix = canonical.split(".")
        layer = f"layers.{block[1]}." if block else ""
        return f"{prefix}{layer}{self.hf_names.get(role) or HF_NAMES.get(role, role)}.{suffix}"


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Reads one layer's tensors, one at a time, and hands each to the backend. index: the layer's number."""

    index: int
    config: ModelConfig
    ops: Ops
    source: WeightSource
    device: torch.device
    rope: RopeTable
    norm_offset: float

    def linear(self, role: str, out_features: int, in_features: int) -> Linear:
        return self.linears(role, (out_features,), in_features)[0]

    def linears(self, role: str, out_features: tuple[int, ...], in_features: int) -> list[Linear]:
        """A projection, or several that the checkpoint stores on top of each other, split by rows."""
        stored = self.source.weight(self._name(role), (sum(out_features), in_features))
        weights = [stored.rows(stop - count, stop) for count, stop in zip(out_features, accumulate(out_features))]
        bias_name = self._name(role, "bias")
        if bias_name not in self.source:
            return [Linear(self.ops.prepare(weight)) for weight in weights]
        bias = self.source.vector(bias_name, sum(out_features)).to(self.device)
        biases = torch.split(bias, list(out_features))
        return [Linear(self.ops.prepare(weight), part) for weight, part in zip(weights, biases)]

    def norm(self, role: str, dim: int) -> Norm:
        weight = self.source.vector(self._name(role), dim) + self.norm_offset
        return Norm(weight.to(self.device), self.config.rms_norm_eps)

    def attention(self, *, fused: bool = False, qk_norm: bool = False) -> Attention:
        """fused: the checkpoint stores q, k and v as one matrix. qk_norm: heads are normed before the rotation."""
        config = self.config
        q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        if fused:
            q, k, v = self.linears("attn_qkv", (q_out, kv_out, kv_out), config.hidden_size)
        else:
            q = self.linear("attn_q", q_out, config.hidden_size)
            k = self.linear("attn_k", kv_out, config.hidden_size)
            v = self.linear("attn_v", kv_out, config.hidden_size)
        return Attention(
            q,
            k,
            v,
            self.linear("attn_output", config.hidden_size, q_out),
            self.rope,
            config.rope_interleaved,
            config.head_dim,
            config.attention_scale,
            config.sliding_window[self.index],
            self.norm("attn_q_norm", config.head_dim) if qk_norm else None,
            self.norm("attn_k_norm", config.head_dim) if qk_norm else None,
        )

    def mlp(self, *, fused: bool = False) -> GatedMlp:
        """fused: the checkpoint stores gate and up as one matrix."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        if fused:
            gate, up = self.linears("ffn_up", (inner, inner), hidden)
        else:
            gate, up = self.linear("ffn_gate", inner, hidden), self.linear("ffn_up", inner, hidden)
        return GatedMlp(gate, up, self.linear("ffn_down", hidden, inner), self.config.activation)

    def _name(self, role: str, suffix: str = "weight") -> str:
        return f"blk.{self.index}.{role}.{suffix}"


__all__ = ["Family", "LayerReader"]
