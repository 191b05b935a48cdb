"""Qwen 3 (dense): Llama with an RMS norm over each query and key head."""

from __future__ import annotations

from dataclasses import replace

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.layers import DecoderLayer
from safegen.engine.models.qwen2 import qwen_windows


def _from_hf(fields: Fields) -> ModelConfig:
    config = hf_config.base_config(fields, "qwen3")
    return replace(config, sliding_window=qwen_windows(fields, config.num_layers))


def _from_gguf(file: GgufFile) -> ModelConfig:
    return gguf_config.base_config(file, "qwen3")


def _layer(reader: LayerReader) -> DecoderLayer:
    config = reader.config
    return DecoderLayer(
        reader.norm("attn_norm", config.hidden_size),
        reader.attention(qk_norm=True),
        reader.norm("ffn_norm", config.hidden_size),
        reader.mlp(),
    )


FAMILY = Family("qwen3", ("qwen3",), _from_hf, _from_gguf, _layer)
