"""From a path to a model: `load_model`, and `read_config` for those who only need the sizes.

A GGUF file is known by its magic bytes, a Hugging Face folder by its config.json. The model is built layer by layer,
each tensor packed by the backend as it is read, so the peak is the packed weights plus one tensor. A checkpoint whose
tensors are not all used is refused: what was left out would make a different, silently worse model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from safegen.engine.gguf import GgufFile, is_gguf
from safegen.engine.models import gemma3, llama, mistral, phi3, qwen2, qwen3
from safegen.engine.models.base import Model
from safegen.engine.models.config import Fields, ModelConfig
from safegen.engine.models.family import Family, LayerReader
from safegen.engine.models.hf_config import CONFIG_FILE, read_json
from safegen.engine.models.layers import Decoder, Linear, Norm
from safegen.engine.models.rope import RopeTable
from safegen.engine.parallel.shard import Shard, ShardedWeights
from safegen.engine.quantized.base import QuantizedFormat
from safegen.engine.quantized.detect import find_format
from safegen.engine.weights import GgufWeights, SafetensorsWeights, WeightSource
from safegen.errors import ModelLoadError
from safegen.kernels.api import Ops

FAMILIES: tuple[Family, ...] = tuple(module.FAMILY for module in (llama, qwen2, qwen3, mistral, gemma3, phi3))
# Left unread on purpose: tables that are computed here, the other half of multimodal checkpoints, and a stored copy of
# a tied head.
_IGNORED = re.compile(
    r"(^|\.)rotary_emb\.|^rope_(freqs|factors_(long|short))\.weight$|^(model\.)?(vision_tower|multi_modal_projector)\."
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, opened but not loaded."""

    family: Family
    config: ModelConfig
    file: GgufFile | None
    quantized: QuantizedFormat | None = None

    def source(self) -> WeightSource:
        if self.file is not None:
            return GgufWeights(self.file)
        return SafetensorsWeights(Path(self.config.path).parent, self.family.hf_name, self.quantized)


def read_config(path: str | Path) -> ModelConfig:
    """The model's config without its weights. Raises ModelLoadError."""
    return open_checkpoint(path).config


def load_model(
    path: str | Path,
    ops: Ops,
    *,
    max_position: int | None = None,
    device: torch.device | str = "cpu",
    shard: Shard | None = None,
) -> Model:
    """Load a GGUF file or a Hugging Face safetensors folder.

    max_position: serve a shorter context than the model's own, in tokens; a LongRoPE model then uses its short factors
    where they suffice. device: where norms, biases and rope tables lie (weights lie where ops.prepare puts them).
    shard: the part of every layer to load, with ops that join the parts' results; None is all.
    Raises ModelLoadError with the file, the tensor or field, and the fix; RequestError for a shard of no whole heads.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    if max_position is not None:
        config = replace(config, max_position=min(max_position, config.max_position))
    source = checkpoint.source()
    if shard is not None:
        source, config = ShardedWeights(source, config, shard), shard.local(config)
    model = build_model(checkpoint, config, source, ops, torch.device(device))
    _refuse_leftovers(source, config)
    if checkpoint.file is not None:
        checkpoint.file.drop_pages()
    return model


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Find out what lies at the path and read its config."""
    path = Path(path)
    try:
        if path.is_dir():
            return _open_folder(path)
        if is_gguf(path):
            return _open_gguf(path)
    except OSError as error:
        hint = "check the path" if isinstance(error, FileNotFoundError) else "check the file's permissions"
        raise ModelLoadError(f"cannot be read: {error.strerror or error}", path=str(path), hint=hint) from error
    hint = "give a GGUF file or a folder with config.json and safetensors"
    if path.suffix in (".safetensors", ".json"):
        hint = f"give the folder, {path.parent}"
    elif path.suffix in (".bin", ".pt", ".pth", ".ckpt"):
        hint = "pickled checkpoints are never loaded; use safetensors or GGUF"
    raise ModelLoadError("not a model: the file does not start with the GGUF magic", path=str(path), hint=hint)


def _open_folder(folder: Path) -> Checkpoint:
    if not (folder / CONFIG_FILE).exists():
        gguf_files = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"give the file itself, such as {gguf_files[0]}" if gguf_files else "give a Hugging Face model folder"
        raise ModelLoadError(f"not a model: the folder holds no {CONFIG_FILE}", path=str(folder), hint=hint)
    fields = Fields(read_json(folder / CONFIG_FILE), str(folder / CONFIG_FILE))
    model_type = fields.text("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return Checkpoint(family, family.from_hf(fields), None, find_format(fields))
    raise _unknown_architecture(model_type, fields.path, sorted(t for f in FAMILIES for t in f.model_types))


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    architecture = Fields(file.metadata, file.path).text("general.architecture")
    for family in FAMILIES:
        if architecture == family.architecture:
            return Checkpoint(family, family.from_gguf(file), file)
    raise _unknown_architecture(architecture, file.path, sorted(family.architecture for family in FAMILIES))


def _unknown_architecture(name: str, path: str, served: list[str]) -> ModelLoadError:
    return ModelLoadError(f"unknown architecture {name!r}", path=path, hint=f"served are {', '.join(served)}")


def build_model(
    checkpoint: Checkpoint, config: ModelConfig, source: WeightSource, ops: Ops, device: torch.device
) -> Decoder:
    """A decoder of that config, its tensors taken from the source, which need not be the checkpoint's own."""
    family = checkpoint.family
    norm_offset = family.hf_norm_offset if checkpoint.file is None else 0.0
    rope = RopeTable(config.rope, config.max_position, device)
    local = rope if config.local_rope is None else RopeTable(config.local_rope, config.max_position, device)
    matrix = (config.vocab_size, config.hidden_size)
    embedding = ops.prepare(source.weight("token_embd.weight", matrix), vocabulary=True)
    layers = []
    for index, window in enumerate(config.sliding_window):
        table = rope if window is None else local
        layers.append(family.layer(LayerReader(index, config, ops, source, device, table, norm_offset)))
    norm = source.vector("output_norm.weight", config.hidden_size) + norm_offset
    head = embedding
    if not config.tie_embeddings:
        head = ops.prepare(source.weight("output.weight", matrix), vocabulary=True)
    return Decoder(config, ops, embedding, tuple(layers), Norm(norm.to(device), config.rms_norm_eps), Linear(head))


def _refuse_leftovers(source: WeightSource, config: ModelConfig) -> None:
    tied_head = ("lm_head.weight", "language_model.lm_head.weight") if config.tie_embeddings else ()
    leftovers = [name for name in source.unread() if not _IGNORED.search(name) and name not in tied_head]
    if leftovers:
        raise ModelLoadError(
            f"{config.architecture} has no use for this tensor ({len(leftovers)} such tensors in all)",
            path=source.path,
            tensor=leftovers[0],
            hint="the checkpoint is of another architecture, or an extension of it that is not served",
        )


__all__ = ["Checkpoint", "build_model", "load_model", "open_checkpoint", "read_config"]
