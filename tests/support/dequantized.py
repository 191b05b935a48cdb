"""A GGUF file's weights as `transformers` has them: its config's sizes, and every tensor dequantized to fp32.

transformers' own GGUF loader gives the same model, but needs one more package and takes far longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safegen.engine.gguf import GgufFile
from safegen.engine.models.config import ModelConfig
from safegen.engine.models.family import Family
from safegen.kernels.quant import FLOAT_KINDS, dequantize
from tests.engine.checkpoints import unpermute


def dequantized(path: Path, family: Family, config: ModelConfig) -> dict[str, Tensor]:
    """All tensors of a GGUF file as transformers has them: fp32, q and k not permuted, norms without the offset."""
    file, state = GgufFile(path), {}
    for name, tensor in file.tensors.items():
        raw = torch.from_numpy(file.raw(name))
        values = dequantize(tensor.kind, raw.view(FLOAT_KINDS.get(tensor.kind, torch.uint8))).reshape(tensor.shape)
        if config.rope_interleaved and ("attn_q" in name or "attn_k" in name):
            values = unpermute(values, tensor.shape[0] // config.head_dim)
        state[family.hf_name(name, frozenset())] = values - family.hf_norm_offset if "norm" in name else values
    return state


def sizes(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "rms_norm_eps": config.rms_norm_eps,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "max_position_embeddings": config.max_position, "tie_word_embeddings": True,
    }  # fmt: skip
