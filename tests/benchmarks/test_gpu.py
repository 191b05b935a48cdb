"""benchmarks/gpu.py without a GPU: its engine runs on the fake device, its figures are named as documented."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.common.gpu_decode import Constraints, measure
from benchmarks.common.gpu_models import CONFIGS, random_model, vocabulary_bytes
from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.gpu.runner import GpuRunner
from safegen.grammars.vocabulary import Vocabulary
from tests.support.fake_device import FakeDevice
from tests.support.graph_ops import GraphOps


def test_all_modes_are_measured_on_one_engine() -> None:
    kernels = GraphOps()
    model = random_model("tiny", kernels, torch.device("cpu"))
    texts = vocabulary_bytes(512)
    runner = GpuRunner(model, kernels, FakeDevice(), torch.float32, max_num_batched_tokens=128)
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=128, kv_cache_memory=1 << 20)
    core = EngineCore(runner, texts, config)
    found = measure(core, [1, 2], Constraints(Vocabulary(texts, [511])), output_tokens=6, rounds=1)
    assert set(found) == {f"b{batch}.{mode}" for batch in (1, 2) for mode in ("free", "host_mask", "fsm")}
    assert all(rate > 0 for rate in found.values())
    steps = core._on_device
    assert steps is not None and 0 < steps.num_drawn_ahead < steps.num_ahead, "tables and free text are drawn ahead"


def test_models_have_the_published_sizes() -> None:
    sizes = {}
    for name, config in CONFIGS.items():
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        a_layer = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size)
        embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
        sizes[name] = config.num_layers * a_layer + embeddings
    assert sizes["llama-3-8b"] == pytest.approx(8.03e9, rel=0.01)
    assert sizes["qwen3-4b"] == pytest.approx(4.02e9, rel=0.01)


def test_figures_are_named_as_documented() -> None:
    ours = gpu.e2e_figures("m", "safegen", {"b1.free": 10.0, "b1.host_mask": 9.0, "b1.fsm": 10.0})
    theirs = gpu.e2e_figures("m", "transformers", {"b1.generate": 2.0, "b1.continuous": 4.0, "missing": {}})
    assert ours == {"e2e.m.b1.free": 10.0, "e2e.m.b1.host_mask": 9.0, "e2e.m.b1.fsm": 10.0}
    assert theirs == {"e2e.m.b1.transformers": 4.0}
    assert gpu.ratios(ours | theirs) == {
        "e2e.m.b1.host_mask_over_free": 0.9, "e2e.m.b1.fsm_over_free": 1.0, "e2e.m.b1.over_transformers": 2.5,
    }  # fmt: skip


def test_without_a_device_the_error_is_plain(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def test_an_engine_for_which_no_time_is_left_is_named() -> None:
    found, why = gpu.run_engine("safegen", "tiny", "1", gpu.Budget(3.0))
    assert not found and why is not None and "no time was left" in why
