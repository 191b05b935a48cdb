"""A backend whose logits show every bookkeeping mistake of the engine.

Each cache slot holds a 64-bit fingerprint instead of keys and values: of the token and of the fingerprint before it, as
read back *through the block table that came with the batch*. Logits are drawn from a digest of all fingerprints of the
sequence, read back the same way. A wrong block, a stale prefix hit, a forgotten copy or a token that was never computed
gives other logits, hence other tokens. Slots start out as garbage and the tables are checked on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks

_PRIME = np.uint64(0x9E3779B97F4A7C15)
FAKE_VOCAB = 61


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer: a bijection that scatters neighbouring values."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def fingerprint(before: int, token_id: int, position: int) -> int:
    seed = (before * 3 + token_id * 1_000_003 + position * 97 + 1) & (2**64 - 1)
    return int(mix(np.array([seed], dtype=np.uint64))[0])


def prefix_logits(token_ids: list[int], vocab_size: int = FAKE_VOCAB) -> NDArray[np.float32]:
    """The logits after a whole sequence, computed without any cache: the oracle."""
    before, prints = 0, []
    for position, token_id in enumerate(token_ids):
        before = fingerprint(before, token_id, position)
        prints.append(before)
    return digest_logits(np.array(prints, dtype=np.uint64), vocab_size)


def digest_logits(prints: NDArray[np.uint64], vocab_size: int) -> NDArray[np.float32]:
    places = np.arange(1, prints.size + 1, dtype=np.uint64)
    digest = mix(prints + places * _PRIME).sum(dtype=np.uint64)
    words = mix(digest + np.arange(vocab_size, dtype=np.uint64) * _PRIME)
    return ((words >> np.uint64(40)).astype(np.float32) / np.float32(2**22)) - np.float32(2)


class FakeBackend:
    """Backend over fingerprints. on_forward runs in the middle of each forward, and may raise; check_writes is given
    the blocks that a forward writes to; shape_logits changes the logits."""

    takes_masks = False

    def __init__(self, vocab_size: int = FAKE_VOCAB, max_context: int = 512) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.batches: list[ForwardBatch] = []
        self.copies: list[tuple[int, int]] = []
        self.on_forward: Callable[[ForwardBatch], None] = lambda batch: None
        self.check_writes: Callable[[set[int]], None] = lambda block_ids: None
        self.shape_logits: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda logits: logits

    def bytes_per_block(self, block_size: int) -> int:
        return 8 * block_size

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.slots = mix(np.arange(num_blocks * block_size, dtype=np.uint64) + np.uint64(12345))
        self._block_size = block_size

    def copy_block(self, source: int, destination: int) -> None:
        size = self._block_size
        self.copies.append((source, destination))
        self.slots[destination * size : (destination + 1) * size] = self.slots[source * size : (source + 1) * size]

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        self.batches.append(batch)
        self.on_forward(batch)
        assert len(set(batch.slot.tolist())) == len(batch.slot), "two tokens of one step go to the same slot"
        self.check_writes(set((batch.slot // batch.block_size).tolist()))
        wanted = set(batch.sampled_rows.tolist())
        rows = []
        for number in range(len(batch.context_len)):
            start, stop = int(batch.query_start[number]), int(batch.query_start[number + 1])
            slots = self._slots_of(batch, number)
            assert batch.context_len[number] == batch.position[stop - 1] + 1
            for row in range(start, stop):
                position = int(batch.position[row])
                assert batch.slot[row] == slots[position], "the slot is not where the block table says"
                before = int(self.slots[slots[position - 1]]) if position else 0
                self.slots[batch.slot[row]] = fingerprint(before, int(batch.ids[row]), position)
                if row in wanted:
                    rows.append(digest_logits(self.slots[slots[: position + 1]], self.vocab_size))
        logits = np.stack(rows) if rows else np.empty((0, self.vocab_size), dtype=np.float32)
        return self.shape_logits(logits)

    def _slots_of(self, batch: ForwardBatch, number: int) -> NDArray[np.int64]:
        positions = np.arange(int(batch.context_len[number]))
        blocks = batch.block_table[number, positions // batch.block_size].astype(np.int64)
        slots: NDArray[np.int64] = blocks * batch.block_size + positions % batch.block_size
        return slots
