"""The memory of a GPU: what is left for the cache is measured, and said with its arithmetic when it is nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.gpu.memory import MemoryProfile, full_batch
from safegen.errors import CapacityError, RequestError
from tests.engine.gpu.test_gpu_runner import TOKEN_BYTES, gpu_runner
from tests.support.engine_driver import drive
from tests.support.engine_driver import make_request as request
from tests.support.fake_device import FakeDevice

MIB = 1 << 20


def test_what_is_left_is_the_published_arithmetic() -> None:
    profile = MemoryProfile(
        total=1000 * MIB, utilization=0.9, in_use=500 * MIB, step_peak=120 * MIB, graph_peak=30 * MIB
    )
    assert profile.left == profile.cache_bytes(MIB) == 250 * MIB


def test_no_room_for_a_block_is_an_error_with_the_arithmetic() -> None:
    profile = MemoryProfile(2048 * MIB, 0.5, 1000 * MIB, 512 * MIB, 0)
    with pytest.raises(CapacityError) as caught:
        profile.cache_bytes(2 * MIB)
    parts = [
        "gpu_memory_utilization=0.5 of 2.00 GiB is 1.00 GiB",
        "0.98 GiB in use",
        "0.50 GiB for the largest step",
        "leaves -0.48 GiB",
        "one block takes 2097152 bytes",
        "Fix: raise gpu_memory_utilization",
    ]
    for part in parts:
        assert part in str(caught.value)


def test_the_largest_steps_are_as_large_as_steps_come() -> None:
    prompts = full_batch(100, 8, 30, 4, decoding=False)
    assert prompts.query_start.tolist() == [0, 30, 60, 90, 100] and prompts.context_len.tolist() == [30, 30, 30, 10]
    assert prompts.position.max() == 29 and set(prompts.slot.tolist()) == {-1} and len(prompts.sampled_rows) == 8
    decode = full_batch(100, 8, 30, 4, decoding=True)
    assert len(decode.ids) == 8 and set(decode.context_len.tolist()) == {30} and decode.block_table.shape == (8, 8)


def test_the_pool_takes_what_the_profile_leaves_and_the_engine_runs_in_it(folder: Path) -> None:
    device = FakeDevice(memory_bytes=64 * MIB, free_bytes=60 * MIB, peak=5 * MIB)
    runner = gpu_runner(folder, device)
    core = EngineCore(runner, TOKEN_BYTES, EngineConfig(block_size=4, max_num_seqs=4, max_num_batched_tokens=64,
                                                        gpu_memory_utilization=0.75))  # fmt: skip
    left = int(0.75 * 64 * MIB) - 4 * MIB - 2 * 5 * MIB
    assert core.door.num_blocks == left // runner.bytes_per_block(4)
    assert all(not layer.key.any() for layer in runner._cache), "what was measured leaves nothing in the cache"
    outcomes = drive(core, [request("a", [3, 4, 5], max_tokens=6, stop_ids=())])
    assert len(outcomes["a", 0].token_ids) == 6


def test_a_device_that_is_full_is_refused_before_the_first_request(folder: Path) -> None:
    device = FakeDevice(memory_bytes=64 * MIB, free_bytes=6 * MIB)
    with pytest.raises(CapacityError, match="no memory is left for the KV cache"):
        EngineCore(gpu_runner(folder, device), TOKEN_BYTES, EngineConfig(max_num_seqs=4, max_num_batched_tokens=64))


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1, "most", True, np.nan])
def test_a_share_that_is_none_is_refused_by_name(share: object) -> None:
    with pytest.raises(RequestError) as caught:
        EngineConfig(gpu_memory_utilization=share)  # type: ignore[arg-type]
    assert caught.value.field == "gpu_memory_utilization"
