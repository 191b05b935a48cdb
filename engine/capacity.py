"""How much KV cache there is, and what fits. The published arithmetic, used by the engine's door and by `safegen plan`.

    bytes_per_token = 2 * layers * kv_heads * head_dim * dtype_bytes    (+ 2 * layers * kv_heads * 4 for int8 scales)
    blocks          = floor(memory_bytes / (block_size * bytes_per_token))
    a request fits  iff ceil((prompt + max_tokens + 1) / block_size) <= blocks

The `+ 1` is the room of a token in flight; with it a sequence that runs alone never has to preempt itself. Memory that
is "free" means free for this process: the smaller of what the machine and what the control group still allow. Without
an explicit `kv_cache_memory` the pool takes a modest share of it, because the app's own data lives in the process too.
"""

from __future__ import annotations

import os
from pathlib import Path

from safegen.errors import CapacityError

DEFAULT_MAX_TOKENS = 1024
_SHARE_OF_AVAILABLE = 4
_DEFAULT_CAP_BYTES = 1 << 30
_INT8_SCALE_BYTES = 4


def bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, *, per_head_scales: bool = False
) -> int:
    """KV bytes of one token. per_head_scales: an int8 cache with one float32 scale a token, head, key and value."""
    values = 2 * num_layers * num_kv_heads * head_dim * dtype_bytes
    return values + (2 * num_layers * num_kv_heads * _INT8_SCALE_BYTES if per_head_scales else 0)


def blocks_needed(prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """Blocks that one sequence can come to hold: ceil((prompt + max_tokens + 1) / block_size)."""
    return -(-(prompt_tokens + max_tokens + 1) // block_size)


def effective_max_tokens(max_tokens: int | None, prompt_tokens: int, max_context: int, pool_tokens: int) -> int:
    """Output tokens a request may take, at least 1: what it asks for, cut to what the context leaves.

    If it does not say: 1,024, or less where the context or the pool (pool_tokens: tokens it can hold) leave less. A
    number that was asked for is not cut to the pool: the request is refused then.
    """
    context_left = max_context - prompt_tokens
    if max_tokens is None:
        return max(1, min(DEFAULT_MAX_TOKENS, context_left, pool_tokens - prompt_tokens - 1))
    return min(max_tokens, context_left)


def check_fits(prompt_tokens: int, max_tokens: int, block_size: int, num_blocks: int) -> None:
    """Raises CapacityError when a sequence could never be held by the pool, even alone."""
    needed = blocks_needed(prompt_tokens, max_tokens, block_size)
    if needed > num_blocks:
        raise CapacityError(
            f"the request can never fit the KV cache: {prompt_tokens} prompt tokens and max_tokens={max_tokens} need "
            f"ceil(({prompt_tokens} + {max_tokens} + 1) / {block_size}) = {needed} blocks of {block_size} tokens, the "
            f"cache has {num_blocks}. Fix: raise kv_cache_memory, or lower max_tokens or the prompt's length."
        )


def num_blocks(memory_bytes: int, block_bytes: int) -> int:
    """Blocks in a pool of that many bytes; CapacityError when not even one fits."""
    count = memory_bytes // block_bytes
    if count < 1:
        raise CapacityError(
            f"kv_cache_memory={memory_bytes} bytes hold no block: one takes {block_bytes} bytes. "
            f"Fix: raise kv_cache_memory or lower block_size."
        )
    return count


def default_kv_cache_bytes(
    block_bytes: int, block_size: int, max_num_seqs: int, max_context: int, available_bytes: int | None = None
) -> int:
    """The pool's bytes when none are given: the least of a quarter of what is available, what `max_num_seqs` sequences
    of full context need, and 1 GiB; at least what one sequence of 256 tokens needs.

    available_bytes: what this process may still take; measured when None.
    """
    available = available_memory_bytes() if available_bytes is None else available_bytes
    full_use = max_num_seqs * blocks_needed(max_context, 0, block_size) * block_bytes
    least = blocks_needed(min(256, max_context), 0, block_size) * block_bytes
    return max(least, min(available // _SHARE_OF_AVAILABLE, full_use, _DEFAULT_CAP_BYTES))


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may still take: of the machine and of its control group (v2 or v1), whichever is less."""
    group_limits = [_cgroup_left(*files) for files in _cgroup_files(root)]
    return min([_machine_available_bytes(root)] + [limit for limit in group_limits if limit is not None])


def _machine_available_bytes(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_files(root: Path) -> list[tuple[Path, Path, Path]]:
    """(limit, usage, statistics) of the control group, in both versions' places, and of its own path if it has one."""
    base = root / "sys/fs/cgroup"
    places = [
        (base, "memory.max", "memory.current"),
        (base / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ]
    try:
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if path.strip("/") and not controllers:
                places.append((base / path.strip("/"), "memory.max", "memory.current"))
    except (OSError, ValueError):
        pass
    return [(folder / limit, folder / usage, folder / "memory.stat") for folder, limit, usage in places]


def _cgroup_left(limit_file: Path, usage_file: Path, stat_file: Path) -> int | None:
    """What the group still allows; page cache that can be dropped counts as free. None: no limit here."""
    try:
        limit = int(limit_file.read_text())
        usage = int(usage_file.read_text())
    except (OSError, ValueError):
        return None
    reclaimable = 0
    try:
        for line in stat_file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                reclaimable = max(reclaimable, int(number))
    except (OSError, ValueError):
        pass
    return max(0, limit - max(0, usage - reclaimable))
