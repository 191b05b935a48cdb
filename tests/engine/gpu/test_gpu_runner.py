"""The GPU runner's control flow on CPU tensors: graphs, static buffers, uploads, tables, and one copy back a step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.gpu.runner import GpuRunner
from safegen.engine.gpu.shapes import graph_key, padded, widths
from safegen.engine.models.layers import Decoder
from safegen.engine.models.loader import load_model
from safegen.engine.request import Request
from safegen.engine.runner import ModelRunner
from tests.engine.checkpoints import VOCAB
from tests.engine.test_core import mixed_requests, tokens
from tests.engine.test_device_steps import TABLE, tabled
from tests.support.drafters import cheating_speculator
from tests.support.engine_driver import drive
from tests.support.engine_driver import make_request as request
from tests.support.fake_backend import FAKE_VOCAB
from tests.support.fake_device import CaptureError, FakeDevice
from tests.support.graph_ops import GraphOps

TOKEN_BYTES: list[bytes | None] = [None, *(bytes([64 + number]) for number in range(1, FAKE_VOCAB))]


def gpu_runner(folder: Path, device: FakeDevice | None = None, **options: Any) -> GpuRunner:
    kernels = GraphOps()
    model = load_model(folder, kernels)
    assert isinstance(model, Decoder)
    options = {"max_num_batched_tokens": 64, **options}
    return GpuRunner(model, kernels, device or FakeDevice(), torch.float32, **options)


def core_over(backend: Any, *, num_blocks: int = 64, speculator: Any = None, **settings: Any) -> EngineCore:
    settings = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
    settings["kv_cache_memory"] = num_blocks * backend.bytes_per_block(settings["block_size"])
    return EngineCore(backend, TOKEN_BYTES, EngineConfig(**settings), speculator=speculator)


SETTINGS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "chunks of 3, no cache": {"max_num_seqs": 3, "max_num_batched_tokens": 3, "enable_prefix_caching": False},
    "preempting": {"num_blocks": 13},
}


@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_the_plain_runner(folder: Path, plain: ModelRunner, name: str, with_tables: bool) -> None:
    wanted = tokens(drive(core_over(plain, **SETTINGS[name]), mixed_requests(7, 12)))
    asked = [tabled(each) if with_tables else each for each in mixed_requests(7, 12)]
    core = core_over(gpu_runner(folder), **SETTINGS[name])
    assert tokens(drive(core, asked)) == wanted


def test_drafts_are_verified_in_graphs_of_their_own(folder: Path, plain: ModelRunner) -> None:
    def drafted(backend: Any) -> EngineCore:
        return core_over(backend, num_blocks=200, speculator=cheating_speculator(3))

    runner = gpu_runner(folder)
    assert tokens(drive(drafted(runner), mixed_requests(3, 8))) == tokens(drive(drafted(plain), mixed_requests(3, 8)))
    assert len({key.max_query_len for key in runner._graphs}) > 2


def decoding(count: int, **fields: Any) -> list[Request]:
    fields = {"max_tokens": 20, "stop_ids": (), "temperature": 0.9, **fields}
    return [request(f"d{n}", range(n + 1, n + 6), seed=n, **fields) for n in range(count)]


@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
def test_forwards_launched_ahead_give_the_same_tokens(folder: Path, plain: ModelRunner, with_tables: bool) -> None:
    def asked() -> list[Request]:
        held = [request(f"c{n}", [n + 1], constrained=True, max_tokens=24, seed=n, temperature=2.0) for n in range(4)]
        return [*decoding(3, stop_ids=range(8)), *([tabled(each) for each in held] if with_tables else held)]

    wanted = tokens(drive(core_over(plain), asked()))
    core = core_over(gpu_runner(folder))
    assert tokens(drive(core, asked())) == wanted
    steps = core._on_device
    assert steps is not None and steps.num_ahead >= 8
    assert steps.num_drawn_ahead > 4 if with_tables else steps.num_drawn_ahead < steps.num_ahead


def test_a_decode_step_is_two_graphs_two_uploads_and_one_download(folder: Path) -> None:
    device = FakeDevice()
    core = core_over(gpu_runner(folder, device))
    for each in decoding(5):
        core.add(each)
    for _ in range(4):
        core.step()
    counts = []
    for _ in range(8):
        before = device.num_replays, device.num_uploads, device.num_downloads, device.num_captures
        core.step()
        after = device.num_replays, device.num_uploads, device.num_downloads, device.num_captures
        counts.append(tuple(np.subtract(after, before).tolist()))
    assert Counter(counts) == {(2, 2, 1, 0): 8}


def test_masked_steps_upload_their_masks_once_more(folder: Path) -> None:
    device = FakeDevice()
    core = core_over(gpu_runner(folder, device))
    core.add(request("c", [4], constrained=True, max_tokens=24, seed=1, temperature=1.5, logit_bias={}))
    uploads = []
    while core.has_work:
        before = device.num_uploads
        core.step()
        uploads.append(device.num_uploads - before)
    assert max(uploads[1:-1], default=3) == 3


def test_rows_of_a_table_come_without_masks_from_the_host(folder: Path, plain: ModelRunner) -> None:
    device = FakeDevice()
    asked = [request(f"c{n}", [n + 1], constrained=True, max_tokens=24, seed=n, temperature=2.0) for n in range(6)]
    wanted = tokens(drive(core_over(plain), asked))
    again = [request(f"c{n}", [n + 1], constrained=True, max_tokens=24, seed=n, temperature=2.0) for n in range(6)]
    core = core_over(gpu_runner(folder, device))
    with_tables = [tabled(each) for each in again]
    assert tokens(drive(core, with_tables)) == wanted
    assert all(each.constraint.num_fills == 0 for each in with_tables)  # type: ignore[union-attr]
    assert core._on_device is not None and core._on_device.num_drawn_ahead > 0


def test_a_batch_is_padded_to_the_next_width_and_its_graph_is_captured_once(folder: Path) -> None:
    device = FakeDevice()
    runner = gpu_runner(folder, device)
    core = core_over(runner, num_blocks=200)
    drive(core, [*decoding(3), request("late", [9], max_tokens=25, seed=9, stop_ids=())])
    keys = set(runner._graphs)
    assert {key.tokens for key in keys} <= set(widths(8)) and runner.num_graphs == len(keys)
    captured = device.num_captures
    drive(core, [*decoding(3), request("late", [9], max_tokens=25, seed=9, stop_ids=())])
    assert device.num_captures == captured


def test_log_probabilities_and_penalties_are_drawn_by_the_pipeline_from_the_rows_logits(
    folder: Path, plain: ModelRunner
) -> None:
    asked = [*decoding(3, logprobs=2), request("p", [3, 4], max_tokens=9, presence_penalty=0.7, stop_ids=())]
    asked += [request("m", [5, 4], max_tokens=9, min_tokens=6)]
    ours, theirs = drive(core_over(gpu_runner(folder)), asked), drive(core_over(plain), asked)
    assert tokens(ours) == tokens(theirs)
    for key, outcome in theirs.items():
        pairs = zip(ours[key].logprobs, outcome.logprobs, strict=True)
        assert all(abs(a.raw - b.raw) < 1e-4 and a.token_id == b.token_id for a, b in pairs)


def test_keys_follow_the_shape_of_a_batch(folder: Path) -> None:
    assert widths(1) == (1,) and widths(8) == (1, 2, 4, 8) and widths(20) == (1, 2, 4, 8, 16, 20)
    assert [padded(n, widths(70)) for n in (1, 3, 17, 65)] == [1, 4, 24, 70]
    runner = gpu_runner(folder)
    batches: list[Any] = []
    launch = runner.launch
    runner.launch = lambda batch, carried=None: (batches.append(batch), launch(batch, carried))[1]  # type: ignore[method-assign,assignment]
    drive(core_over(runner), decoding(2, max_tokens=3))
    prefill, decode = batches[0], batches[-1]
    assert graph_key(prefill, widths(8), 40) is None, "prompts run in their own shape"
    key = graph_key(decode, widths(8), 40)
    assert key is not None and (key.tokens, key.sequences, key.max_query_len, key.blocks) == (2, 2, 1, 40)


# --- the fake itself: what it must catch ------------------------------------------------------------------------------


class Doubler:
    """Work over static buffers: one that is right, and what goes wrong."""

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.source, self.target, self.factor = torch.zeros(4), torch.zeros(4), 2.0
        self.staging = self.device.staging(16).view(torch.float32)
        self.back = self.device.staging(16).view(torch.float32)

    def work(self) -> None:
        self.target.copy_(self.source * self.factor)

    def step(self, start: Any, number: float) -> float:
        self.staging.fill_(number)
        self.device.upload(self.staging, self.source)
        start()
        self.device.download(self.target, self.back)
        self.device.wait(self.device.mark())
        return float(self.back[0])


def test_a_replay_reads_static_buffers_anew() -> None:
    doubler = Doubler()
    start = doubler.device.capture(doubler.work)
    assert [doubler.step(start, number) for number in (1.0, 5.0)] == [2.0, 10.0]


def test_a_replay_keeps_the_numbers_and_tensors_of_its_capture() -> None:
    doubler = Doubler()
    start = doubler.device.capture(doubler.work)
    doubler.factor = 3.0
    assert doubler.step(start, 1.0) == 2.0
    doubler.source = torch.zeros(4)  # the graph reads the old one
    assert doubler.step(start, 7.0) == 2.0


def test_staging_that_is_written_too_early_and_results_that_are_read_too_early_show() -> None:
    doubler = Doubler()
    start = doubler.device.capture(doubler.work)
    doubler.staging.fill_(1.0)
    doubler.device.upload(doubler.staging, doubler.source)
    start()
    doubler.device.download(doubler.target, doubler.back)
    doubler.staging.fill_(50.0)
    assert float(doubler.back[0]) not in (2.0, 100.0)
    doubler.device.wait(doubler.device.mark())
    assert float(doubler.back[0]) == 100.0


@pytest.mark.parametrize("function", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()])
def test_what_reads_the_device_cannot_be_captured(function: Any) -> None:
    x = torch.ones(3)
    with pytest.raises(CaptureError, match="cannot be captured"):
        FakeDevice().capture(lambda: function(x))


def test_the_table_of_the_tests_is_the_bracket_language() -> None:
    assert TABLE.masks.shape[0] == TABLE.targets.shape[0] == 10 and VOCAB > FAKE_VOCAB
