"""Tiny random checkpoints of every family: as a transformers model, as a safetensors folder, and as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from safegen.engine.models.family import Family
from safegen.engine.models.loader import FAMILIES
from safegen.kernels.quant import BLOCK_TYPES, FLOAT_KINDS, dequantize

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 5, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
LONG_FACTORS = {
    "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.2, 1.4, 2.0, 2.5], "long_factor": [1.0, 2.0, 3.0, 5.0, 7.0, 9.0],
}  # fmt: skip
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

# name -> (transformers class, config class, settings beyond SIZES)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama-tied-wide-heads": ("Llama", {"tie_word_embeddings": True, "head_dim": 24, "num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama3-rope": ("Llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }}),
    "llama-yarn": ("Llama", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "mscale": 0.7, "mscale_all_dim": 1.0,
    }}),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral-no-window": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "gemma3": ("Gemma3", {
        "head_dim": 24, "sliding_window": 6, "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 20,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }),
    "gemma3-logit-softcap": ("Gemma3", {
        "head_dim": 24, "sliding_window": 6, "num_hidden_layers": 7, "final_logit_softcapping": 5.0,
    }),
    "phi3": ("Phi3", {"sliding_window": 9, "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5,
    }}),
    "phi3-longrope": ("Phi3", {"rope_parameters": LONG_FACTORS}),
}  # fmt: skip


def tiny_model(variant: str, **settings: Any) -> Any:
    """A transformers model in fp32 whose every parameter is random, norms and biases included."""
    prefix, extra = VARIANTS[variant]
    config_class = getattr(transformers, f"{prefix}TextConfig" if prefix == "Gemma3" else f"{prefix}Config")
    torch.manual_seed(sum(map(ord, variant)))
    model = getattr(transformers, f"{prefix}ForCausalLM")(config_class(**{**SIZES, **extra, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name and prefix != "Gemma3" else 0.0
            parameter.copy_(centre + torch.randn_like(parameter) * (0.12 if parameter.ndim == 2 else 0.2))
    return model


def family_of(model: Any) -> Family:
    return next(family for family in FAMILIES if model.config.model_type in family.model_types)


def hf_logits(model: Any, ids: list[int]) -> Tensor:
    """[tokens, vocab], one forward over the whole sequence."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def random_ids(length: int, seed: int) -> list[int]:
    return torch.randint(6, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def write_gguf(
    path: Path, model: Any, kind_of: Callable[[str], str], edit: Callable[[Any], None] = lambda _: None
) -> None:
    """Write the model as GGUF and put the written (quantized) values back into it.

    kind_of: canonical name of a matrix -> its kind. edit: a last change to the writer, for what a test needs.
    """
    family = family_of(model)
    architecture = "llama" if family.architecture == "mistral" else family.architecture
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, model.config, architecture)
    state = model.state_dict()
    written = set()
    for canonical, name in _canonical_names(family, model.config.num_hidden_layers, frozenset(state)):
        if name in written or (canonical == "output.weight" and model.config.tie_word_embeddings):
            continue
        written.add(name)
        heads = _permuted_heads(architecture, canonical, model.config)
        _write_tensor(writer, canonical, state[name], kind_of(canonical), heads, family.hf_norm_offset)
    assert written >= set(state) - {"lm_head.weight"}
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _canonical_names(family: Family, num_layers: int, names: frozenset[str]) -> list[tuple[str, str]]:
    roles = [
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_q_norm", "attn_k_norm", "attn_output",
        "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm",
    ]  # fmt: skip
    canonical = ["token_embd.weight", "output_norm.weight", "output.weight"]
    for index in range(num_layers):
        canonical += [f"blk.{index}.{role}.{suffix}" for role in roles for suffix in ("weight", "bias")]
    pairs = [(name, family.hf_name(name, names)) for name in canonical]
    return [(name, hf) for name, hf in pairs if hf in names]


def _permuted_heads(architecture: str, canonical: str, config: Any) -> int | None:
    """llama.cpp's converter permutes the q and k rows of this architecture alone."""
    if architecture != "llama":
        return None
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(canonical.split(".")[-2])


def _permute(rows: Tensor, heads: int) -> Tensor:
    """[heads * dim, ...]: (half, pair) order of a head's rows becomes (pair, half)."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def unpermute(rows: Tensor, heads: int) -> Tensor:
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _write_tensor(writer: Any, name: str, parameter: Tensor, kind: str, heads: int | None, norm_offset: float) -> None:
    values = parameter if heads is None else _permute(parameter, heads)
    if parameter.ndim == 1:
        offset = norm_offset if "norm" in name else 0.0
        writer.add_tensor(name, (values + offset).numpy().copy())
        return
    raw, values = quantized(values, kind)
    parameter.copy_(values if heads is None else unpermute(values, heads))
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])


def quantized(values: Tensor, kind: str) -> tuple[np.ndarray, Tensor]:
    """Raw bytes or floats of the kind, and the fp32 values they stand for. k-types: random blocks of similar size."""
    if kind in FLOAT_KINDS:
        rounded = values.to(FLOAT_KINDS[kind])
        raw = rounded.view(torch.uint8) if kind == "bf16" else rounded
        return raw.numpy().copy(), rounded.float()
    if kind.endswith("_k"):
        raw = random_k_blocks(values.shape, kind)
    else:
        raw = gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType[kind.upper()])
    return raw, dequantize(kind, torch.from_numpy(raw))


def random_k_blocks(shape: tuple[int, ...], kind: str) -> np.ndarray:
    block = BLOCK_TYPES[kind]
    rng = np.random.default_rng(shape[0])
    raw = rng.integers(0, 256, (shape[0], shape[1] // block.elements, block.block_bytes), dtype=np.uint8)
    scale, minimum = {"q4_k": (4e-4, 4e-3), "q5_k": (2e-4, 4e-3), "q6_k": (4e-5, 0)}[kind]
    at = 208 if kind == "q6_k" else 0
    raw[..., at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if minimum:
        raw[..., 2:4] = np.frombuffer(np.float16(minimum).tobytes(), np.uint8)
    return raw.reshape(shape[0], -1)


def _write_metadata(writer: Any, config: Any, architecture: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        writer.add_array("gemma3.attention.sliding_window_pattern", [t != "full_attention" for t in config.layer_types])
        writer.add_float32("gemma3.attention.scale", config.query_pre_attn_scalar**-0.5)
        rope = rope["full_attention"]
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_eot_token_id(7)
