"""The published arithmetic, and what counts as free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from safegen.engine import capacity
from safegen.engine.config import EngineConfig
from safegen.errors import CapacityError, RequestError

GIB = 1 << 30


def test_bytes_per_token_of_the_published_example() -> None:
    assert capacity.bytes_per_token(28, 8, 128, 2) == 114_688
    assert capacity.bytes_per_token(28, 8, 128, 1, per_head_scales=True) == 59_136
    assert capacity.num_blocks(8 * GIB, 16 * 114_688) == 4_681
    assert capacity.num_blocks(8 * GIB, 16 * 59_136) == 9_078


def test_blocks_needed_has_the_room_of_a_token_in_flight() -> None:
    assert capacity.blocks_needed(10, 5, 16) == 1
    assert capacity.blocks_needed(10, 6, 16) == 2


def test_no_block_at_all_is_refused_with_the_number_needed() -> None:
    with pytest.raises(CapacityError, match="one takes 1000 bytes"):
        capacity.num_blocks(999, 1000)


@pytest.mark.parametrize(
    ("available", "max_num_seqs", "expected"),
    [
        (100 * GIB, 64, GIB),  # the cap
        (100 * GIB, 1, 65 * 1_000_000),  # one sequence of 1,024 tokens needs 65 blocks
        (1_000_000_000, 64, 250_000_000),  # a quarter
        (0, 64, 17 * 1_000_000),  # never less than 256 tokens
    ],
)
def test_default_pool_is_the_least_of_share_need_and_cap(available: int, max_num_seqs: int, expected: int) -> None:
    assert capacity.default_kv_cache_bytes(1_000_000, 16, max_num_seqs, 1024, available) == expected


def fake_root(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000 kB\n", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_available_memory_is_the_machines_without_a_group_limit(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"})
    assert capacity.available_memory_bytes(root) == 8000 * 1024


@pytest.mark.parametrize(
    "files",
    [
        {
            "sys/fs/cgroup/memory.max": "5000\n",
            "sys/fs/cgroup/memory.current": "3000\n",
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 1000\n",
        },
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1000\n",
        },
        {
            "proc/self/cgroup": "0::/app/worker\n",
            "sys/fs/cgroup/app/worker/memory.max": "5000\n",
            "sys/fs/cgroup/app/worker/memory.current": "2000\n",
        },
    ],
)
def test_available_memory_respects_the_control_group(tmp_path: Path, files: dict[str, str]) -> None:
    assert capacity.available_memory_bytes(fake_root(tmp_path, files)) == 3000


def test_available_memory_of_this_machine_is_sane() -> None:
    assert 1 << 20 < capacity.available_memory_bytes() < 1 << 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("max_num_seqs", -1),
        ("max_queue", 1.5),
        ("kv_cache_memory", 0),
        ("kv_cache_dtype", "fp8"),
        ("max_context", True),
        ("enable_prefix_caching", "yes"),
        ("max_num_batched_tokens", 63),
    ],
)
def test_wrong_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        EngineConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field and caught.value.value == value
