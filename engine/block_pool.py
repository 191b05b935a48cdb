"""The pool of KV cache blocks: who holds which block, and which free blocks still hold a known prefix.

A block is in one of three states, told apart by two fields: held (`ref_count > 0`), free and cached (`ref_count == 0`,
`content_hash` set: a later request with the same prefix takes it back), free and plain. Free blocks lie in one list,
evicted from the left: plain ones first, then cached ones, least recently freed first; a table is freed from its tail,
so that of one request's blocks the longest prefix lives longest.

A content hash is keyed BLAKE2b over (parent hash, token ids); the root hash is over the request's `cache_salt`. 256
bits and a key that is fresh in each pool: two different prefixes never meet, and no one outside can aim for a
collision. Only blocks whose tokens are all committed and computed are published; tokens may be taken back later, but
a hash covers its own tokens, so what the cache holds stays true. Equal blocks computed at the same time
are not merged: block tables only ever grow at the end, and the first one published stays the cached one.

The pool counts; it never touches keys or values. One writer: the engine thread.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

_HASH_BYTES = 32


@dataclass(slots=True)
class Block:
    """One fixed-size block. block_id: its place in the KV tensors."""

    block_id: int
    ref_count: int = 0
    content_hash: bytes | None = None


class BlockPool:
    """Reference-counted blocks with a content-addressed, LRU-evicted prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((block.block_id, None) for block in self._blocks)
        self._cached: dict[bytes, int] = {}
        self._key = os.urandom(_HASH_BYTES)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that the prefix cache can find."""
        return len(self._cached)

    def ref_count(self, block_id: int) -> int:
        return self._blocks[block_id].ref_count

    def is_plain(self, block_id: int) -> bool:
        """One holder, and no prefix is found by it: the holder may write into it as it is."""
        block = self._blocks[block_id]
        return block.ref_count == 1 and block.content_hash is None

    def is_cached(self, block_id: int) -> bool:
        return self._blocks[block_id].content_hash is not None

    # --- hashing --------------------------------------------------------------------------------------------------

    def root_hash(self, cache_salt: str | None) -> bytes:
        """Parent of a first block: requests share blocks only with those of the same salt (None is one of its own)."""
        salted = b"\x00" if cache_salt is None else b"\x01" + cache_salt.encode("utf-8", "surrogatepass")
        return blake2b(salted, digest_size=_HASH_BYTES, key=self._key).digest()

    def block_hash(self, parent_hash: bytes, token_ids: Sequence[int]) -> bytes:
        """Hash of a full block of token_ids after the prefix that parent_hash stands for."""
        return blake2b(parent_hash + array("q", token_ids).tobytes(), digest_size=_HASH_BYTES, key=self._key).digest()

    # --- prefix cache ---------------------------------------------------------------------------------------------

    def find_prefix(self, block_hashes: Iterable[bytes]) -> list[int]:
        """Ids of the cached blocks that spell the longest prefix of the chain. Takes no reference."""
        found = []
        for content_hash in block_hashes:
            block_id = self._cached.get(content_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_free_after(self, block_ids: Iterable[int]) -> int:
        """Free blocks left once these, some of which may be free themselves, are acquired."""
        return len(self._free) - sum(1 for block_id in block_ids if self._blocks[block_id].ref_count == 0)

    def publish(self, block_id: int, content_hash: bytes) -> None:
        """Make a held block, whose tokens are all committed and computed, findable; the first of equal ones stays."""
        block = self._blocks[block_id]
        if not self.enable_prefix_caching or block.content_hash is not None or content_hash in self._cached:
            return
        block.content_hash = content_hash
        self._cached[content_hash] = block_id

    def unpublish(self, block_id: int) -> None:
        """Make a block, that its one holder is about to write into again, findable no more."""
        self._forget(self._blocks[block_id])

    # --- references -----------------------------------------------------------------------------------------------

    def acquire(self, block_ids: Iterable[int]) -> None:
        """One more holder of each: cached blocks found by find_prefix, or the table of a forked sequence."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                del self._free[block_id]
            block.ref_count += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one holder each and no content, evicting cached ones as needed.

        The caller checks num_free first: asking for more is a bug and raises ValueError before anything is taken.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block_id, _ = self._free.popitem(last=False)
            block = self._blocks[block_id]
            self._forget(block)
            block.ref_count = 1
            taken.append(block_id)
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        """One holder less of each block of a table, given in table order; the tail becomes evictable first."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if block.ref_count < 1:
                raise ValueError(f"block {block_id} is released, but nobody holds it")
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free[block_id] = None
                self._free.move_to_end(block_id, last=block.content_hash is not None)

    def _forget(self, block: Block) -> None:
        if block.content_hash is not None:
            del self._cached[block.content_hash]
            block.content_hash = None

    # --- invariants -----------------------------------------------------------------------------------------------

    def check_invariants(self, block_tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raises RuntimeError on the first broken invariant. block_tables: those of all live sequences; given them,
        every reference count must equal the number of tables that hold the block."""
        for block in self._blocks:
            if (block.ref_count == 0) != (block.block_id in self._free) or block.ref_count < 0:
                raise RuntimeError(f"{block} is {'' if block.block_id in self._free else 'not '}in the free list")
            if block.content_hash is not None and self._cached.get(block.content_hash) != block.block_id:
                raise RuntimeError(f"{block} is cached under a hash that leads elsewhere")
        published = sum(1 for block in self._blocks if block.content_hash is not None)
        if len(self._cached) != published:
            raise RuntimeError(f"{len(self._cached)} hashes lead to {published} cached blocks")
        if block_tables is not None:
            holders = Counter(block_id for table in block_tables for block_id in table)
            for block in self._blocks:
                if block.ref_count != holders[block.block_id]:
                    raise RuntimeError(f"{block} is held by {holders[block.block_id]} block tables")
