"""Configs of every spelling give one ModelConfig; a bad field is refused by file, name and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from safegen.engine.models.config import ModelConfig, RopeConfig
from safegen.engine.models.loader import read_config
from safegen.engine.models.rope import CHUNK_POSITIONS, RopeTable, frequencies
from safegen.errors import ModelLoadError
from tests.engine.checkpoints import VARIANTS, tiny_model, write_gguf

LLAMA = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "eos_token_id": 5,
}  # fmt: skip


def config_of(folder: Path, values: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def without_path(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ModelConfig.__slots__ if name != "path"}


def test_fields_left_out_take_the_architecture_s_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.rope.theta, config.tie_embeddings) == (4, 16, 10_000.0, False)
    assert config.sliding_window == (None, None) and config.eos_token_ids == (5,)


def test_end_ids_are_the_union_of_both_configs(tmp_path: Path) -> None:
    assert config_of(tmp_path, {**LLAMA, "eos_token_id": [9, 5]}, {"eos_token_id": [2, 5]}).eos_token_ids == (2, 5, 9)
    assert config_of(tmp_path, {**LLAMA, "eos_token_id": None}, {"eos_token_id": 3}).eos_token_ids == (3,)


def legacy(variant: str, values: dict[str, Any]) -> dict[str, Any]:
    """The spelling before transformers 5."""
    rope = values.pop("rope_parameters")
    if variant.startswith("gemma3"):
        values["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        values["sliding_window_pattern"] = values.pop("_sliding_window_pattern", 6)
    values["rope_theta"] = rope.pop("rope_theta")
    values["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    if variant.startswith("phi3") and rope["rope_type"] == "longrope":
        rope["rope_type"] = "su"
        values["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
    values["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    return values


@pytest.mark.parametrize("variant", VARIANTS)
def test_older_and_newer_rope_spelling_mean_the_same(variant: str, tmp_path: Path) -> None:
    tiny_model(variant).config.save_pretrained(tmp_path)
    newer = read_config(tmp_path)
    older = config_of(tmp_path, legacy(variant, json.loads((tmp_path / "config.json").read_text())))
    assert without_path(older) == without_path(newer)


def test_sliding_layers_follow_the_family_s_rule(tmp_path: Path) -> None:
    windows = {}
    for variant in ("mistral", "qwen2-sliding", "qwen2", "gemma3", "gemma3-logit-softcap", "phi3"):
        tiny_model(variant).config.save_pretrained(tmp_path / variant)
        windows[variant] = read_config(tmp_path / variant).sliding_window
    assert windows == {
        "mistral": (7, 7, 7), "qwen2-sliding": (None, 6, 6), "qwen2": (None,) * 3, "gemma3": (6, None, 6),
        "gemma3-logit-softcap": (6, 6, 6, 6, 6, None, 6), "phi3": (9, 9, 9),
    }  # fmt: skip


@pytest.mark.parametrize("field", [name for name in LLAMA if name not in ("eos_token_id",)])
def test_a_missing_field_is_named(field: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"'{field}' is missing") as caught:
        config_of(tmp_path, {name: value for name, value in LLAMA.items() if name != field})
    assert caught.value.path == str(tmp_path / "config.json") and caught.value.hint


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "64"}, "'hidden_size' must be an integer, found '64'"),
    ({"num_hidden_layers": True}, "'num_hidden_layers' must be an integer, found True"),
    ({"num_attention_heads": 0}, "num_heads is 0; it must be a positive number"),
    ({"num_key_value_heads": 3}, "num_kv_heads is 3; it must be a divisor of num_heads, 4"),
    ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; it must lie in 1 .. 1024"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"head_dim": 15}, "rope.rotary_dim is 15; it must be even"),
    ({"rms_norm_eps": "tiny"}, "'rms_norm_eps' must be a finite number"),
    ({"eos_token_id": 96}, r"eos_token_ids is \(96,\); it must be token ids below vocab_size, 96"),
    ({"eos_token_id": "end"}, "'eos_token_id' must be a token id or a list of them, found 'end'"),
    ({"hidden_act": "relu"}, "'hidden_act' is 'relu'"),
    ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'rope_type' is 'dynamic'; served are default, linear"),
    ({"rope_scaling": {"type": "linear"}}, "'factor' is missing"),
    ({"rope_scaling": 3}, "'rope_scaling' must be an object, found 3"),
    ({"rope_theta": 0}, "rope.theta is 0.0"),
    ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": []}}, "short_factors is '1 values'"),
    ({"quantization_config": {"quant_method": "aqlm"}}, "'quantization_config.quant_method' is 'aqlm'; served are awq"),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 0, "max_window_layers": 0},
     r"sliding_window is \(0, 0\); it must be positive"),
    ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["mamba"] * 2}, "'layer_types' may hold"),
    ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"]}, "one entry for each of 2"),
    ({"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4,
      "attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is set"),
    ({"model_type": "gemma3_text", "head_dim": 16, "use_bidirectional_attention": True}, "only causal models"),
    ({"model_type": 5}, "'model_type' must be a string"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", BAD_VALUES, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_refused_with_field_and_value(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        config_of(tmp_path, {**LLAMA, **changes})
    assert caught.value.path == str(tmp_path / "config.json") and caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff"])
def test_a_config_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_config(tmp_path)


def gguf_config(path: Path, variant: str, edit: Any = lambda writer: None) -> ModelConfig:
    write_gguf(path / "model.gguf", tiny_model(variant), lambda name: "f32", edit)
    return read_config(path / "model.gguf")


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "gemma3", "phi3"])
def test_gguf_metadata_and_config_json_mean_the_same(variant: str, tmp_path: Path) -> None:
    tiny_model(variant).config.save_pretrained(tmp_path)
    expected = without_path(read_config(tmp_path))
    found = without_path(gguf_config(tmp_path, variant))
    assert found.pop("eos_token_ids") == (5, 7) and expected.pop("eos_token_ids") == (5,)
    for name in ("rms_norm_eps", "attention_scale"):  # GGUF keeps numbers as fp32
        assert found.pop(name) == pytest.approx(expected.pop(name), rel=1e-6)
    assert found == expected


def test_a_yarn_gguf_gives_the_frequencies_of_its_config(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny_model("llama-yarn", rope_parameters=rope)
    model.config.save_pretrained(tmp_path)
    add_original = lambda writer: writer.add_rope_scaling_orig_ctx_len(32)  # noqa: E731
    write_gguf(tmp_path / "model.gguf", model, lambda name: "f32", add_original)
    found, expected = read_config(tmp_path / "model.gguf").rope, read_config(tmp_path).rope
    assert frequencies(found, 128)[1] == frequencies(expected, 128)[1] == pytest.approx(1.1386, abs=1e-4)
    assert torch.equal(frequencies(found, 128)[0], frequencies(expected, 128)[0])


def test_gemma_gguf_without_a_pattern_has_every_sixth_layer_global(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma3")
    for key, value in {"block_count": 13, "context_length": 64, "embedding_length": 8, "feed_forward_length": 8,
                       "attention.head_count": 1, "attention.sliding_window": 5}.items():  # fmt: skip
        writer.add_uint32(f"gemma3.{key}", value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("token_embd.weight", torch.zeros(12, 8).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = read_config(tmp_path / "model.gguf")
    assert [index for index, window in enumerate(config.sliding_window) if window is None] == [5, 11]
    assert config.local_rope is not None
    assert (config.rope.theta, config.local_rope.theta) == (1_000_000.0, 10_000.0)


GGUF_REFUSALS = {
    "'llama.expert_count' is set": lambda writer: writer.add_expert_count(8),
    "'llama.rope.scaling.type' is 'longrope'": lambda writer: writer.add_rope_scaling_type(
        gguf.RopeScalingType.LONGROPE
    ),
    r"'llama.attention.head_count_kv' differs from layer to layer \(\[2, 1, 2\]\)": lambda writer: _replace(
        writer, "llama.attention.head_count_kv", [2, 1, 2]
    ),
    "'llama.attention.value_length' differs from the key length": lambda writer: _replace(
        writer, "llama.attention.value_length", 8
    ),
}


def _replace(writer: Any, key: str, value: Any) -> None:
    for shard in writer.kv_data:
        shard.pop(key, None)
    writer.add_array(key, value) if isinstance(value, list) else writer.add_uint32(key, value)


@pytest.mark.parametrize("message", GGUF_REFUSALS)
def test_gguf_settings_that_are_not_served_are_refused_by_key(message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message):
        gguf_config(tmp_path, "llama", GGUF_REFUSALS[message])


def test_an_equal_per_layer_array_is_one_value(tmp_path: Path) -> None:
    same = lambda writer: _replace(writer, "llama.attention.head_count_kv", [2, 2, 2])  # noqa: E731
    assert gguf_config(tmp_path, "llama", same).num_kv_heads == 2


def test_a_vocabulary_without_weights_is_no_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "vocab.gguf", "llama")
    for key, value in {"block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 8,
                       "attention.head_count": 1}.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"token_embd.weight: the embedding matrix is missing"):
        read_config(tmp_path / "vocab.gguf")


def test_rope_tables_grow_to_what_is_asked_without_changing_a_bit() -> None:
    rope = RopeConfig(theta=10_000.0, rotary_dim=16)
    grown, at_once = (RopeTable(rope, max_position=10**9, device=torch.device("cpu")) for _ in range(2))
    assert len(grown.cos) == CHUNK_POSITIONS, "a claimed context of a billion costs nothing until it is used"
    for num_positions in (5, CHUNK_POSITIONS + 1, 3 * CHUNK_POSITIONS):
        grown.cover(num_positions)
    at_once.cover(3 * CHUNK_POSITIONS)
    assert grown.cos.shape == grown.sin.shape == (3 * CHUNK_POSITIONS, 8)
    assert torch.equal(grown.cos, at_once.cos) and torch.equal(grown.sin, at_once.sin)
    angle = torch.tensor([9000.0], dtype=torch.float64) * 10_000.0 ** (-6 / 16)
    assert float(grown.sin[9000, 3]) == pytest.approx(float(angle.sin()), abs=1e-4)
