"""An LLM over a quantized folder answers as one over a folder that holds the same numbers in fp32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from safegen import LLM, Regex
from tests.engine import quantized_folders as folders
from tests.engine.checkpoints import tiny_model
from tests.engine.quantized_folders import Quantize, compressed
from tests.support.hf_folders import save_byte_level

PROMPT = "jumps over"
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
CASES: dict[str, tuple[str, Quantize, dict[str, Any]]] = {
    "awq": ("llama", folders.awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "act-order": ("qwen3", folders.gptq(32, act_order=True), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "int8": ("qwen2", folders.int8("row"), compressed("int-quantized", INT8)),
    "fp8": ("qwen3", folders.fp8("block", inverse=True), {"quant_method": "fp8", "weight_block_size": [16, 32]}),
}


def written(folder: Path, name: str) -> tuple[Path, Path]:
    """The quantized folder, and one with its numbers in fp32."""
    variant, quantize, settings = CASES[name]
    quantized, plain = folder / "quantized", folder / "plain"
    for path in (quantized, plain):
        path.mkdir()
        save_byte_level(path)
    vocab_size = Tokenizer.from_file(str(plain / "tokenizer.json")).get_vocab_size()
    model = tiny_model(variant, num_hidden_layers=2, vocab_size=vocab_size)
    folders.save(model, quantized, folders.layers(quantize), settings)
    model.save_pretrained(plain)
    return quantized, plain


def answers(path: Path, kernels: str) -> list[str]:
    with LLM(path, kernels=kernels, kv_cache_memory=1 << 22) as llm:  # type: ignore[arg-type]
        free = llm.generate(PROMPT, max_tokens=12).text
        return [free, llm.generate(PROMPT, Regex("[a-z]{3,8}"), max_tokens=12).text]


@pytest.mark.parametrize("name", CASES)
def test_the_reference_answers_as_over_the_dequantized_folder(name: str, tmp_path: Path) -> None:
    quantized, plain = written(tmp_path, name)
    assert answers(quantized, "reference") == answers(plain, "reference")


@pytest.mark.parametrize("name", CASES)
def test_the_native_kernels_answer_as_over_the_dequantized_folder(name: str, tmp_path: Path) -> None:
    """Packed weights meet 8-bit activations, which on a model as flat as a random one decides a token now and then; of
    these answers it decides none."""
    quantized, plain = written(tmp_path, name)
    (free, word), (plain_free, plain_word) = answers(quantized, "cpu"), answers(plain, "cpu")
    assert free == plain_free and re.fullmatch("[a-z]{3,8}", word)
    assert word == plain_word or name != "fp8"  # whose weights are halves, which meet activations as they are


@pytest.mark.parametrize("name", ["awq", "act-order"])
def test_batches_prefixes_and_drafts_change_nothing(name: str, tmp_path: Path) -> None:
    quantized, _ = written(tmp_path, name)
    prompts = [PROMPT, "def f(x)", PROMPT + ", 1234"]
    with LLM(quantized, kernels="cpu", kv_cache_memory=1 << 22) as llm:
        alone = [llm.generate(prompt, max_tokens=12, seed=3, temperature=0.8).text for prompt in prompts]
        batch = llm.batch([(prompt, None) for prompt in prompts], max_tokens=12, seed=3, temperature=0.8)
        assert [row.text for row in batch] == alone
        unsped = [llm.generate(p, max_tokens=12, seed=3, temperature=0.8, speculation=False).text for p in prompts]
        assert unsped == alone
