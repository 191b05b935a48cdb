"""Logits equal transformers' for every family and file format, through paged, chunked, shuffled computation.

In fp32, on the reference kernels and the native ones ("exact": without quantized activations), the largest difference
of any logit stays under 1e-3, on tiny random checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from safegen.engine.models.base import Model
from safegen.engine.models.loader import load_model
from safegen.kernels.api import Weight, ops
from safegen.kernels.cpu import CpuOps
from safegen.kernels.quant import BLOCK_TYPES
from safegen.kernels.reference import ReferenceOps
from tests.engine.checkpoints import VARIANTS, VOCAB, hf_logits, random_ids, tiny_model, write_gguf
from tests.engine.paging import PagedRun, all_logits

TOLERANCE = 1e-3
# Longer than every sliding window and than LongRoPE's original length, and two short ones beside it.
SEQUENCES = [random_ids(41, 1), random_ids(3, 2), random_ids(17, 3)]


def mixed_kinds(name: str) -> str:
    """As real files have them: quantized matrices of several kinds beside dense ones."""
    return "q8_0" if "embd" in name else "q5_1" if "ffn_up" in name or "attn_q" in name else "f32"


def load(path: Path, kernels: str = "reference", **settings: Any) -> Model:
    return load_model(path, CpuOps(exact=True) if kernels == "exact" else ops(kernels), **settings)


def assert_parity(ours: Model, theirs: Any, sequences: list[list[int]], chunk: int) -> None:
    for sequence, logits in zip(sequences, all_logits(ours, sequences, chunk)):
        expected = hf_logits(theirs, sequence)
        assert logits.dtype == torch.float32 and logits.shape == expected.shape
        assert expected.std() > 0.1, "logits too flat to tell models apart"
        assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("kernels, chunk", [("reference", 64), ("reference", 5), ("cpu", 5)])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "phi3-longrope"])
def test_safetensors_logits_equal_transformers(variant: str, kernels: str, chunk: int, tmp_path: Path) -> None:
    theirs = tiny_model(variant)
    theirs.save_pretrained(tmp_path)
    assert_parity(load(tmp_path, kernels), theirs, SEQUENCES, chunk)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "phi3"])
def test_native_logits_are_bitwise_the_same_alone_chunked_and_in_company(variant: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model(variant), mixed_kinds)
    model = load(tmp_path / "model.gguf", "cpu")
    alone = [all_logits(model, [sequence], chunk=64)[0] for sequence in SEQUENCES]
    for chunk in (64, 5, 1):
        together = all_logits(model, SEQUENCES, chunk)
        assert all(torch.equal(ours, expected) for ours, expected in zip(together, alone))


def test_longrope_uses_the_factors_of_the_context_it_is_loaded_for(tmp_path: Path) -> None:
    theirs = tiny_model("phi3-longrope")
    theirs.save_pretrained(tmp_path)
    assert_parity(load(tmp_path), theirs, [random_ids(41, 1), random_ids(33, 2)], chunk=5)
    assert_parity(load(tmp_path, max_position=32), theirs, [random_ids(32, 1), random_ids(9, 2)], chunk=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "phi3"])
def test_half_precision_checkpoints_compute_in_fp32(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tiny_model(variant).to(dtype).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_parity(load(tmp_path), theirs, SEQUENCES, chunk=64)


def test_sharded_checkpoints_load_as_one(tmp_path: Path) -> None:
    theirs = tiny_model("qwen2")
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_parity(load(tmp_path), theirs, SEQUENCES, chunk=64)


def test_the_text_part_of_a_multimodal_gemma_loads(tmp_path: Path) -> None:
    """Names nested under language_model, fields equal to defaults left out of text_config, vision weights beside."""
    text = tiny_model("gemma3").config
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1)
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    assert_parity(load(tmp_path), theirs, SEQUENCES, chunk=64)


GGUF_KINDS = ["f32", "f16", "bf16", *BLOCK_TYPES]


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf_logits_equal_transformers_on_the_dequantized_weights(kind: str, tmp_path: Path) -> None:
    theirs = tiny_model("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    write_gguf(tmp_path / "model.gguf", theirs, lambda name: kind)
    assert_parity(load(tmp_path / "model.gguf"), theirs, SEQUENCES, chunk=5)


GGUF_VARIANTS = (
    "llama-biases", "llama-tied-wide-heads", "llama-linear-rope", "qwen2", "qwen3", "mistral", "gemma3", "phi3"
)  # fmt: skip


@pytest.mark.parametrize("kernels", ["reference", "exact"])
@pytest.mark.parametrize("variant", GGUF_VARIANTS)
def test_gguf_files_of_every_family_equal_transformers(variant: str, kernels: str, tmp_path: Path) -> None:
    theirs = tiny_model(variant)
    write_gguf(tmp_path / "model.gguf", theirs, mixed_kinds)
    assert_parity(load(tmp_path / "model.gguf", kernels), theirs, SEQUENCES, chunk=64)


def test_gguf_longrope_factors_come_from_tensors(tmp_path: Path) -> None:
    theirs = tiny_model("phi3-longrope")
    write_gguf(tmp_path / "model.gguf", theirs, lambda name: "f32")
    assert_parity(load(tmp_path / "model.gguf"), theirs, [random_ids(41, 1)], chunk=64)
    assert_parity(load(tmp_path / "model.gguf", max_position=32), theirs, [random_ids(30, 1)], chunk=64)


def test_gguf_llama3_rope_comes_as_divisors(tmp_path: Path) -> None:
    theirs = tiny_model("llama3-rope")
    plain = 1.0 / 5000.0 ** (torch.arange(0, 16, 2) / 16)
    divisors = (plain / theirs.model.rotary_emb.inv_freq).numpy()
    write_gguf(
        tmp_path / "model.gguf",
        theirs,
        lambda name: "f32",
        lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    assert_parity(load(tmp_path / "model.gguf"), theirs, SEQUENCES, chunk=64)


class CountingOps(ReferenceOps):
    """Notes the shape of every matrix product: (rows, out_features)."""

    def __init__(self) -> None:
        self.products: list[tuple[int, int]] = []

    def linear(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        self.products.append((len(x), weight.shape[0]))
        return super().linear(x, weight, bias)


def test_only_sampled_rows_pass_the_output_head(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    counting, ids = CountingOps(), random_ids(9, 1)
    model = load_model(tmp_path, counting)
    full = PagedRun(model, [9]).step([ids])[0]
    counting.products.clear()
    two = PagedRun(model, [9]).step([ids], sampled_rows=[8, 2])[0]
    assert counting.products[-1] == (2, VOCAB) and all(rows == 9 for rows, _ in counting.products[:-1])
    torch.testing.assert_close(two, full[[8, 2]])
