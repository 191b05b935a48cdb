"""The libraries' own dequantization reads the same numbers out of the same folders: transformers' for FP8, that of
compressed-tensors for its layouts. The latter's numbers are of the type of the scales, so ours are rounded to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from safegen.kernels.reference import ReferenceOps
from tests.engine import test_quantized_checkpoints as checkpoints
from tests.engine.checkpoints import hf_logits
from tests.engine.paging import all_logits

COMPRESSED = (
    "float-rows", "float-blocks", "int8-rows", "int8-one-scale", "int8-groups", "int8-zeros", "packed", "packed-zeros",
    "packed-8-bits",
)  # fmt: skip


def from_library(folder: Path, settings: Any) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=settings
    )
    return loaded.eval()


def assert_same_numbers(folder: Path, library: Any, dtype: torch.dtype) -> None:
    ours = checkpoints.load(folder, ReferenceOps())
    for name, weight, expected in checkpoints.layer_weights(ours, library):
        assert torch.equal(weight.data.to(dtype).float(), expected), name


@pytest.mark.parametrize("name", ["fp8-blocks", "fp8-one-inverse"])
def test_transformers_reads_the_same_fp8_numbers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers dequantizes FP8 with accelerate alone")
    checkpoints.saved(name, tmp_path)
    block = checkpoints.CASES[name].settings.get("weight_block_size")
    library = from_library(tmp_path, transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=block))
    assert_same_numbers(tmp_path, library, torch.float32)
    sequence = checkpoints.SEQUENCES[0]
    ours = all_logits(checkpoints.load(tmp_path, ReferenceOps()), [sequence], chunk=64)[0]
    assert (ours - hf_logits(library, sequence)).abs().max() < checkpoints.TOLERANCE


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_reads_the_same_numbers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    checkpoints.saved(name, tmp_path)
    library = from_library(tmp_path, transformers.CompressedTensorsConfig(dequantize=True))
    assert_same_numbers(tmp_path, library, torch.float32 if name.startswith("float") else torch.bfloat16)
