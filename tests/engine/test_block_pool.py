"""The block pool: counts, prefix chain, eviction order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine.block_pool import BlockPool


def chain(pool: BlockPool, ids: list[int], salt: str | None = None) -> list[bytes]:
    hashes, parent = [], pool.root_hash(salt)
    for start in range(0, len(ids) - pool.block_size + 1, pool.block_size):
        parent = pool.block_hash(parent, ids[start : start + pool.block_size])
        hashes.append(parent)
    return hashes


def publish(pool: BlockPool, ids: list[int], salt: str | None = None) -> list[int]:
    hashes = chain(pool, ids, salt)
    table = pool.allocate(len(hashes))
    for block_id, content_hash in zip(table, hashes):
        pool.publish(block_id, content_hash)
    return table


def test_released_prefix_is_found_again_block_by_block() -> None:
    pool = BlockPool(8, 2)
    table = publish(pool, [1, 2, 3, 4, 5, 6])
    pool.release(table)
    assert pool.num_free == 8
    assert pool.find_prefix(chain(pool, [1, 2, 3, 4, 9, 9])) == table[:2]
    assert pool.find_prefix(chain(pool, [9, 2, 3, 4, 5, 6])) == []


def test_equal_blocks_after_different_prefixes_do_not_meet() -> None:
    pool = BlockPool(8, 2)
    publish(pool, [1, 2, 7, 7])
    assert len(pool.find_prefix(chain(pool, [7, 7]))) == 0
    assert len(pool.find_prefix(chain(pool, [3, 4, 7, 7]))) == 0


@pytest.mark.parametrize("salts", [(None, ""), ("a", "b"), (None, "a")])
def test_cache_salt_separates_equal_prompts(salts: tuple[str | None, str | None]) -> None:
    pool = BlockPool(8, 2)
    publish(pool, [1, 2, 3, 4], salts[0])
    assert pool.find_prefix(chain(pool, [1, 2, 3, 4], salts[1])) == []
    assert len(pool.find_prefix(chain(pool, [1, 2, 3, 4], salts[0]))) == 2


def test_hashes_of_two_pools_differ() -> None:
    assert BlockPool(2, 2).root_hash(None) != BlockPool(2, 2).root_hash(None)


def test_eviction_takes_plain_blocks_then_the_tail_of_the_least_recent_table() -> None:
    pool = BlockPool(7, 1)
    old, new = publish(pool, [1, 2]), publish(pool, [3, 4, 5])
    plain = pool.allocate(1)
    pool.release(old)
    pool.release(plain)
    pool.release(new)
    untouched = [block_id for block_id in range(7) if block_id not in old + new + plain]
    assert pool.allocate(2) == plain + untouched
    assert pool.allocate(5) == [old[1], old[0], new[2], new[1], new[0]]
    assert pool.num_cached == 0


def test_a_hit_moves_its_blocks_away_from_eviction() -> None:
    pool = BlockPool(4, 1)
    first, second = publish(pool, [1, 2]), publish(pool, [3, 4])
    pool.release(first)
    pool.release(second)
    pool.acquire(first)
    pool.release(first)
    assert pool.allocate(2) == [second[1], second[0]]
    assert pool.find_prefix(chain(pool, [1, 2])) == first


def test_num_free_after_counts_only_blocks_nobody_holds() -> None:
    pool = BlockPool(4, 1)
    table = publish(pool, [1, 2])
    assert pool.num_free_after(table) == 2
    pool.release(table)
    assert pool.num_free_after(table) == 2
    assert pool.num_free == 4


def test_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2, 1)
    table = pool.allocate(1)
    pool.acquire(table)
    pool.release(table)
    assert pool.num_free == 1
    pool.release(table)
    assert pool.num_free == 2


def test_first_published_of_equal_blocks_stays() -> None:
    pool = BlockPool(4, 1)
    first, second = publish(pool, [1]), publish(pool, [1])
    assert pool.find_prefix(chain(pool, [1])) == first
    pool.release(first + second)
    pool.check_invariants([])


def test_too_many_blocks_or_a_double_release_raise_before_anything_changes() -> None:
    pool = BlockPool(2, 1)
    with pytest.raises(ValueError, match="3 blocks"):
        pool.allocate(3)
    table = pool.allocate(2)
    pool.release(table)
    with pytest.raises(ValueError, match="nobody holds"):
        pool.release(table)
    pool.check_invariants([])


def test_check_invariants_sees_a_leaked_block_and_a_stale_hash() -> None:
    pool = BlockPool(2, 1)
    table = pool.allocate(1)
    with pytest.raises(RuntimeError, match="held by 0"):
        pool.check_invariants([])
    pool.publish(table[0], b"hash")
    pool._cached.clear()
    with pytest.raises(RuntimeError, match="leads elsewhere"):
        pool.check_invariants([table])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 3))
def test_counts_return_to_zero_after_any_mix(seed: int, num_blocks: int, block_size: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(num_blocks, block_size)
    tables: list[list[int]] = []
    for _ in range(60):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 5) * block_size)]
        hashes = chain(pool, ids)
        hits = pool.find_prefix(hashes)
        missing = len(hashes) - len(hits)
        if rng.random() < 0.6 and pool.num_free_after(hits) >= missing:
            pool.acquire(hits)
            tables.append(hits + pool.allocate(missing))
            for block_id, content_hash in zip(tables[-1], hashes):
                pool.publish(block_id, content_hash)
        elif tables and rng.random() < 0.3:
            tables.append(list(rng.choice(tables)))
            pool.acquire(tables[-1])
        elif tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        pool.check_invariants(tables)
    for table in tables:
        pool.release(table)
    pool.check_invariants([])
    assert pool.num_free == num_blocks
