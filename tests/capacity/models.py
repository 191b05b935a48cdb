"""Models for plans: a tiny folder with a config alone, and sizes that are nobody's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from safegen.engine.model_size import ModelSize, measure_model
from safegen.engine.slice_times import SliceTimes

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip
TINY = {
    **LLAMA_8B, "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
# Of a machine that reads the weights in 10 ms and multiplies 1,000 rows a second.
TIMES = SliceTimes({1: 0.009, 8: 0.012, 256: 0.256}, {1: 0.001, 64: 0.01}, 1e-7, 1e-9)


def folder(path: Path, config: dict[str, Any] = LLAMA_8B, **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    return path


def tiny_size() -> ModelSize:
    with tempfile.TemporaryDirectory() as name:
        return measure_model(folder(Path(name), TINY))
