"""Quantized folders compute what their files stand for: AWQ, GPTQ, FP8 and compressed-tensors, on every backend.

The numbers are exact on the reference and, as blocks of the very same digits, on the native kernels; logits equal
transformers' on a model that holds these numbers in fp32.
"""

from __future__ import annotations

import gc
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from safegen import _native
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.engine.models.native import NativeDecoder, fused
from safegen.kernels.api import Weight
from safegen.kernels.cpu import CpuOps
from safegen.kernels.int4 import unpack_words
from safegen.kernels.quant import round_trip_activations
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.scaled import sort_inputs
from tests.engine import quantized_folders as folders
from tests.engine.checkpoints import hf_logits, random_ids, tiny_model
from tests.engine.paging import all_logits, greedy
from tests.engine.quantized_folders import Quantize, compressed

TOLERANCE = 1e-3
SEQUENCES = [random_ids(21, 1), random_ids(3, 2)]


@dataclass(frozen=True)
class Case:
    """kinds: what the native kernels may make of a layer's weight."""

    quantize: Quantize
    settings: dict[str, Any]
    kinds: frozenset[str]


def case(quantize: Quantize, settings: dict[str, Any], *kinds: str) -> Case:
    return Case(quantize, settings, frozenset(kinds))


def gptq_settings(group: int, **settings: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": False, **settings}


def awq_settings(group: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
INT4 = {"num_bits": 4, "type": "int"}
INT8 = {"num_bits": 8, "type": "int"}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
TWO = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}

CASES = {
    "gptq-v1": case(folders.gptq(32), gptq_settings(32), "q5_0"),
    "gptq-v2": case(folders.gptq(32, version=2), gptq_settings(32, **TWO), "q5_0"),
    "gptq-symmetric": case(folders.gptq(32, symmetric=True), gptq_settings(32, sym=True), "q4_0"),
    "gptq-whole-rows": case(folders.gptq(-1), gptq_settings(-1), "q5_0"),
    "gptq-groups-of-16": case(folders.gptq(16), gptq_settings(16), "f16"),
    "gptq-act-order": case(
        folders.gptq(32, act_order=True), gptq_settings(32, desc_act=True), "q5_0"
    ),
    "gptq-act-order-of-16": case(folders.gptq(16, act_order=True), gptq_settings(16, desc_act=True), "f16"),
    "gptq-8-bits": case(folders.gptq(32, bits=8, symmetric=True), gptq_settings(32, bits=8, sym=True), "q8_0"),
    "gptq-8-bits-with-zeros": case(folders.gptq(32, bits=8), gptq_settings(32, bits=8), "f16"),
    "awq": case(folders.awq(32), awq_settings(32), "q5_0"),
    "awq-whole-rows": case(folders.awq(-1), awq_settings(-1), "q5_0"),
    "fp8-blocks": case(
        folders.fp8("block", inverse=True), {**FP8, "weight_block_size": [16, 32]}, "f16"
    ),
    "fp8-blocks-that-do-not-fit": case(
        folders.fp8("block", (24, 40), inverse=True), {**FP8, "weight_block_size": [24, 40]}, "f16"
    ),
    "fp8-one-scale": case(folders.fp8("tensor", static=True), {**FP8, "activation_scheme": "static"}, "f16"),
    "fp8-one-inverse": case(folders.fp8("tensor", inverse=True), FP8, "f16"),
    "float-rows": case(folders.fp8("row"), compressed("float-quantized", {**FLOAT8, "strategy": "channel"}), "f16"),
    "float-blocks": case(
        folders.fp8("block"),
        compressed("float-quantized", {**FLOAT8, "strategy": "block", "block_structure": [16, 32]}),
        "f16",
    ),
    "int8-rows": case(folders.int8("row"), compressed("int-quantized", {**INT8, "strategy": "channel"}), "q8_0"),
    "int8-one-scale": case(
        folders.int8("tensor"), compressed("naive-quantized", {**INT8, "strategy": "tensor"}), "q8_0"
    ),
    "int8-groups": case(
        folders.int8("group"), compressed("int-quantized", {**INT8, "strategy": "group", "group_size": 32}), "q8_0"
    ),
    "int8-zeros": case(
        folders.int8("row", symmetric=False),
        compressed("int-quantized", {**INT8, "strategy": "channel", "symmetric": False}),
        "f16",
    ),
    "packed": case(
        folders.packed(32), compressed("pack-quantized", {**INT4, "strategy": "group", "group_size": 32}), "q4_0"
    ),
    "packed-zeros": case(
        folders.packed(32, symmetric=False),
        compressed("pack-quantized", {**INT4, "strategy": "group", "group_size": 32, "symmetric": False}),
        "q5_0",
    ),
    "packed-act-order": case(
        folders.packed(32, act_order=True),
        compressed("pack-quantized", {**INT4, "strategy": "group", "group_size": 32, "actorder": "group"}),
        "q4_0",
    ),
    "packed-8-bits": case(
        folders.packed(-1, bits=8), compressed("pack-quantized", {**INT8, "strategy": "channel"}), "q8_0"
    ),
}  # fmt: skip
LAYERS = {
    "self_attn.q_proj": "attention.q", "self_attn.k_proj": "attention.k", "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.output", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}  # fmt: skip


def saved(name: str, folder: Path, variant: str = "llama") -> Any:
    """The case's checkpoint, and the transformers model that holds its numbers."""
    model = tiny_model(variant, **({} if variant == "gemma3" else {"num_hidden_layers": 2}))
    folders.save(model, folder, folders.layers(CASES[name].quantize), CASES[name].settings)
    return model


def layer_weights(model: Decoder, theirs: Any) -> list[tuple[str, Weight, Tensor]]:
    """Name, our weight, the numbers that it stands for."""
    state, found = theirs.state_dict(), []
    for index, layer in enumerate(model.layers):
        for their_name, path in LAYERS.items():
            part, linear = path.split(".")
            name = f"model.layers.{index}.{their_name}"
            found.append((name, getattr(getattr(layer, part), linear).weight, state[f"{name}.weight"]))
    return found


def load(folder: Path, ops: ReferenceOps | CpuOps) -> Decoder:
    model = load_model(folder, ops)
    assert isinstance(model, Decoder)
    return model


def assert_logits(model: Any, theirs: Any) -> None:
    for sequence, logits in zip(SEQUENCES, all_logits(model, SEQUENCES, chunk=5)):
        expected = hf_logits(theirs, sequence)
        assert expected.std() > 0.1, "logits too flat to tell models apart"
        assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_reference_holds_the_very_numbers_of_the_file(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path)
    model = load(tmp_path, ReferenceOps())
    for tensor, weight, expected in layer_weights(model, theirs):
        assert torch.equal(weight.data, expected), tensor
    assert_logits(model, theirs)
    assert greedy(model, SEQUENCES[0], 12) == greedy_of(theirs, SEQUENCES[0], 12)


def greedy_of(theirs: Any, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(hf_logits(theirs, ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", CASES)
def test_the_native_kernels_keep_the_digits_packed(name: str, tmp_path: Path) -> None:
    """Rows read back out of the packed weight are the file's numbers, to the bit; halves are these numbers rounded."""
    theirs, ops = saved(name, tmp_path), CpuOps()
    model = load(tmp_path, ops)
    for tensor, weight, expected in layer_weights(model, theirs):
        assert weight.kind in CASES[name].kinds, tensor
        numbers = ops.embedding(torch.arange(weight.shape[0]), weight)
        assert torch.equal(numbers, expected.half().float() if weight.kind == "f16" else expected), tensor
        assert weight.data.numel() == 0 if weight.kind != "f16" else weight.data.dtype == torch.float16
        assert weight.scales is None


class RoundedActivations(ReferenceOps):
    """The reference with what the native kernels make of activations: int8 in groups of 32 inputs, in the order
    in which a quantized weight's inputs lie; fp16 weights take them as they are."""

    def __init__(self, rounds: bool) -> None:
        self._rounds = rounds

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        dense = super().prepare(weight)
        if weight.scales is None:
            return dense
        if not self._rounds:
            return Weight("f32", weight.shape, dense.data.half().float())
        kept = sort_inputs(weight)
        assert kept is not None
        order = torch.arange(weight.shape[1]) if kept.order is None else kept.order
        return Weight("f32", weight.shape, dense.data[:, order], packed=order)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if weight.packed is not None:
            x = round_trip_activations(x[:, weight.packed])
        return super().linear(x, weight, bias)


@pytest.mark.parametrize("name", CASES)
def test_native_logits_are_those_of_the_numbers(name: str, tmp_path: Path) -> None:
    theirs, rounds = saved(name, tmp_path), "f16" not in CASES[name].kinds
    twin, model = load(tmp_path, RoundedActivations(rounds)), fused(load(tmp_path, CpuOps()))
    apart = (torch.cat(all_logits(model, SEQUENCES, chunk=5)) - torch.cat(all_logits(twin, SEQUENCES, chunk=64))).abs()
    assert apart.median() < TOLERANCE and apart.max() < (0.03 if rounds else TOLERANCE)  # some roundings fall elsewhere
    assert greedy(model, SEQUENCES[0], 12) == greedy(twin, SEQUENCES[0], 12)
    if rounds:
        exact = load(tmp_path, CpuOps(exact=True))
        assert_logits(exact, theirs)
        assert greedy(exact, SEQUENCES[0], 12) == greedy_of(theirs, SEQUENCES[0], 12)


BITS = {"awq": 5.5, "gptq-symmetric": 4.5, "gptq-act-order": 5.5, "int8-rows": 8.5, "fp8-blocks": 16.0}


@pytest.mark.parametrize("name", BITS)
def test_weights_stay_packed_and_nothing_else_is_left_of_them(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=2, intermediate_size=160)
    folders.save(model, tmp_path, folders.layers(CASES[name].quantize), CASES[name].settings)
    del model
    loaded = load(tmp_path, CpuOps())
    for layer in loaded.layers:
        for weight in (layer.mlp.gate.weight, layer.mlp.up.weight, layer.mlp.down.weight):
            order_bytes = 4 * weight.shape[1] if name == "gptq-act-order" else 0
            assert weight.packed.num_bytes == 64 * 160 * BITS[name] / 8 + order_bytes
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at what is alive wakes deprecated attributes
        alive = [tensor for tensor in gc.get_objects() if isinstance(tensor, Tensor) and 160 in tensor.shape]
    kept = 3 * 2 if name == "fp8-blocks" else 0
    assert len({tensor.data_ptr() for tensor in alive}) == kept
    assert all(tensor.dtype != torch.float32 for tensor in alive)


@pytest.mark.parametrize("name", ["awq", "gptq-act-order", "fp8-blocks", "int8-rows"])
@pytest.mark.parametrize("exact", [False, True])
def test_the_native_step_has_the_same_bits_alone_chunked_and_in_company(name: str, exact: bool, tmp_path: Path) -> None:
    """And those of the readable decoder, operation by operation."""
    saved(name, tmp_path)
    readable = load(tmp_path, CpuOps(exact=exact))
    model = fused(readable)
    assert isinstance(model, NativeDecoder)
    alone = [all_logits(readable, [sequence], chunk=64)[0] for sequence in SEQUENCES]
    for chunk in (64, 5, 1):
        assert all(torch.equal(a, b) for a, b in zip(all_logits(model, SEQUENCES, chunk), alone))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("variant", ["llama-biases", "gemma3", "qwen3"])
def test_act_order_is_sorted_wherever_it_occurs(variant: str, exact: bool, tmp_path: Path) -> None:
    """Each projection in an order of its own, beside others that have none, and the head and the embedding too."""
    theirs = tiny_model(variant)
    mixed = {"k_proj": folders.gptq(32), "up_proj": folders.gptq(32), "lm_head": folders.gptq(32, act_order=True)}
    if variant == "qwen3":  # whose head is the embedding
        mixed["embed_tokens"] = mixed["lm_head"]
    other = folders.layers(folders.gptq(32, act_order=True))
    folders.save(theirs, tmp_path, lambda name: mixed.get(name.split(".")[-2]) or other(name), gptq_settings(32))
    readable = load(tmp_path, CpuOps(exact=exact))
    if exact:
        assert_logits(readable, theirs)
    native = fused(readable)
    assert isinstance(native, NativeDecoder)
    for chunk in (64, 3):
        for ours, expected in zip(all_logits(native, SEQUENCES, chunk), all_logits(readable, SEQUENCES, 64)):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("order", [[0] * 32, list(range(1, 33)), [-1, *range(1, 32)], list(range(31))])
def test_an_order_that_is_none_is_refused(order: list[int]) -> None:
    raw = torch.zeros(2, 18, dtype=torch.uint8).numpy()
    with pytest.raises(ValueError, match="order"):
        _native.CpuWeight("q4_0", raw, 2, 32, "packed", torch.tensor(order).numpy())


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "phi3", "gemma3", "mistral"])
@pytest.mark.parametrize("name", ["awq", "gptq-act-order", "fp8-blocks-that-do-not-fit", "packed-zeros"])
def test_every_family_is_read(name: str, variant: str, tmp_path: Path) -> None:
    """Biases of Qwen 2, the tied head of Qwen 3, fused projections of Phi-3, which are cut within blocks of scales."""
    theirs = saved(name, tmp_path, variant)
    assert_logits(load(tmp_path, ReferenceOps()), theirs)
    if "fp8" not in name:
        assert_logits(load(tmp_path, CpuOps(exact=True)), theirs)


def test_biases_and_plain_layers_stay_what_they_are(tmp_path: Path) -> None:
    """What is quantized the tensors say: an ignored layer has a plain weight, and a head may be quantized."""
    theirs = tiny_model("llama-biases", num_hidden_layers=2)
    quantize = folders.awq(32)
    chosen = re.compile(r"layers\.0\..*_proj\.weight|lm_head\.weight")
    settings = awq_settings(32) | {"modules_to_not_convert": ["layers.1"]}
    folders.save(theirs, tmp_path, lambda name: quantize if chosen.search(name) else None, settings)
    model = load(tmp_path, CpuOps())
    assert model.head.weight.kind == "q5_0" and model.embedding.kind == "f16"
    assert [layer.mlp.up.weight.kind for layer in model.layers] == ["q5_0", "f16"]
    assert_logits(load(tmp_path, ReferenceOps()), theirs)


def test_a_mixed_checkpoint_takes_each_module_for_what_it_is(tmp_path: Path) -> None:
    theirs = tiny_model("llama", num_hidden_layers=2)
    settings = compressed("mixed-precision", {})
    groups = {
        "group_0": ("pack-quantized", {**INT4, "strategy": "group", "group_size": 32}),
        "group_1": ("pack-quantized", {**INT8, "strategy": "channel"}),
        "group_2": ("float-quantized", {**FLOAT8, "strategy": "channel"}),
    }
    settings["config_groups"] = {
        group: {"targets": ["re:.*"], "format": layout, "weights": weights}
        for group, (layout, weights) in groups.items()
    }
    quantizers = {"q_proj": folders.packed(32), "o_proj": folders.packed(-1, bits=8), "down_proj": folders.fp8("row")}
    folders.save(theirs, tmp_path, lambda name: quantizers.get(name.split(".")[-2]), settings)
    model = load(tmp_path, ReferenceOps())
    kinds = load(tmp_path, CpuOps()).layers[1]
    assert (kinds.attention.q.weight.kind, kinds.attention.output.weight.kind) == ("q4_0", "q8_0")
    assert (kinds.mlp.down.weight.kind, kinds.mlp.up.weight.kind) == ("f16", "f16")
    assert_logits(model, theirs)


def test_zero_points_as_older_versions_of_compressed_tensors_store_them(tmp_path: Path) -> None:
    """Of packed weights not packed, of fp8 weights zeros, and a status that says nothing."""
    unpacked = lambda words: (unpack_words(words.T).T.to(torch.int8) - 8).contiguous()  # noqa: E731
    zeros_of = {"packed-zeros": unpacked, "float-rows": lambda scale: torch.zeros_like(scale).to(torch.float8_e4m3fn)}
    for name, made_from in (("packed-zeros", "weight_zero_point"), ("float-rows", "weight_scale")):
        folder = tmp_path / name
        folder.mkdir()
        theirs = saved(name, folder)
        folders.edit_config(folder, quantization_config=CASES[name].settings | {"quantization_status": "frozen"})
        tensors = load_file(folder / "model.safetensors")
        old = {
            part.replace(made_from, "weight_zero_point"): zeros_of[name](tensor)
            for part, tensor in tensors.items()
            if part.endswith(made_from)
        }
        save_file({**tensors, **old}, folder / "model.safetensors")
        for _, weight, expected in layer_weights(load(folder, ReferenceOps()), theirs):
            assert torch.equal(weight.data, expected)


def test_biases_of_zeros_that_old_gptq_files_have_are_read(tmp_path: Path) -> None:
    theirs = saved("gptq-v1", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    biases = {
        name.replace("scales", "bias"): torch.zeros(tensor.shape[1]).half()
        for name, tensor in tensors.items()
        if name.endswith("scales")
    }
    save_file({**tensors, **biases}, tmp_path / "model.safetensors")
    assert_logits(load(tmp_path, ReferenceOps()), theirs)


@pytest.mark.parametrize("claimed, written", [("gptq", 2), ("gptq_v2", 1)])
def test_a_symmetric_gptq_checkpoint_is_read_right_whatever_its_config_says(
    claimed: str, written: int, tmp_path: Path
) -> None:
    theirs = tiny_model("llama", num_hidden_layers=2)
    settings = gptq_settings(32, sym=True, checkpoint_format=claimed)
    folders.save(theirs, tmp_path, folders.layers(folders.gptq(32, version=written, symmetric=True)), settings)
    for _, weight, expected in layer_weights(load(tmp_path, ReferenceOps()), theirs):
        assert torch.equal(weight.data, expected)


@pytest.mark.parametrize(
    "file, settings, quantize",
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "sym": False}, folders.gptq(32)),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}, folders.awq(32)),
    ],
)
def test_settings_in_a_file_of_their_own_are_found(
    file: str, settings: dict[str, Any], quantize: Quantize, tmp_path: Path
) -> None:
    """As are weights under the names of old."""
    theirs = tiny_model("llama", num_hidden_layers=2)
    folders.save(theirs, tmp_path, folders.layers(quantize), None)
    (tmp_path / file).write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").rename(tmp_path / "gptq_model-4bit-32g.safetensors")
    for _, weight, expected in layer_weights(load(tmp_path, ReferenceOps()), theirs):
        assert torch.equal(weight.data, expected)


def test_fp8_takes_a_quantization_on_load_like_other_floats(tmp_path: Path) -> None:
    theirs = saved("fp8-blocks", tmp_path)
    ops = CpuOps("int8")
    for _, weight, expected in layer_weights(load(tmp_path, ops), theirs):
        assert weight.packed.is_packed and weight.data.numel() == 0
        numbers = ops.embedding(torch.arange(weight.shape[0]), weight)
        assert (numbers - expected).abs().max() < expected.abs().max() / 127
