"""A quantized checkpoint that is not served, or not whole, is refused: by key and value, or by file and tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from safegen.engine.models.loader import load_model, read_config
from safegen.errors import ModelLoadError
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from tests.engine import quantized_folders as folders
from tests.engine.checkpoints import tiny_model
from tests.engine.quantized_folders import Quantize, compressed, edit_config

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


def config_groups(**weights: Any) -> dict[str, Any]:
    return compressed("pack-quantized", {**PACKED, **weights})


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, "'quantization_config.quant_method' is 'bitsandbytes'; served are awq, comp"),
    ({"bits": 4}, "'quantization_config.quant_method' is missing"),
    ({**GPTQ, "bits": 3}, "'quantization_config.bits' is 3; served are 4 and 8"),
    ({**GPTQ, "bits": "4"}, "'quantization_config.bits' must be an integer, found '4'"),
    ({"quant_method": "gptq"}, "'quantization_config.bits' is missing"),
    ({**GPTQ, "group_size": 0}, "'quantization_config.group_size' is 0; it must be positive"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "'quantization_config.checkpoint_format' is 'marlin'; served is"),
    ({**GPTQ, "format": "bitblas"}, "'quantization_config.format' is 'bitblas'"),
    ({**GPTQ, "is_marlin_format": True}, "'quantization_config.is_marlin_format' is True"),
    ({**GPTQ, "pack_dtype": "int16"}, "'quantization_config.pack_dtype' is 'int16'"),
    ({**GPTQ, "dynamic": {"-:.*q": {}, "+:.*down.*": {"bits": 8}}}, r"'quantization_config.dynamic' gives .*down"),
    ({**AWQ, "bits": 8}, "'quantization_config.bits' is 8; served is 4"),
    ({**AWQ, "version": "gemv"}, "'quantization_config.version' is 'gemv'; served is 'gemm'"),
    ({**AWQ, "version": "exllama"}, "'quantization_config.version' is 'exllama'; served is 'gemm'"),
    ({**AWQ, "checkpoint_format": "gemv_fast"}, "'quantization_config.checkpoint_format' is 'gemv_fast'"),
    ({**AWQ, "backend": "llm-awq"}, "'quantization_config.backend' is 'llm-awq'"),
    ({**FP8, "fmt": "e5m2"}, "'quantization_config.fmt' is 'e5m2'; served is 'e4m3'"),
    ({**FP8, "activation_scheme": "none"}, "'quantization_config.activation_scheme' is 'none'"),
    ({**FP8, "weight_block_size": [128]}, r"'quantization_config.weight_block_size' must be two positive integers"),
    ({**FP8, "weight_block_size": [0, 128]}, r"'quantization_config.weight_block_size' must be two positive"),
    (compressed("marlin-24", PACKED), "'quantization_config.format' is 'marlin-24'; served are int-quantized, float"),
    (compressed("nvfp4-pack-quantized", PACKED), "'quantization_config.format' is 'nvfp4-pack-quantized'"),
    (config_groups(num_bits=3), r"'quantization_config.config_groups.group_0.weights.num_bits' is 3 \(int\)"),
    (config_groups(type="float"), r"group_0.weights.num_bits' is 4 \(float\)"),
    (config_groups(type="complex"), "group_0.weights.type' is 'complex'"),
    (config_groups(strategy="token"), "group_0.weights.strategy' is 'token'; served are tensor, channel, group, block"),
    (config_groups(strategy="block"), "group_0.weights.block_structure' must be two positive integers, found None"),
    (config_groups(group_size=None), "group_0.weights.group_size' is None; the strategy 'group' needs a positive one"),
    (config_groups() | {"config_groups": {}}, "'quantization_config.config_groups' is empty"),
    (config_groups() | {"config_groups": None}, "'quantization_config.config_groups' is missing"),
    (config_groups() | {"config_groups": {"group_0": {"targets": ["Linear"]}}}, "group_0.weights' is missing"),
    (config_groups() | {"config_groups": {"group_0": ["Linear"]}}, "group_0' must be an object, found"),
    (config_groups() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "has the format 'sparse-24"),
    (config_groups() | {"transform_config": {"u": {}}}, "'quantization_config.transform_config' is set: rotations"),
]  # fmt: skip


@pytest.mark.parametrize("settings, message", SETTINGS, ids=lambda value: str(value)[:60])
def test_settings_that_are_not_served_are_refused_by_key_and_value(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tiny_model("llama", num_hidden_layers=1).config.save_pretrained(tmp_path)
    edit_config(tmp_path, quantization_config=settings)
    with pytest.raises(ModelLoadError, match=message) as caught:
        read_config(tmp_path)
    assert caught.value.path == str(tmp_path / "config.json") and caught.value.hint


def test_settings_that_are_no_object_are_refused(tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=1).config.save_pretrained(tmp_path)
    edit_config(tmp_path, quantization_config="gptq")
    with pytest.raises(ModelLoadError, match="'quantization_config' must be an object, found 'gptq'"):
        read_config(tmp_path)


MODULE = "model.layers.0.mlp.down_proj"  # 96 inputs, 64 outputs
Edit = Callable[[dict[str, Tensor]], object]


def drop(part: str) -> Edit:
    return lambda tensors: tensors.pop(f"{MODULE}.{part}")


def put(part: str, tensor: Tensor) -> Edit:
    return lambda tensors: tensors.update({f"{MODULE}.{part}": tensor})


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


HALF = torch.float16
ACT_ORDER = {**GPTQ, "desc_act": True}
INT8_ROWS = compressed("int-quantized", INT8)
INT8_GROUPS = compressed("int-quantized", {**INT8, "strategy": "group", "group_size": 32})
FLOAT8 = compressed("float-quantized", {**INT8, "type": "float"})
MISSING = "the tensor is missing"
TENSORS: list[tuple[Quantize, dict[str, Any], Edit, str, str]] = [
    (folders.gptq(32), GPTQ, drop("qweight"), "qweight", MISSING),
    (folders.gptq(32), GPTQ, drop("qzeros"), "qzeros", MISSING),
    (folders.gptq(32), GPTQ, drop("scales"), "scales", MISSING),
    (folders.gptq(32), ACT_ORDER, drop("g_idx"), "g_idx", MISSING),
    (folders.gptq(32), GPTQ, put("qweight", zeros(12, 72)), "qweight", r"\[12, 72\], but the config needs \[12, 64\]"),
    (folders.gptq(32), GPTQ, put("qweight", zeros(12, 64, dtype=torch.int64)), "qweight", "dtype I64 is not served"),
    (folders.gptq(32), GPTQ, put("qzeros", zeros(3, 7)), "qzeros", r"shape \[3, 7\], but the config needs \[3, 8\]"),
    (folders.gptq(32), GPTQ, put("scales", zeros(2, 64, dtype=HALF)), "scales", r"shape \[2, 64\], but the"),
    (folders.gptq(32), ACT_ORDER, put("g_idx", zeros(96) - 1), "g_idx", "names groups -1 .. -1, but the scales have 3"),
    (folders.gptq(32), ACT_ORDER, put("g_idx", zeros(96) + 3), "g_idx", r"groups 3 \.\. 3, but the scales have 3"),
    (folders.gptq(32), {**GPTQ, "group_size": 36}, drop("qzeros"), "scales", "of 36 does not divide 96 inputs"),
    (folders.awq(32), AWQ, drop("qzeros"), "qzeros", MISSING),
    (folders.awq(32), AWQ, put("qweight", zeros(64, 12)), "qweight", r"\[64, 12\], but the config needs \[96, 8\]"),
    (folders.awq(32), {**AWQ, "group_size": 64}, drop("qzeros"), "scales", "of 64 does not divide 96 inputs"),
    (folders.fp8("block"), FP8, drop("weight"), "weight", MISSING),
    (folders.fp8("block"), FP8, drop("weight_scale"), "weight_scale_inv", MISSING),
    (folders.fp8("row"), {**FP8, "weight_block_size": None}, drop("weight_scale"), "weight_scale", MISSING),
    (folders.fp8("block", inverse=True), FP8, put("weight_scale_inv", zeros(4, 2, dtype=torch.float32)),
     "weight_scale_inv", r"shape \[4, 2\], but the config needs .* or \[4, 3\]"),
    (folders.int8("row"), INT8_ROWS, drop("weight"), "weight", MISSING),
    (folders.int8("row"), INT8_ROWS, drop("weight_scale"), "weight_scale", MISSING),
    (folders.int8("row"), INT8_ROWS, put("weight_scale", zeros(64, 3, dtype=HALF)), "weight_scale", r"shape \[64, 3\]"),
    (folders.int8("group"), INT8_GROUPS, put("weight_zero_point", zeros(64, 1, dtype=torch.int8)), "weight_zero_point",
     "is of another shape than weight_scale"),
    (folders.int8("row"), FLOAT8, drop("weight_scale"), "weight",
     "dtype I8 is not served here; due is F8_E4M3"),
    (folders.fp8("row"), FLOAT8, put("weight_zero_point", zeros(64, 1, dtype=torch.int8) + 1), "weight_zero_point",
     "is not zero, which fp8 weights have no use for"),
    (folders.packed(32), config_groups(), drop("weight_packed"), "weight_packed", MISSING),
    (folders.packed(32), config_groups(), drop("weight_shape"), "weight_shape", MISSING),
    (folders.packed(32), config_groups(), put("weight_shape", torch.tensor([64, 90])), "weight_shape",
     r"says \[64, 90\], but the config needs \[64, 96\]"),
    (folders.packed(32), config_groups(symmetric=False), drop("weight_scale"), "weight_scale", MISSING),
    (folders.packed(32), config_groups(symmetric=False), lambda _: None, "weight_zero_point", MISSING),
    (folders.packed(32), config_groups(group_size=64), lambda _: None, "weight_scale", "does not divide 96 inputs"),
    (folders.packed(32), INT8_ROWS, lambda _: None, "weight", MISSING),
]  # fmt: skip


@pytest.mark.parametrize("quantize, settings, edit, part, message", TENSORS)
def test_a_checkpoint_that_is_not_whole_is_refused_by_tensor(
    quantize: Quantize, settings: dict[str, Any], edit: Edit, part: str, message: str, tmp_path: Path
) -> None:
    model = tiny_model("llama", num_hidden_layers=1)
    folders.save(model, tmp_path, lambda name: quantize if name == f"{MODULE}.weight" else None, settings)
    tensors = load_file(tmp_path / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_model(tmp_path, ReferenceOps())
    assert caught.value.tensor == f"{MODULE}.{part}"
    assert str(tmp_path) in str(caught.value.path) and caught.value.hint


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    folders.save(tiny_model("llama", num_hidden_layers=1), tmp_path, folders.layers(folders.awq(32)), AWQ)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(ModelLoadError, match="corrupt or truncated") as caught:
        load_model(tmp_path, ReferenceOps())
    assert caught.value.path == str(file)


def test_quantized_tensors_without_settings_are_refused(tmp_path: Path) -> None:
    """The layout cannot be told from tensors: GPTQ and AWQ share their names."""
    for quantize, tensor in ((folders.awq(32), f"{MODULE}.weight"), (folders.int8("row"), f"{MODULE}.weight")):
        model = tiny_model("llama", num_hidden_layers=1)
        folders.save(model, tmp_path, lambda name, q=quantize: q if "down_proj" in name else None, None)  # type: ignore[misc]
        with pytest.raises(ModelLoadError) as caught:
            load_model(tmp_path, ReferenceOps())
        assert caught.value.tensor == tensor


def test_a_tensor_that_the_layout_has_no_use_for_is_refused(tmp_path: Path) -> None:
    """A plain weight beside the packed one: which of the two counts is not for a loader to choose."""
    folders.save(tiny_model("llama", num_hidden_layers=1), tmp_path, folders.layers(folders.awq(32)), AWQ)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"{MODULE}.weight": torch.zeros(64, 96)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="has no use for this tensor") as caught:
        load_model(tmp_path, ReferenceOps())
    assert caught.value.tensor == f"{MODULE}.weight"


def test_weights_that_were_never_compressed_are_refused(tmp_path: Path) -> None:
    """Floats beside scales, as a model is before llm-compressor saves it compressed: they would be read unquantized."""
    folders.save(tiny_model("llama", num_hidden_layers=1), tmp_path, lambda _: None, INT8_ROWS)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, f"{MODULE}.weight_scale": torch.ones(64, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="has no use for this tensor") as caught:
        load_model(tmp_path, ReferenceOps())
    assert caught.value.tensor == f"{MODULE}.weight_scale"


def test_scales_of_activations_and_of_a_quantized_cache_are_left_out(tmp_path: Path) -> None:
    quantize = folders.fp8("tensor", static=True)
    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    folders.save(tiny_model("llama", num_hidden_layers=1), tmp_path, folders.layers(quantize), settings)
    tensors = load_file(tmp_path / "model.safetensors")
    scales = {f"model.layers.0.self_attn.{name}": torch.tensor(1.0) for name in ("k_scale", "v_scale", "kv_scale")}
    save_file({**tensors, **scales, f"{MODULE}.output_scale": torch.tensor(1.0)}, tmp_path / "model.safetensors")
    load_model(tmp_path, ReferenceOps())


ODD = (None, True, -1, 0, 3, 10**30, 0.5, "", "x", [], [1], [-1, 2], [10**30, 1], {}, {"a": 1}, [[]])


def spoiled(settings: Any) -> Iterator[Any]:
    """The settings with one value, at any depth, replaced by another or taken away."""
    if not isinstance(settings, dict):
        return
    for key, value in settings.items():
        rest = {other: kept for other, kept in settings.items() if other != key}
        yield rest
        yield from ({**rest, key: odd} for odd in ODD)
        yield from ({**rest, key: below} for below in spoiled(value))


@pytest.mark.parametrize("quantize, settings", [
    (folders.gptq(32), ACT_ORDER | {"sym": False, "checkpoint_format": "gptq", "static_groups": False, "dynamic": {}}),
    (folders.awq(32), AWQ), (folders.fp8("block", inverse=True), FP8), (folders.packed(32), config_groups()),
    (folders.int8("row"), INT8_ROWS),
])  # fmt: skip
def test_no_settings_raise_anything_but_a_refusal(quantize: Quantize, settings: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=1)
    folders.save(model, tmp_path, lambda name: quantize if name == f"{MODULE}.weight" else None, settings)
    load_model(tmp_path, ReferenceOps())
    refused = 0
    for changed in spoiled(settings):
        edit_config(tmp_path, quantization_config=changed)
        try:
            load_model(tmp_path, ReferenceOps())
        except ModelLoadError as error:
            refused += 1
            assert error.hint
    assert refused > 10


@pytest.mark.parametrize("quantize, settings", [
    (folders.gptq(32, act_order=True), ACT_ORDER), (folders.awq(32), AWQ), (folders.fp8("block", inverse=True), FP8),
    (folders.packed(32, symmetric=False), config_groups(symmetric=False)), (folders.int8("row"), INT8_ROWS),
])  # fmt: skip
def test_no_tensor_raises_anything_but_a_refusal(quantize: Quantize, settings: dict[str, Any], tmp_path: Path) -> None:
    """Another shape or type of each tensor, extremes in its place, and one for all."""
    model = tiny_model("llama", num_hidden_layers=1)
    folders.save(model, tmp_path, lambda name: quantize if name == f"{MODULE}.weight" else None, settings)
    whole, refused = load_file(tmp_path / "model.safetensors"), 0
    for name in [name for name in whole if name.startswith(MODULE)]:
        tensor = whole[name]
        flat = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
        others = [
            tensor.reshape(-1),
            tensor[:1],
            tensor[:0],
            tensor.float(),
            tensor.reshape(1, -1),
            tensor.float().int(),
        ]
        others += [torch.full_like(flat, value).view(tensor.dtype) for value in (0, 127)]
        for other in others:
            save_file({**whole, name: other.contiguous()}, tmp_path / "model.safetensors")
            for ops in (ReferenceOps(), CpuOps()):
                try:
                    load_model(tmp_path, ops)
                except ModelLoadError as error:
                    refused += 1
                    assert error.tensor and error.hint
    assert refused > 10
