"""A model spread over two devices: the other rank follows launches, graphs and shared tokens, and the tokens are those
of one device. The devices are fakes in two processes, and gloo stands in for NCCL."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.parallel.gpu import ParallelGpuRunner
from safegen.engine.parallel.group import Group
from safegen.engine.runner import ModelRunner
from safegen.errors import CapacityError, EngineError, RequestError
from safegen.loading import LoadOptions, load_runtime
from tests.engine.gpu.test_gpu_runner import core_over, decoding
from tests.engine.test_core import mixed_requests, tokens
from tests.engine.test_device_steps import tabled
from tests.support.engine_driver import drive
from tests.support.engine_driver import make_request as request
from tests.support.fake_device import FakeDevice, kernel
from tests.support.graph_ops import GraphOps

MIB = 1 << 20


@pytest.fixture(autouse=True)
def exchange_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange is a launch, as NCCL's is."""
    monkeypatch.setattr(Group, "gather", kernel(Group.gather))


@contextlib.contextmanager
def spread(folder: Path, *, free_bytes: int = 1 << 30) -> Iterator[ParallelGpuRunner]:
    """free_bytes: of the other rank's device."""
    settings: dict[str, Any] = {
        "path": str(folder), "kv_cache_dtype": "float32", "quantization": None, "max_context": None,
        "max_num_batched_tokens": 64, "free_bytes": free_bytes,
    }  # fmt: skip
    runner = ParallelGpuRunner.over(folder, GraphOps(), FakeDevice, settings, 2, "gloo", "tests.support.gpu_rank")
    try:
        yield runner
    finally:
        runner.close()


@pytest.mark.parametrize("given", [{}, {"num_blocks": 13}], ids=["plenty", "preempting"])
def test_tokens_are_those_of_one_process(folder: Path, plain: ModelRunner, given: dict[str, Any]) -> None:
    wanted = tokens(drive(core_over(plain, **given), mixed_requests(7, 12)))
    with spread(folder) as runner:
        assert tokens(drive(core_over(runner, **given), mixed_requests(7, 12))) == wanted


@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
def test_launches_ahead_take_their_tokens_from_rank_0(folder: Path, plain: ModelRunner, with_tables: bool) -> None:
    def asked() -> list[Any]:
        held = [request(f"c{n}", [n + 1], constrained=True, max_tokens=24, seed=n, temperature=2.0) for n in range(4)]
        return [*decoding(3, stop_ids=range(8)), *([tabled(each) for each in held] if with_tables else held)]

    wanted = tokens(drive(core_over(plain), asked()))
    with spread(folder) as runner:
        core = core_over(runner)
        assert tokens(drive(core, asked())) == wanted
        assert core._on_device is not None and core._on_device.num_ahead >= 8
        assert runner.num_graphs > 0


def test_the_cache_is_what_the_fullest_device_has_room_for(folder: Path) -> None:
    with spread(folder) as runner:
        runner.prepare_draws(64, 8)
        roomy = runner.kv_cache_bytes(4, 0.9)
    with spread(folder, free_bytes=512 * MIB) as runner:
        runner.prepare_draws(64, 8)
        assert runner.kv_cache_bytes(4, 0.9) == roomy - 512 * MIB
    with spread(folder, free_bytes=0) as runner:
        runner.prepare_draws(64, 8)
        with pytest.raises(CapacityError, match="tensor-parallel rank 1"):
            runner.kv_cache_bytes(4, 0.9)


def test_a_rank_that_is_gone_is_an_error_and_close_leaves_none(folder: Path) -> None:
    with spread(folder) as runner:
        core = core_over(runner)
        core.add(request("a", [1, 2], max_tokens=30, stop_ids=()))
        core.step()
        os.kill(runner.ranks.process_ids[0], signal.SIGKILL)
        ended = [event for _ in range(4) for event in core.step()]
        assert any(isinstance(getattr(event, "error", None), EngineError) for event in ended)
    with pytest.raises(EngineError, match="ended"):
        runner.copy_block(0, 1)


def test_a_launch_that_fails_here_ends_the_others_which_are_out_of_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no room for a graph")

    with spread(folder) as runner:
        core = core_over(runner)
        drive(core, [request("a", [1, 2], max_tokens=3, stop_ids=())])
        with monkeypatch.context() as patched:
            patched.setattr(GpuRunner, "_upload", fails)
            drive(core, [request("b", [1, 2], max_tokens=3, stop_ids=())])
        with pytest.raises(EngineError, match="tensor parallel"):
            runner.copy_block(0, 1)


def test_a_gpu_that_is_not_there_is_said_before_any_process_starts(folder: Path) -> None:
    with pytest.raises(RequestError, match="cuda"):
        load_runtime(LoadOptions(str(folder), device="cuda", tensor_parallel_size=2))
