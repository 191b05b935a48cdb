"""Llama 1 to 3, and its many retrainings such as SmolLM2. Mistral's GGUF files also call themselves "llama".

GGUF files of this architecture store the rows of q and k permuted, so that neighbouring dimensions rotate together:
rope runs interleaved on them, which leaves quantized blocks untouched. Files of all other families are not permuted.
"""

from __future__ import annotations

from dataclasses import replace

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.layers import DecoderLayer


def _from_hf(fields: Fields) -> ModelConfig:
    return hf_config.base_config(fields, "llama")


def _from_gguf(file: GgufFile) -> ModelConfig:
    config = gguf_config.base_config(file, "llama")
    window = gguf_config.gguf_fields(file, "llama").optional_integer("attention.sliding_window")
    return replace(config, rope_interleaved=True, sliding_window=(window or None,) * config.num_layers)


def plain_layer(reader: LayerReader) -> DecoderLayer:
    """Norm, attention, norm, gated MLP; biases where the checkpoint has them."""
    config = reader.config
    return DecoderLayer(
        reader.norm("attn_norm", config.hidden_size),
        reader.attention(),
        reader.norm("ffn_norm", config.hidden_size),
        reader.mlp(),
    )


FAMILY = Family("llama", ("llama",), _from_hf, _from_gguf, plain_layer)
