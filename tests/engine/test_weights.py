"""Weights come out as they lie in the file, one at a time; what is not a whole model is refused by file and tensor."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from safegen.engine.gguf import GgufFile
from safegen.engine.models import llama
from safegen.engine.models.loader import load_model, read_config
from safegen.engine.weights import GgufWeights, SafetensorsWeights
from safegen.errors import ModelLoadError
from safegen.kernels.api import Weight
from safegen.kernels.reference import ReferenceOps
from tests.engine.checkpoints import tiny_model, write_gguf

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "llama.gguf", tiny_model("llama"), lambda name: "q4_0" if "ffn_gate" in name else "f32")
    return tmp_path / "llama.gguf"


def refusal(path: Path) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as caught:
        load_model(path, ReferenceOps())
    assert caught.value.path is not None and caught.value.hint, "an error names the file and the fix"
    return caught.value


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_json(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    values.update({name: value for name, value in changes.items() if value is not None})
    for name in [name for name, value in changes.items() if value is None]:
        del values[name]
    path.write_text(json.dumps(values))


def test_safetensors_weights_are_views_of_the_mapped_file(folder: Path) -> None:
    source = SafetensorsWeights(folder, llama.FAMILY.hf_name)
    first, second = (source.weight("blk.1.attn_q.weight", (64, 64)) for _ in range(2))
    assert first.kind == "f32" and first.data.data_ptr() == second.data.data_ptr()
    assert torch.equal(first.data, load_file(folder / "model.safetensors")[Q_PROJ])


def test_gguf_weights_are_raw_blocks_in_the_mapped_file(gguf_path: Path) -> None:
    source, file = GgufWeights(GgufFile(gguf_path)), GgufFile(gguf_path)
    weight = source.weight("blk.0.ffn_gate.weight", (96, 64))
    assert weight.kind == "q4_0" and weight.data.dtype == torch.uint8 and weight.data.shape == (96, 2 * 18)
    assert weight.data.numpy().tobytes() == file.raw("blk.0.ffn_gate.weight").tobytes()
    assert weight.data.data_ptr() == source.weight("blk.0.ffn_gate.weight", (96, 64)).data.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_vectors_are_fp32_copies(dtype: torch.dtype, folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    source = SafetensorsWeights(folder, llama.FAMILY.hf_name)
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]
    norm = source.vector("output_norm.weight", 64)
    assert norm.dtype == torch.float32 and torch.equal(norm, stored.float())
    norm.zero_()
    assert torch.equal(source.vector("output_norm.weight", 64), stored.float())


class PackingOps(ReferenceOps):
    """Packs into memory of its own, and counts how many tensors of the file are alive when the next one comes."""

    def __init__(self) -> None:
        self.handed_out: list[weakref.ref[Tensor]] = []
        self.most_alive = 0

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        self.handed_out.append(weakref.ref(weight.data))
        self.most_alive = max(self.most_alive, sum(alive() is not None for alive in self.handed_out))
        return Weight("packed", weight.shape, torch.empty(0), packed=weight.data.shape)


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_a_load_holds_one_unpacked_tensor_at_a_time(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    model.save_pretrained(tmp_path)
    write_gguf(tmp_path / "model.gguf", model, lambda name: "q8_0" if "embd" in name else "f16")
    for path in (tmp_path, tmp_path / "model.gguf"):
        ops = PackingOps()
        load_model(path, ops)
        assert len(ops.handed_out) >= 1 + 7 * 3 and ops.most_alive == 1


def test_a_missing_tensor_is_named(folder: Path, gguf_path: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(Q_PROJ))
    error = refusal(folder)
    assert error.tensor == Q_PROJ and "missing" in str(error) and str(folder) in str(error)
    whole = gguf_path.read_bytes()
    gguf_path.write_bytes(whole.replace(b"blk.2.ffn_down.weight", b"blk.2.ffn_gown.weight"))
    error = refusal(gguf_path)
    assert error.tensor == "blk.2.ffn_down.weight" and error.path == str(gguf_path)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 60)}))
    error = refusal(folder)
    assert error.tensor == Q_PROJ and "shape [64, 60], but the config needs [64, 64]" in str(error)


def test_a_norm_of_the_wrong_length_is_named(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    assert refusal(folder).tensor == "model.norm.weight"


def test_a_dtype_that_is_not_served_is_named(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)}))
    error = refusal(folder)
    assert error.tensor == Q_PROJ and "dtype I8" in str(error)


def test_weights_that_the_architecture_does_not_use_are_refused(folder: Path, gguf_path: Path, tmp_path: Path) -> None:
    """A Qwen 3 relabelled as Llama would run without its head norms and answer nonsense."""
    edit_tensors(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}))
    error = refusal(folder)
    assert error.tensor == "model.layers.0.self_attn.q_norm.weight" and "llama has no use" in str(error)
    extra = tmp_path / "extra.gguf"
    add = lambda writer: writer.add_tensor("blk.0.attn_q_norm.weight", torch.ones(16).numpy())  # noqa: E731
    write_gguf(extra, tiny_model("llama"), lambda name: "f32", add)
    assert refusal(extra).tensor == "blk.0.attn_q_norm.weight"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_safetensors_file_is_refused(share: float, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    error = refusal(folder)
    assert error.path == str(file) and "corrupt or truncated" in str(error)


def sharded(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    return index, json.loads(index.read_text())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _, index = sharded(tmp_path)
    shard = index["weight_map"][Q_PROJ]
    (tmp_path / shard).unlink()
    error = refusal(tmp_path)
    assert error.path == str(tmp_path / shard) and "the file is missing" in str(error)


def test_an_index_that_lies_about_a_shard_is_refused(tmp_path: Path) -> None:
    path, index = sharded(tmp_path)
    index["weight_map"][Q_PROJ] = next(s for s in index["weight_map"].values() if s != index["weight_map"][Q_PROJ])
    path.write_text(json.dumps(index))
    assert refusal(tmp_path).tensor == Q_PROJ


@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/etc/passwd", 7])
def test_an_index_never_leads_out_of_the_folder(shard: object, tmp_path: Path) -> None:
    path, index = sharded(tmp_path)
    index["weight_map"][Q_PROJ] = shard
    path.write_text(json.dumps(index))
    assert "index" in str(refusal(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "\x00"])
def test_an_unreadable_index_is_refused(text: str, tmp_path: Path) -> None:
    path, _ = sharded(tmp_path)
    path.write_text(text)
    assert refusal(tmp_path).path == str(path)


def test_pickles_are_never_loaded(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle, which is never loaded" in str(refusal(folder))
    pickle = tmp_path / "model.pt"
    pickle.write_bytes(b"\x80\x04}.")
    assert "pickled checkpoints are never loaded" in str(refusal(pickle))


def test_what_is_not_a_model_is_refused_with_what_would_be(folder: Path, gguf_path: Path, tmp_path: Path) -> None:
    assert "No such file" in str(refusal(tmp_path / "nowhere"))
    assert "does not start with the GGUF magic" in str(refusal(Path(__file__)))
    assert f"give the folder, {folder}" in str(refusal(folder / "model.safetensors"))
    assert f"such as {gguf_path.name}" in str(refusal(tmp_path))


def test_no_flipped_byte_of_a_model_file_raises_anything_else(gguf_path: Path) -> None:
    whole = gguf_path.read_bytes()
    metadata_end = whole.index(b"token_embd.weight") + 200
    random, refused = torch.Generator().manual_seed(2), 0
    for position in range(0, metadata_end, 3):
        mutated = bytearray(whole)
        mutated[position] ^= int(torch.randint(1, 256, (), generator=random))
        gguf_path.write_bytes(mutated)
        try:
            load_model(gguf_path, ReferenceOps())
        except ModelLoadError:
            refused += 1
    assert refused > metadata_end // 3 * 0.6


def test_an_unknown_architecture_is_named_with_those_served(folder: Path, gguf_path: Path) -> None:
    edit_json(folder / "config.json", model_type="mamba")
    assert "unknown architecture 'mamba'" in str(refusal(folder)) and "qwen3" in str(refusal(folder))
    gguf_path.write_bytes(gguf_path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom", 1))
    assert "unknown architecture 'bloom'" in str(refusal(gguf_path))


def test_read_config_needs_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert read_config(folder).num_layers == 3
