"""How large a model is, told from its files without loading it: what `safegen plan` and its measurement stand on.

    parameters a layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * intermediate,   q = heads * head_dim,
                                                                                          kv = kv_heads * head_dim
    head               = vocabulary * hidden      (the embedding is as large; a tied one is the head)

Norms and biases are left out of products, and are in the bytes of files that are there. A folder with a config alone
counts by its parameters and its dtype, of a quantized one by the settings in its config. `cpu_bytes` is what the native
kernels keep: they pack quantized blocks in records of their own (kernels/cpu/packed.hpp), as large as the file's for
most types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safegen.engine.gguf import TENSOR_TYPES
from safegen.engine.models.config import ModelConfig
from safegen.engine.models.hf_config import CONFIG_FILE, read_json
from safegen.engine.models.loader import Checkpoint, open_checkpoint
from safegen.kernels.api import Quantization

# Bytes of 512 weights (16 outputs by 32 inputs) as the native kernels pack them.
_PACKED_512 = {"q4_0": 288, "q4_1": 320, "q5_0": 352, "q5_1": 384, "q8_0": 544, "q4_k": 320, "q5_k": 384, "q6_k": 448}
_QUANTIZED_512 = {"int4": 320, "int8": 544}
_FLOAT_KINDS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """name: of the file or folder. kinds: of each kind of weight, its share of the bytes. weight_bytes: all weights;
    layer_bytes: of the layers; head_bytes: of the output head, which a tied embedding is too. layer_parameters,
    head_parameters: that multiply each row, and each sampled row. activation_bytes: of one row of a step, at most."""

    name: str
    config: ModelConfig
    num_parameters: int
    layer_parameters: int
    head_parameters: int
    weight_bytes: int
    layer_bytes: int
    head_bytes: int
    kinds: Mapping[str, float]

    @property
    def activation_bytes(self) -> int:
        """Rows of the widest product and its inputs, in fp32."""
        config = self.config
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        return 4 * (4 * config.hidden_size + heads + 2 * config.intermediate_size)


def measure_model(path: str | Path, quantization: Quantization | None = None, *, packed: bool = True) -> ModelSize:
    """The size of a model's weights. quantization: of float weights, on load. packed: as the native kernels keep them,
    else as the file has them. Raises ModelLoadError."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    if checkpoint.file is not None:
        by_part = _gguf_bytes(checkpoint, quantization, packed)
    else:
        by_part = _folder_bytes(checkpoint, quantization, packed)
    total = sum(sum(kinds.values()) for kinds in by_part.values())
    shares: dict[str, float] = {}
    for kinds in by_part.values():
        for kind, num_bytes in kinds.items():
            shares[kind] = shares.get(kind, 0.0) + num_bytes / total
    layer_parameters, head_parameters = config.num_layers * parameters_a_layer(config), _head_parameters(config)
    embeddings = head_parameters * (1 if config.tie_embeddings else 2)
    head = by_part["embedding" if config.tie_embeddings else "head"]
    return ModelSize(
        name=Path(path).name,
        config=config,
        num_parameters=layer_parameters + embeddings,
        layer_parameters=layer_parameters,
        head_parameters=head_parameters,
        weight_bytes=total,
        layer_bytes=sum(by_part["layers"].values()),
        head_bytes=sum(head.values()),
        kinds=dict(sorted(shares.items(), key=lambda entry: -entry[1])),
    )


def parameters_a_layer(config: ModelConfig) -> int:
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return (
        config.hidden_size * (q + 2 * kv) + q * config.hidden_size + 3 * config.hidden_size * config.intermediate_size
    )


def _head_parameters(config: ModelConfig) -> int:
    return config.vocab_size * config.hidden_size


def float_kind(checkpoint: Checkpoint) -> str:
    """The kind of a folder's weights, by its config: "bf16" where it does not say."""
    fields = _config_fields(checkpoint)
    name = fields.get("dtype") or fields.get("torch_dtype")
    return _FLOAT_KINDS.get(str(name), "bf16")


def _config_fields(checkpoint: Checkpoint) -> Mapping[str, Any]:
    fields = read_json(Path(checkpoint.config.path).parent / CONFIG_FILE)
    nested = fields.get("text_config")
    return fields if not isinstance(nested, dict) else {**nested, **fields}


Kinds = dict[str, int]  # bytes by kind


def _gguf_bytes(checkpoint: Checkpoint, quantization: Quantization | None, packed: bool) -> dict[str, Kinds]:
    parts: dict[str, Kinds] = {"layers": {}, "embedding": {}, "head": {}, "other": {}}
    assert checkpoint.file is not None
    for name, tensor in checkpoint.file.tensors.items():
        part = "layers" if name.startswith("blk.") else {_EMBEDDING: "embedding", "output.weight": "head"}.get(name)
        num_bytes, kind = tensor.num_bytes, tensor.kind
        count = num_bytes * TENSOR_ELEMENTS[kind] // TENSOR_BYTES[kind]
        if len(tensor.shape) == 2 and packed:
            kind, num_bytes = _kept(kind, count, num_bytes, quantization, part != "layers")
        kinds = parts[part or "other"]
        kinds[kind] = kinds.get(kind, 0) + num_bytes
    return parts


TENSOR_ELEMENTS = {kind: elements for kind, elements, _ in TENSOR_TYPES.values()}
TENSOR_BYTES = {kind: num_bytes for kind, _, num_bytes in TENSOR_TYPES.values()}


def _kept(
    kind: str, count: int, num_bytes: int, quantization: Quantization | None, is_vocabulary: bool
) -> tuple[str, int]:
    """What the native kernels make of a matrix."""
    if kind in _PACKED_512:
        return kind, count * _PACKED_512[kind] // 512
    if quantization is None:
        return kind, num_bytes
    chosen = "int8" if is_vocabulary else quantization
    return chosen, count * _QUANTIZED_512[chosen] // 512


def layer_kind(checkpoint: Checkpoint) -> str:
    """The kind of most of a folder's layers as the native kernels take them."""
    return checkpoint.quantized.block_kind if checkpoint.quantized is not None else float_kind(checkpoint)


def _folder_bytes(checkpoint: Checkpoint, quantization: Quantization | None, packed: bool) -> dict[str, Kinds]:
    config, quantized = checkpoint.config, checkpoint.quantized
    head, layers = _head_parameters(config), config.num_layers * parameters_a_layer(config)

    def kept(count: int, is_vocabulary: bool) -> Kinds:
        if quantized is not None and not is_vocabulary and not packed:
            return {f"{quantized.method} {quantized.stored_bits} bits": count * quantized.stored_bits // 8}
        kind = float_kind(checkpoint) if is_vocabulary else layer_kind(checkpoint)
        num_bytes = count * TENSOR_BYTES[kind] // TENSOR_ELEMENTS[kind]
        name, num_bytes = _kept(kind, count, num_bytes, quantization, is_vocabulary)
        return {name: num_bytes}

    norms = (2 * config.num_layers + 1) * config.hidden_size * 4
    return {
        "layers": kept(layers, False),
        "embedding": kept(head, True),
        "head": {} if config.tie_embeddings else kept(head, True),
        "other": {"f32": norms},
    }


__all__ = ["ModelSize", "float_kind", "layer_kind", "measure_model", "parameters_a_layer"]
