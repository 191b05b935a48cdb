"""Where a drafting model keeps its keys and values: in blocks of its own, or in those of the sequence.

`OwnCache` is for a second checkpoint. Its keys have another size, so they cannot lie in the engine's blocks: it has a
pool of its own, of as many blocks as the engine's. Both are paid from `kv_cache_memory`:

    blocks of each = floor(kv_cache_memory / (block_bytes of the model + block_bytes of the draft model))

so that what fits the engine's pool fits this one (`backend.WithDraftModel` does the sum). It keeps what it has computed
of a sequence and compares it, token by token, with the sequence as it is now: whatever a rejection, a retract or a
preemption has changed, what differs is computed again. Beginnings of prompts are shared as in the engine's pool. Where
blocks are short, those of sequences that do not draft now go first, and then drafts get shorter.

`SharedCache` is for early exit: the engine's own blocks. It writes only where the sequence alone will write next, past
what is computed, in blocks that are its own (`Scheduler.reserve_draft`), and the verifying forward writes the same
again; so it has nothing to roll back.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from safegen.engine.backend import ForwardBatch
from safegen.engine.block_pool import BlockPool
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import Ask


@dataclass(slots=True)
class Lane:
    """A sequence while it drafts. block_table: where its keys lie. num_cached: its first tokens, whose keys are there.
    pending: the tokens after those. room: tokens that may be drafted. known: kept up with the tokens in the cache."""

    block_table: array[int]
    num_cached: int
    pending: list[int]
    room: int
    known: list[int]

    def computed(self, count: int) -> None:
        """The first `count` pending tokens are in the cache."""
        self.known += self.pending[:count]
        self.num_cached += count
        del self.pending[:count]


class DraftCache(Protocol):
    """Called by the engine's thread alone."""

    @property
    def block_size(self) -> int: ...

    def lanes(self, asks: Ids[Ask]) -> list[Lane | None]:
        """One an ask, with the last token before the draft pending at least; None where there is no room now, and for
        a sequence that waits: where it is admitted without its draft because that is too long, what was drafted has
        decided whether it is verified, and a sampled draft then has no longer the law q."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Give back whatever is kept of the sequence."""
        ...


@dataclass(slots=True)
class _Held:
    """What is in the cache of a sequence: its tokens, their blocks, and the hashes of those that others may find."""

    ids: list[int] = field(default_factory=list)
    block_table: array[int] = field(default_factory=lambda: array("i"))
    hashes: list[bytes] = field(default_factory=list)


class OwnCache:
    """`DraftCache` with blocks of its own. max_context: tokens that the draft model can look back on."""

    def __init__(self, max_context: int, *, enable_prefix_caching: bool = True) -> None:
        self._max_context = max_context
        self._enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(0, 1, enable_prefix_caching=False)
        self._held: OrderedDict[Sequence, _Held] = OrderedDict()  # longest not asked for first

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """The pool's size, before the first lane."""
        self._pool = BlockPool(num_blocks, block_size, enable_prefix_caching=self._enable_prefix_caching)

    @property
    def block_size(self) -> int:
        return self._pool.block_size

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def lanes(self, asks: Ids[Ask]) -> list[Lane | None]:
        drafting = {ask.sequence for ask in asks}
        return [self._lane(ask, drafting) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        held = self._held.pop(sequence, None)
        if held is not None:
            self._pool.release(held.block_table)

    def _lane(self, ask: Ask, drafting: set[Sequence]) -> Lane | None:
        sequence = ask.sequence
        if not sequence.block_table:
            return None
        wanted = [*sequence.token_ids(0, sequence.num_tokens), *ask.prefix]
        held = self._held.get(sequence)
        if held is None:
            held = self._held[sequence] = self._begin(sequence)
        self._held.move_to_end(sequence)
        self._rewind(held, min(_num_common(held.ids, wanted), len(wanted) - 1))
        self._publish(held, sequence)
        num_cached = len(held.ids)
        room = min(ask.room, self._max_context - len(wanted) + 1)
        if room > 0:
            room = min(room, self._reserve(held, len(wanted) + room - 1, drafting) - len(wanted) + 1)
        return Lane(held.block_table, num_cached, wanted[num_cached:], room, held.ids) if room > 0 else None

    def _begin(self, sequence: Sequence) -> _Held:
        """What is known of its committed tokens already; the last one is left out, for its row."""
        held, pool = _Held(), self._pool
        if not pool.enable_prefix_caching:
            return held
        hashes = self._hashes(held, sequence, (sequence.num_tokens - 1) // pool.block_size)
        held.block_table.extend(pool.find_prefix(hashes))
        pool.acquire(held.block_table)
        held.hashes = hashes[: len(held.block_table)]
        held.ids = sequence.token_ids(0, len(held.block_table) * pool.block_size)
        return held

    def _rewind(self, held: _Held, num_tokens: int) -> None:
        """Forget all but the first num_tokens, and a few more where their block is not to be written into."""
        if num_tokens == len(held.ids):
            return
        pool, num_kept = self._pool, num_tokens // self._pool.block_size
        if num_kept < len(held.block_table) and not pool.is_plain(held.block_table[num_kept]):
            num_tokens = num_kept * pool.block_size
        else:
            num_kept += 1
        pool.release(held.block_table[num_kept:])
        del held.block_table[num_kept:], held.ids[num_tokens:], held.hashes[num_tokens // pool.block_size :]

    def _publish(self, held: _Held, sequence: Sequence) -> None:
        """Let others find the blocks that are full of committed tokens."""
        pool, known = self._pool, len(held.hashes)
        if pool.enable_prefix_caching:
            held.hashes = self._hashes(held, sequence, min(len(held.ids), sequence.num_tokens) // pool.block_size)
            for place in range(known, len(held.hashes)):
                pool.publish(held.block_table[place], held.hashes[place])

    def _hashes(self, held: _Held, sequence: Sequence, count: int) -> list[bytes]:
        """Of the sequence's first blocks, on from those held."""
        pool, hashes = self._pool, list(held.hashes)
        while len(hashes) < count:
            place = len(hashes)
            parent = hashes[-1] if place else pool.root_hash(sequence.request.cache_salt)
            ids = sequence.token_ids(place * pool.block_size, (place + 1) * pool.block_size)
            hashes.append(pool.block_hash(parent, ids))
        return hashes

    def _reserve(self, held: _Held, num_tokens: int, drafting: set[Sequence]) -> int:
        """Blocks for num_tokens, as far as they can be had; the tokens that there are blocks for."""
        size = self._pool.block_size
        missing = -(-num_tokens // size) - len(held.block_table)
        for idle in [sequence for sequence in self._held if sequence not in drafting]:
            if missing <= self._pool.num_free:
                break
            self.release(idle)
        held.block_table.extend(self._pool.allocate(max(0, min(missing, self._pool.num_free))))
        return len(held.block_table) * size


Reserve = Callable[[Sequence, int], int]


class SharedCache:
    """`DraftCache` in the engine's own blocks."""

    def __init__(self) -> None:
        self._reserve: Reserve = lambda sequence, num_tokens: 0
        self.block_size = 1

    def attach(self, reserve: Reserve, block_size: int) -> None:
        """reserve: `Scheduler.reserve_draft`."""
        self._reserve, self.block_size = reserve, block_size

    def lanes(self, asks: Ids[Ask]) -> list[Lane | None]:
        return [self._lane(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""

    def _lane(self, ask: Ask) -> Lane | None:
        sequence, num_cached = ask.sequence, ask.sequence.num_computed_tokens
        if num_cached != sequence.num_tokens - 1:  # the prompt comes first
            return None
        pending = [*sequence.token_ids(num_cached, sequence.num_tokens), *ask.prefix]
        num_tokens = len(pending) - 1 + ask.room
        room = min(num_tokens, self._reserve(sequence, num_tokens)) - len(pending) + 1
        return Lane(sequence.block_table, num_cached, pending, room, []) if room > 0 else None


def _num_common(left: list[int], right: list[int]) -> int:
    """Length of the longest common beginning."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(place for place in range(shorter) if left[place] != right[place])


def draft_batch(lanes: Ids[Lane], counts: Ids[int], block_size: int, *, is_sampled: bool) -> ForwardBatch:
    """The first counts[i] pending tokens of each lane. is_sampled: the last one's logits are wanted."""
    stops = np.array([lane.num_cached + count for lane, count in zip(lanes, counts)], dtype=np.int32)
    num_blocks = -(-stops // block_size)
    block_table = np.zeros((len(lanes), int(num_blocks.max())), dtype=np.int32)
    for row, lane, count in zip(block_table, lanes, num_blocks.tolist()):
        row[:count] = lane.block_table[:count]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lane_of = np.repeat(np.arange(len(lanes)), counts)
    position = (stops[lane_of] + np.arange(starts[-1]) - starts[1:][lane_of]).astype(np.int32)
    slot = block_table[lane_of, position // block_size] * block_size + position % block_size
    return ForwardBatch(
        step_id=0,
        ids=np.array([each for lane, count in zip(lanes, counts) for each in lane.pending[:count]], dtype=np.int32),
        position=position,
        slot=slot.astype(np.int32, copy=False),
        query_start=starts,
        context_len=stops,
        block_table=block_table,
        sampled_rows=starts[1:] - 1 if is_sampled else starts[:0],
        block_size=block_size,
    )
