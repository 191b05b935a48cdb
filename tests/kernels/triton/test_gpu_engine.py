"""The whole engine over interpreted kernels in recorded graphs: the tokens of the plain runner, alone or in company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.engine.request import Request
from safegen.engine.runner import ModelRunner
from safegen.kernels.reference import ReferenceOps
from safegen.kernels.triton.ops import TritonOps
from tests.engine.checkpoints import tiny_model
from tests.engine.gpu.test_gpu_runner import core_over
from tests.engine.test_core import tokens
from tests.engine.test_device_steps import tabled
from tests.support.engine_driver import Outcomes, drive
from tests.support.engine_driver import make_request as request
from tests.support.fake_device import FakeDevice, kernel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model("llama", num_hidden_layers=1).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def recorded_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interpreted launch is one operation of a graph."""
    with monkeypatch.context() as patched:
        patched.setattr(GridExecutor, "__call__", kernel(GridExecutor.__call__))
        yield


def runner_over(folder: Path, **options: Any) -> GpuRunner:
    kernels = TritonOps(**options)
    model = load_model(folder, kernels)
    assert isinstance(model, Decoder)
    return GpuRunner(model, kernels, FakeDevice(), torch.float32, max_num_batched_tokens=32)


def asked(count: int = 4, with_tables: bool = True, **fields: Any) -> list[Request]:
    made = []
    for number in range(count):
        settings = {"seed": number, "temperature": 0.8 * (number % 3), "max_tokens": 5, **fields}
        one = request(f"r{number}", range(3, 6 + 3 * number), constrained=number % 2 == 1, **settings)
        made.append(tabled(one) if with_tables and number != 3 else one)
    return made


def test_tokens_are_those_of_the_plain_runner(folder: Path) -> None:
    plain = ModelRunner(load_model(folder, ReferenceOps()), ReferenceOps())
    wanted = tokens(drive(core_over(plain), asked(with_tables=False)))
    runner = runner_over(folder)
    assert tokens(drive(core_over(runner), asked())) == wanted
    assert runner.num_graphs


def raw(outcomes: Outcomes) -> dict[Any, list[float]]:
    return {key: [each.raw for each in outcome.logprobs] for key, outcome in outcomes.items()}


def test_deterministic_rows_do_not_depend_on_what_is_beside_them(folder: Path) -> None:
    """To the last bit of their log-probabilities, alone, together, and in chunks."""
    runner = runner_over(folder, deterministic=True)
    alone = drive(core_over(runner, max_num_seqs=1), asked(3, logprobs=0, max_tokens=3))
    for settings in ({}, {"max_num_seqs": 2, "max_num_batched_tokens": 4, "enable_prefix_caching": False}):
        together = drive(core_over(runner, **settings), asked(3, logprobs=0, max_tokens=3))
        assert tokens(together) == tokens(alone)
        assert raw(together) == raw(alone)
