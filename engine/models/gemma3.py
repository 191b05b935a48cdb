"""Gemma 3, the text part: norms before and after each part, normed heads, local and global layers, scaled embedding.

Five of six layers slide and rotate with a base of 10,000; the sixth sees everything, with a base of a million and, in
the larger models, linear scaling. Norms multiply by 1 + weight: safetensors store the weight, GGUF files 1 + weight.
The `text_config` of a multimodal checkpoint leaves out what equals transformers' defaults, so those are repeated here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gguf_config, hf_config
from safegen.engine.models.config import Fields, ModelConfig, RopeConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.layers import DecoderLayer

LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0
SLIDING_PATTERN = 6
TEXT_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def _from_hf(fields: Fields) -> ModelConfig:
    fields = _text_fields(fields)
    # The common part knows one rope a model and another name of the activation; both are set here.
    elsewhere = ("hidden_act", "rope_parameters", "rope_scaling")
    common = {name: value for name, value in fields.values.items() if name not in elsewhere}
    config = hf_config.base_config(Fields(common, fields.path), "gemma3")
    global_rope = hf_config.rope_section(fields, "full_attention")
    return replace(
        config,
        rope=hf_config.rope_config(global_rope, config.head_dim, config.max_position),
        local_rope=_local_rope(fields, config),
        sliding_window=_windows(fields, config.num_layers),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        activation="gelu_tanh",
    )


def _text_fields(fields: Fields) -> Fields:
    """The text model's fields, with the defaults of this family; refuses what would compute something else."""
    defaults: dict[str, object] = {"rope_theta": GLOBAL_THETA, "tie_word_embeddings": True}
    text = fields.section("text_config")
    if text is not None:
        outer = {name: fields.values[name] for name in ("eos_token_id",) if name in fields.values}
        fields, defaults = text, {**defaults, **TEXT_DEFAULTS, **outer}
    fields = Fields({**defaults, **fields.values}, fields.path)
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        fields.fail("hidden_activation", f"is {activation!r}; gemma3 is served with 'gelu_pytorch_tanh'")
    if fields.flag("use_bidirectional_attention", False):
        fields.fail("use_bidirectional_attention", "is set; only causal models are served", "use a causal checkpoint")
    if fields.get("attn_logit_softcapping") is not None:
        fields.fail("attn_logit_softcapping", "is set; Gemma 3 caps no attention scores")
    return fields


def _local_rope(fields: Fields, config: ModelConfig) -> RopeConfig:
    by_layer_type = fields.section("rope_parameters")
    section = by_layer_type.section("sliding_attention") if by_layer_type is not None else None
    if section is None:
        return RopeConfig(fields.number("rope_local_base_freq", LOCAL_THETA), config.head_dim)
    defaults = {"rope_theta": LOCAL_THETA, "rope_type": "default", "partial_rotary_factor": 1.0}
    section = Fields({**defaults, **section.values}, fields.path)
    return hf_config.rope_config(section, config.head_dim, config.max_position)


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    if fields.get("layer_types") is not None:
        return hf_config.layer_windows(fields, num_layers, 0)
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", SLIDING_PATTERN))
    return _pattern(num_layers, pattern, fields.integer("sliding_window"))


def _pattern(num_layers: int, pattern: int, window: int) -> tuple[int | None, ...]:
    """Every pattern-th layer is global."""
    return tuple(window if (index + 1) % max(pattern, 1) else None for index in range(num_layers))


def _from_gguf(file: GgufFile) -> ModelConfig:
    fields = gguf_config.gguf_fields(file, "gemma3")
    config = gguf_config.base_config(file, "gemma3")
    rope = config.rope
    if fields.get("rope.freq_base") is None:
        rope = replace(rope, theta=GLOBAL_THETA)
    scale = config.attention_scale
    if config.num_layers == 62:  # 27B alone scales by hidden_size / num_heads; GGUF metadata does not say so
        scale = (config.hidden_size / config.num_heads) ** -0.5
    return replace(
        config,
        rope=rope,
        local_rope=RopeConfig(fields.number("rope.freq_base_swa", LOCAL_THETA), rope.rotary_dim),
        sliding_window=_gguf_windows(fields, config.num_layers),
        attention_scale=fields.number("attention.scale", scale),
        logit_softcap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        activation="gelu_tanh",
    )


def _gguf_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    window = fields.integer("attention.sliding_window")
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray) and pattern.dtype == np.bool_:
        return tuple(window if slides else None for slides in pattern.tolist())
    return _pattern(num_layers, fields.integer("attention.sliding_window_pattern", SLIDING_PATTERN), window)


def _layer(reader: LayerReader) -> DecoderLayer:
    hidden = reader.config.hidden_size
    return DecoderLayer(
        reader.norm("attn_norm", hidden),
        reader.attention(qk_norm=True),
        reader.norm("ffn_norm", hidden),
        reader.mlp(),
        reader.norm("post_attention_norm", hidden),
        reader.norm("post_ffw_norm", hidden),
    )


FAMILY = Family(
    "gemma3",
    ("gemma3_text", "gemma3"),
    _from_hf,
    _from_gguf,
    _layer,
    hf_names={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    hf_norm_offset=1.0,
)
