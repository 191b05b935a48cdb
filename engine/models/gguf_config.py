"""`ModelConfig` out of GGUF metadata: the fields that families have in common.

What GGUF leaves to the tensors is read from them: the vocabulary size is the embedding's, tied embeddings show as an
absent output.weight, and Llama 3's rope scaling comes as one divisor a frequency in rope_freqs.weight.
"""

from __future__ import annotations

from safegen.engine.gguf import GgufFile
from safegen.engine.models.config import Fields, ModelConfig, RopeConfig
from safegen.errors import ModelLoadError

# Every id after which a model of this file stops: end of sequence, of turn, of message.
EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_fields(file: GgufFile, architecture: str) -> Fields:
    return Fields(file.metadata, file.path, prefix=f"{architecture}.")


def base_config(file: GgufFile, architecture: str) -> ModelConfig:
    """What all families share; a family replaces what it does otherwise."""
    fields = gguf_fields(file, architecture)
    if fields.integer("expert_count", 0):
        fields.fail("expert_count", "is set: mixtures of experts are not served", "use a dense model")
    num_heads, hidden_size = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        fields.fail("attention.value_length", f"differs from the key length {head_dim}, which is not served")
    num_layers, max_position = fields.layer_count("block_count"), fields.integer("context_length")
    return ModelConfig(
        path=file.path,
        architecture=architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope_config(file, fields, head_dim, max_position),
        sliding_window=(None,) * num_layers,
        tie_embeddings="output.weight" not in file.tensors,
        eos_token_ids=_eos_token_ids(file),
        attention_scale=max(head_dim, 1) ** -0.5,
    )


def rope_config(file: GgufFile, fields: Fields, head_dim: int, max_position: int) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10_000.0)
    rotary_dim = fields.integer("rope.dimension_count", head_dim)
    original = fields.integer("rope.scaling.original_context_length", max_position)
    if "rope_freqs.weight" in file.tensors:
        divisors = factors(file, "rope_freqs.weight")
        return RopeConfig(
            theta, rotary_dim, "factors", original_max_position=original, attention_factor=1.0,
            short_factors=divisors, long_factors=divisors,
        )  # fmt: skip
    if "rope_factors_long.weight" in file.tensors:
        return RopeConfig(
            theta, rotary_dim, "factors", max_position / max(original, 1), original,
            fields.optional_number("rope.scaling.attn_factor"),
            short_factors=factors(file, "rope_factors_short.weight"),
            long_factors=factors(file, "rope_factors_long.weight"),
        )  # fmt: skip
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta, rotary_dim)
    if kind not in ("linear", "yarn"):
        fields.fail("rope.scaling.type", f"is {kind!r}; served are 'none', 'linear' and 'yarn'")
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeConfig(theta, rotary_dim, "linear", factor)
    return RopeConfig(
        theta, rotary_dim, "yarn", factor, original,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )  # fmt: skip


def factors(file: GgufFile, name: str) -> tuple[float, ...]:
    """A small fp32 tensor as numbers."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.kind != "f32" or len(tensor.shape) != 1:
        raise ModelLoadError(
            "the rope factors are missing or no fp32 vector",
            path=file.path,
            tensor=name,
            hint="convert the model again",
        )
    return tuple(file.raw(name).view("<f4").tolist())


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(
            "the embedding matrix is missing",
            path=file.path,
            tensor="token_embd.weight",
            hint="a file with a vocabulary alone, or an adapter, is no model; give a full model file",
        )
    return embedding.shape[0]


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    tokenizer = Fields(file.metadata, file.path, prefix="tokenizer.ggml.")
    ids = (tokenizer.optional_integer(key) for key in EOS_KEYS)
    return tuple(sorted({token for token in ids if token is not None}))


__all__ = ["base_config", "factors", "gguf_fields", "rope_config"]
