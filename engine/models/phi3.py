"""Phi-3, 3.5 and Phi-4-mini: Llama with q, k, v and gate, up stored fused, partial rotation, and LongRoPE.

The fused matrices are split by rows at load. Older configs call LongRoPE "su" or "yarn".
"""

from __future__ import annotations

from dataclasses import replace

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.layers import DecoderLayer


def _from_hf(fields: Fields) -> ModelConfig:
    renamed = dict(fields.values)
    for section in ("rope_scaling", "rope_parameters"):
        settings = renamed.get(section)
        if isinstance(settings, dict) and settings.get("rope_type", settings.get("type")) in ("su", "yarn"):
            renamed[section] = {**settings, "rope_type": "longrope"}
    config = hf_config.base_config(Fields(renamed, fields.path), "phi3")
    return replace(config, sliding_window=(fields.optional_integer("sliding_window"),) * config.num_layers)


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = gguf_config.base_config(file, "phi3")
    window = gguf_config.gguf_fields(file, "phi3").optional_integer("attention.sliding_window")
    return replace(config, sliding_window=(window or None,) * config.num_layers)


def _layer(reader: LayerReader) -> DecoderLayer:
    config = reader.config
    return DecoderLayer(
        reader.norm("attn_norm", config.hidden_size),
        reader.attention(fused=True),
        reader.norm("ffn_norm", config.hidden_size),
        reader.mlp(fused=True),
    )


FAMILY = Family(
    "phi3",
    ("phi3",),
    _from_hf,
    _from_gguf,
    _layer,
    hf_names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)
