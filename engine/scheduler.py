"""Decides what each step computes. No phases: every sequence has pending tokens, and a step computes some of them.

Order is first come, first served, by (arrival, index), in both lists. Running sequences go first; each gets at least
one token in every step, because what is left of the token budget is kept for those after it, so a long prompt being
computed in chunks never stops the others. Then waiting sequences are admitted from the front, with no overtaking: only
if the blocks of all their known tokens are free, beyond a small headroom.

When a running sequence lacks a block the newest running one is preempted: its blocks are released, its output is kept,
and it waits, in its old rank, to be computed again (mostly out of the prefix cache). It needs at least what it gave up,
so it does not come back in the same step. The newest comes last in the plan, so whatever is preempted has not been
planned yet. The oldest can take everybody's blocks and the door admits only what fits alone: some sequence always
advances.

Forked sequences share blocks; the first to write into a shared block gets a copy. After a retract that may be any block
of the table, and one that others found in the prefix cache; a block of nobody else is taken out of the cache and
written in place, so that a retract never costs a sequence that runs alone a block. One writer: the engine thread.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from safegen.engine.block_pool import BlockPool
from safegen.engine.config import EngineConfig
from safegen.engine.sequence import Sequence
from safegen.engine.step import Span, StepPlan

_BY_ORDER = attrgetter("order")
_HEADROOM_SHARE = 100


class Scheduler:
    """Owns the running and waiting lists and all block tables."""

    def __init__(self, pool: BlockPool, config: EngineConfig) -> None:
        self.pool = pool
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefix_hit_tokens = 0
        self._max_num_seqs = config.max_num_seqs
        self._max_num_batched_tokens = config.max_num_batched_tokens

    def sequences(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for admission."""
        insort(self.waiting, sequence, key=_BY_ORDER)

    def discard(self, sequence: Sequence) -> None:
        """Drop a sequence, running, waiting or neither, and release its blocks."""
        for sequences in (self.running, self.waiting):
            if sequence in sequences:
                sequences.remove(sequence)
        self._release(sequence)

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A further sequence of the same request, sharing the prompt's blocks; beyond max_num_seqs it waits, and gives
        them up."""
        twin = sequence.fork(index)
        self.pool.acquire(twin.block_table)
        if len(self.running) < self._max_num_seqs:
            insort(self.running, twin, key=_BY_ORDER)
        else:
            self._release(twin)
            self.add(twin)
        return twin

    def computed(self, span: Span) -> None:
        """Tokens of a span are in the cache: advance, and publish the blocks that are full of committed tokens."""
        self._advance(span, span.start, span.sequence.num_tokens)

    def accepted(self, span: Span) -> None:
        """The same for the drafted tokens that have become output. The last token of the output is in no cache, or is
        computed again because its row is needed; what else a rejected draft left in the cache is written over."""
        self._advance(span, span.sequence.num_computed_tokens, span.sequence.num_tokens - 1)

    def _advance(self, span: Span, start: int, limit: int) -> None:
        sequence, pool = span.sequence, self.pool
        sequence.num_computed_tokens = min(span.start + span.num_tokens, limit)
        if not pool.enable_prefix_caching:
            return
        first, last = start // pool.block_size, sequence.num_computed_tokens // pool.block_size
        if last > first:
            hashes = sequence.block_hashes(pool, last)
            for place in range(first, last):
                pool.publish(sequence.block_table[place], hashes[place])

    def retracted(self, sequence: Sequence) -> None:
        """Output was taken back: give up the blocks past it. The last token left is computed again, for its row."""
        block_size, num_tokens = self.pool.block_size, sequence.num_tokens
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, num_tokens - 1)
        sequence.trim_block_hashes(num_tokens // block_size)
        num_blocks = -(-sequence.num_computed_tokens // block_size)
        self.pool.release(sequence.block_table[num_blocks:])
        del sequence.block_table[num_blocks:]

    def candidates(self) -> list[Sequence]:
        """The waiting sequences that the next plan may admit."""
        return self.waiting[: max(0, self._max_num_seqs - len(self.running))]

    # --- planning -------------------------------------------------------------------------------------------------

    def plan(self, step_id: int) -> StepPlan:
        spans: list[Span] = []
        copies: list[tuple[int, int]] = []
        preempted_before = self.num_preemptions
        budget = self._max_num_batched_tokens
        place = 0
        while place < len(self.running):
            sequence = self.running[place]
            num_after = len(self.running) - place - 1
            pending = sequence.num_tokens_with_draft - sequence.num_computed_tokens
            num_tokens = min(pending, budget - num_after)
            if sequence.draft:
                num_tokens = self._within_room(sequence, num_tokens, num_after)
            if not self._make_room(sequence, num_tokens, copies):
                break
            spans.append(Span.of(sequence, sequence.num_computed_tokens, num_tokens))
            budget -= num_tokens
            place += 1
        num_preempted = self.num_preemptions - preempted_before
        self._admit(budget, spans)
        return StepPlan(step_id, tuple(spans), tuple(copies), num_preempted)

    def _within_room(self, sequence: Sequence, num_tokens: int, num_after: int) -> int:
        """num_tokens, less what of the draft has no block: a guess preempts nobody, nor takes the last block that one
        of the num_after sequences to come may need."""
        start, block_size = sequence.num_computed_tokens, self.pool.block_size
        num_spare = max(0, self.pool.num_free - num_after - 1)
        room = (len(sequence.block_table) + num_spare) * block_size - start
        return min(num_tokens, max(room, sequence.num_tokens - start))

    def _make_room(self, sequence: Sequence, num_tokens: int, copies: list[tuple[int, int]]) -> bool:
        """Blocks for the next num_tokens of a running sequence, preempting the newest; False when that was itself."""
        pool, table = self.pool, sequence.block_table
        start = sequence.num_computed_tokens
        first = start // pool.block_size
        if start + num_tokens <= len(table) * pool.block_size and pool.is_plain(table[first]):
            return True
        while True:
            shared = first < len(table) and pool.ref_count(table[first]) > 1
            missing = -(-(start + num_tokens) // pool.block_size) - len(table)
            if max(0, missing) + shared <= pool.num_free:
                break
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        if shared:
            [copy] = pool.allocate(1)
            copies.append((table[first], copy))
            pool.release([table[first]])
            table[first] = copy
        elif first < len(table):
            pool.unpublish(table[first])
        if missing > 0:
            table.extend(pool.allocate(missing))
        return True

    def reserve(self, sequences: list[Sequence], num_tokens: int) -> bool:
        """Blocks for the next num_tokens of planned sequences, of those that are free; False, and nothing done, if they
        do not suffice."""
        size = self.pool.block_size
        missing = [-(-(each.num_computed_tokens + num_tokens) // size) - len(each.block_table) for each in sequences]
        if sum(count for count in missing if count > 0) > self.pool.num_free:
            return False
        for sequence, count in zip(sequences, missing):
            if count > 0:
                sequence.block_table.extend(self.pool.allocate(count))
        return True

    def reserve_draft(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of the next num_tokens of a running sequence may be written before they are planned: those with a
        block that is its own alone. Takes free blocks for them, but leaves one to each running sequence."""
        pool, table, start = self.pool, sequence.block_table, sequence.num_computed_tokens
        first = start // pool.block_size
        if not table or (first < len(table) and not pool.is_plain(table[first])):
            return 0
        missing = -(-(start + num_tokens) // pool.block_size) - len(table)
        num_spare = max(0, pool.num_free - len(self.running))
        if missing > 0 and num_spare > 0:
            table.extend(pool.allocate(min(missing, num_spare)))
        return max(0, min(num_tokens, len(table) * pool.block_size - start))

    def _admit(self, budget: int, spans: list[Span]) -> None:
        pool = self.pool
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            hits = self._find_prefix(sequence)
            headroom = max(1, pool.num_blocks // _HEADROOM_SHARE) if self.running else 0
            num_free = pool.num_free_after(hits) - headroom
            num_new = -(-sequence.num_tokens_with_draft // pool.block_size) - len(hits)
            if num_new > num_free:
                sequence.drop_draft()
                num_new = -(-sequence.num_tokens // pool.block_size) - len(hits)
            if num_new > num_free:
                return
            self.waiting.pop(0)
            pool.acquire(hits)
            sequence.block_table = array("i", hits + pool.allocate(num_new))
            num_hit_tokens = len(hits) * pool.block_size
            sequence.num_computed_tokens = num_hit_tokens
            if sequence.num_cached_tokens is None:
                sequence.num_cached_tokens = num_hit_tokens
            self.num_prefix_hit_tokens += num_hit_tokens
            insort(self.running, sequence, key=_BY_ORDER)
            num_tokens = min(sequence.num_tokens_with_draft - num_hit_tokens, budget)
            spans.append(Span.of(sequence, num_hit_tokens, num_tokens))
            budget -= num_tokens

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's tokens, the last token left out: its row has to be computed."""
        if not self.pool.enable_prefix_caching:
            return []
        count = (sequence.num_tokens - 1) // self.pool.block_size
        return self.pool.find_prefix(sequence.block_hashes(self.pool, count))

    # --- releasing ------------------------------------------------------------------------------------------------

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.drop_draft()
        self.num_preemptions += 1
        self.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = array("i")
        sequence.num_computed_tokens = 0
