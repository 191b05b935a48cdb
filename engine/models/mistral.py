"""Mistral 7B and its relatives: Llama with one sliding window on every layer (newer ones have none).

Its GGUF files use the architecture "llama" and load as such.
"""

from __future__ import annotations

from dataclasses import replace

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family
from safegen.engine.models.llama import plain_layer


def _from_hf(fields: Fields) -> ModelConfig:
    config = hf_config.base_config(fields, "mistral")
    return replace(config, sliding_window=(fields.optional_integer("sliding_window"),) * config.num_layers)


def _from_gguf(file: GgufFile) -> ModelConfig:
    return gguf_config.base_config(file, "mistral")


FAMILY = Family("mistral", ("mistral",), _from_hf, _from_gguf, plain_layer)
