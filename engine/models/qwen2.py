"""Qwen 2 and 2.5: Llama with biases on q, k and v. The upper layers may slide (use_sliding_window)."""

from __future__ import annotations

from dataclasses import replace

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.layers import DecoderLayer
from safegen.engine.models.llama import plain_layer
from safegen.errors import ModelLoadError


def qwen_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Windows apply only where the config says so, and then from max_window_layers on."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * num_layers
    return hf_config.layer_windows(fields, num_layers, fields.integer("max_window_layers", 28))


def _from_hf(fields: Fields) -> ModelConfig:
    config = hf_config.base_config(fields, "qwen2")
    return replace(config, sliding_window=qwen_windows(fields, config.num_layers))


def _from_gguf(file: GgufFile) -> ModelConfig:
    return gguf_config.base_config(file, "qwen2")


def _layer(reader: LayerReader) -> DecoderLayer:
    layer = plain_layer(reader)
    for role, linear in (("attn_q", layer.attention.q), ("attn_k", layer.attention.k), ("attn_v", layer.attention.v)):
        if linear.bias is None:
            raise ModelLoadError(
                "the bias is missing", path=reader.source.path, tensor=f"blk.{reader.index}.{role}.bias",
                hint="Qwen 2 has biases on q, k and v; the checkpoint is incomplete or of another architecture",
            )  # fmt: skip
    return layer


FAMILY = Family("qwen2", ("qwen2",), _from_hf, _from_gguf, _layer)
