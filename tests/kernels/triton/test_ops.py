"""Whole models through `TritonOps`, interpreted: the reference's logits, by a paged cache, in chunks and together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.kernels.api import Weight, ops
from safegen.kernels.int4 import Int4Weight, dequantize_int4
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.triton.ops import ScaledWeight, TritonOps, int4_weight, int8_weight
from tests.engine.checkpoints import hf_logits, random_ids, tiny_model
from tests.engine.paging import all_logits
from tests.engine.test_quantized_checkpoints import saved
from tests.kernels.triton.cases import randn

SEQUENCES = [random_ids(9, 1), random_ids(5, 2)]
FAMILIES = ["llama", "qwen2", "gemma3", *(pytest.param(name, marks=pytest.mark.wide) for name in ("qwen3", "phi3"))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def folder(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp(variant)
            tiny_model(variant, num_hidden_layers=2, **_layers(variant)).save_pretrained(made[variant])
        return made[variant]

    return folder


def _layers(variant: str) -> dict[str, Any]:
    return {"layer_types": ["sliding_attention", "full_attention"]} if variant == "gemma3" else {}


def logits(path: Path, kernels: Any, chunk: int, sequences: list[list[int]] = SEQUENCES) -> list[Tensor]:
    return all_logits(load_model(path, kernels), sequences, chunk)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("variant", FAMILIES)
def test_a_whole_model_equals_the_reference(folders: Any, variant: str, deterministic: bool) -> None:
    kernels = TritonOps(deterministic=deterministic)
    for ours, expected in zip(logits(folders(variant), kernels, 4), logits(folders(variant), ReferenceOps(), 4)):
        torch.testing.assert_close(ours, expected, rtol=2e-5, atol=2e-5)


def test_deterministic_rows_are_bitwise_those_of_a_sequence_alone(folders: Any) -> None:
    kernels = TritonOps(deterministic=True)
    alone = [logits(folders("llama"), kernels, 3, [each])[0] for each in SEQUENCES]
    for chunk in (16, 1):
        together = logits(folders("llama"), kernels, chunk, SEQUENCES)
        assert all(torch.equal(ours, expected) for ours, expected in zip(together, alone))


def test_bfloat16_stays_near_the_reference_and_logits_are_fp32(folders: Any) -> None:
    kernels = TritonOps(dtype=torch.bfloat16)
    for ours, expected in zip(logits(folders("llama"), kernels, 16), logits(folders("llama"), ReferenceOps(), 16)):
        assert ours.dtype == torch.float32
        assert float((ours - expected).abs().mean()) < 0.1 * float(expected.abs().mean())


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_packed_weights_give_the_logits_of_what_they_stand_for(folders: Any, quantization: Any) -> None:
    packed = load_model(folders("llama"), TritonOps(quantization))
    assert isinstance(packed, Decoder)
    ours = all_logits(packed, SEQUENCES, 8)
    expected = all_logits(_dequantized(packed), SEQUENCES, 8)
    for got, wanted in zip(ours, expected):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def _dequantized(model: Decoder) -> Decoder:
    def dense(weight: Weight) -> Weight:
        numbers = weight.packed.numbers
        if isinstance(numbers, ScaledWeight):
            return Weight("f32", weight.shape, numbers.digits.float() * numbers.scale[:, None])
        return Weight("f32", weight.shape, dequantize_int4(numbers))

    def linear(part: Any) -> Any:
        return replace(part, weight=dense(part.weight))

    layers = []
    for layer in model.layers:
        attention, mlp = layer.attention, layer.mlp
        parts = {name: linear(getattr(attention, name)) for name in ("q", "k", "v", "output")}
        gates = {name: linear(getattr(mlp, name)) for name in ("gate", "up", "down")}
        layers.append(replace(layer, attention=replace(attention, **parts), mlp=replace(mlp, **gates)))
    head, embedding = linear(model.head), dense(model.embedding)
    return replace(model, ops=ReferenceOps(), embedding=embedding, head=head, layers=tuple(layers))


FORMS = {"gptq-v1": Int4Weight, "gptq-act-order": Int4Weight, "awq-whole-rows": Int4Weight, "packed-zeros": Int4Weight,
         "int8-rows": ScaledWeight, "int8-zeros": Tensor, "fp8-blocks": Tensor, "float-rows": ScaledWeight}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_quantized_checkpoints_keep_their_digits_and_give_the_logits_of_their_numbers(
    name: str, tmp_path: Path
) -> None:
    theirs = saved(name, tmp_path)
    model = load_model(tmp_path, TritonOps())
    assert isinstance(model, Decoder)
    assert isinstance(model.layers[0].attention.q.weight.packed.numbers, FORMS[name])
    # Activations of fp8 weights are rounded to three bits too.
    tolerance = 0.1 if name == "float-rows" else 1e-3
    for sequence, ours in zip(SEQUENCES, all_logits(model, SEQUENCES, 5)):
        expected = hf_logits(theirs, sequence)
        assert expected.std() > 0.1
        assert float((ours - expected).abs().mean()) < tolerance * float(expected.abs().mean())


def test_digits_are_the_nearest_ones() -> None:
    numbers = randn(5, 64)
    packed = int8_weight(numbers)
    error = (packed.digits.float() * packed.scale[:, None] - numbers).abs()
    assert bool((error <= packed.scale[:, None] * 0.5001).all())
    steps = int4_weight(numbers)
    span = numbers.reshape(5, 2, 32)
    step = (span.amax(2).clamp_min(0) - span.amin(2).clamp_max(0)) / 15
    off = (dequantize_int4(steps) - numbers).abs().reshape(5, 2, 32)
    assert bool((off <= step[:, :, None] * 1.001).all())


def test_the_kernels_are_known_by_name_and_refuse_what_they_cannot_run() -> None:
    assert isinstance(ops("triton"), TritonOps)
    with pytest.raises(ValueError, match="know no kind 'q9'"):
        TritonOps().prepare(Weight("q9", (1, 32), torch.zeros(1, 32)))
