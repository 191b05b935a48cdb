"""`ModelConfig` out of a Hugging Face folder: the fields that families have in common, and every spelling of rope.

Rope settings come in two spellings: `rope_parameters` (transformers 5, one object or one a layer type), and the older
`rope_theta` + `rope_scaling`. Both are read; a scaling method that is not implemented is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safegen.engine.models.config import Fields, ModelConfig, RopeConfig
from safegen.errors import ModelLoadError

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


def read_json(path: Path) -> Mapping[str, Any]:
    """An object out of a JSON file."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"cannot be read as JSON: {error}", path=str(path), hint="download the model again"
        ) from error
    if not isinstance(values, dict):
        raise ModelLoadError("holds no JSON object", path=str(path), hint="download the model again")
    return values


def base_config(fields: Fields, architecture: str) -> ModelConfig:
    """What all families share; a family replaces what it does otherwise."""
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        fields.fail("hidden_act", f"is {activation!r}; {architecture} is served with 'silu'")
    num_heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden_size // max(num_heads, 1))
    num_layers, max_position = fields.layer_count("num_hidden_layers"), fields.integer("max_position_embeddings")
    return ModelConfig(
        path=fields.path,
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope_config(rope_section(fields), head_dim, max_position),
        sliding_window=(None,) * num_layers,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        eos_token_ids=eos_token_ids(fields),
        attention_scale=max(head_dim, 1) ** -0.5,
    )


def eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """The union of the config's and the generation config's end ids."""
    found: set[int] = set()
    generation = Path(fields.path).parent / GENERATION_FILE
    sources = [fields] + ([Fields(read_json(generation), str(generation))] if generation.exists() else [])
    for source in sources:
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int for token in ids):
            source.fail("eos_token_id", f"must be a token id or a list of them, found {value!r}")
        found.update(ids)
    return tuple(sorted(found))


def layer_windows(fields: Fields, num_layers: int, first_sliding: int) -> tuple[int | None, ...]:
    """Per-layer windows: by `layer_types` where given, else layers from first_sliding on."""
    window = fields.optional_integer("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is None:
        return tuple(window if index >= first_sliding else None for index in range(num_layers))
    if not isinstance(kinds, list) or not set(kinds) <= {"full_attention", "sliding_attention"}:
        fields.fail("layer_types", f"may hold 'full_attention' and 'sliding_attention', found {kinds!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def rope_section(fields: Fields, layer_type: str | None = None) -> Fields:
    """The rope settings of a layer type in the newer spelling, whichever the file uses."""
    section = fields.section("rope_parameters")
    if section is not None and layer_type is not None:
        section = section.section(layer_type) or section
    merged: dict[str, Any] = dict(section.values if section is not None else {})
    if section is None:
        scaling = fields.section("rope_scaling")
        merged = dict(scaling.values if scaling is not None else {})
    merged.setdefault("rope_type", merged.get("type", "default"))
    for name, fallback in (("rope_theta", 10_000.0), ("partial_rotary_factor", 1.0)):
        merged.setdefault(name, fields.number(name, fallback))
    original = fields.get("original_max_position_embeddings")
    if merged.get("original_max_position_embeddings") is None and original is not None:
        merged["original_max_position_embeddings"] = original
    return Fields(merged, fields.path)


def rope_config(section: Fields, head_dim: int, max_position: int) -> RopeConfig:
    kind = section.text("rope_type")
    if kind not in ROPE_TYPES:
        section.fail(
            "rope_type", f"is {kind!r}; served are {', '.join(ROPE_TYPES)}", "use a checkpoint with one of these"
        )
    rotary_dim = int(head_dim * section.number("partial_rotary_factor"))
    theta = section.number("rope_theta")
    if kind == "default":
        return RopeConfig(theta, rotary_dim)
    if kind == "linear":
        return RopeConfig(theta, rotary_dim, "linear", factor=section.number("factor"))
    original = section.integer("original_max_position_embeddings", max_position)
    if kind == "llama3":
        return RopeConfig(
            theta, rotary_dim, "llama3", section.number("factor"), original,
            low_freq_factor=section.number("low_freq_factor"), high_freq_factor=section.number("high_freq_factor"),
        )  # fmt: skip
    factor = section.number("factor", max_position / max(original, 1))
    if kind == "yarn":
        return RopeConfig(
            theta, rotary_dim, "yarn", factor, original, _yarn_attention_factor(section, factor),
            beta_fast=section.number("beta_fast", 32.0), beta_slow=section.number("beta_slow", 1.0),
            truncate=section.flag("truncate", True),
        )  # fmt: skip
    return RopeConfig(
        theta, rotary_dim, "factors", factor, original, section.optional_number("attention_factor"),
        short_factors=section.numbers("short_factor"), long_factors=section.numbers("long_factor"),
    )  # fmt: skip


def _yarn_attention_factor(section: Fields, factor: float) -> float | None:
    given = section.optional_number("attention_factor")
    mscale, mscale_all = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    if given is not None or not (mscale and mscale_all) or factor <= 1:
        return given
    return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * mscale_all * math.log(factor) + 1.0)


__all__ = [
    "CONFIG_FILE", "base_config", "eos_token_ids", "layer_windows", "read_json", "rope_config", "rope_section",
]  # fmt: skip
