"""One sequence: the one mutable state of a request, written by the engine thread only.

A request with n > 1 begins as one sequence that stands for all n (`stands_for`); when its prompt is computed it forks
into n that share the prompt's blocks. A sequence has no phase: `num_computed_tokens` chases `num_tokens_with_draft`,
and the row of its last token is sampled when it arrives there. Only `commit` and `cut` touch its output ids.

Committed is not settled: the constraint may still take output back (engine/retract.py). `take_settled` hands each token
to the caller once, when no retract can reach it any more; log-probabilities wait here until then.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, replace

from safegen.engine.block_pool import BlockPool
from safegen.engine.closing import Closing, Patience
from safegen.engine.logits import History, LogitsPipeline
from safegen.engine.origins import Origins
from safegen.engine.request import DraftCounts, Request, TokenLogprobs
from safegen.engine.speculate.base import DraftPart
from safegen.engine.stops import StopMatcher
from safegen.grammars.constraint import Constraint


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the sequences of one request share. arrival: rank of its admission, the order of service. max_tokens: output
    tokens it may take, never more than the context leaves. submitted_s: engine clock. max_retracts: how often each
    sequence may take output back."""

    request: Request
    arrival: int
    submitted_s: float
    seed: int
    max_tokens: int
    pipeline: LogitsPipeline
    max_retracts: int


class Sequence:
    """Tokens, blocks and constraint of one of a request's n sequences."""

    __slots__ = (
        "_block_hashes",
        "_held_logprobs",
        "_output_counts",
        "_token_ids",
        "block_table",
        "closing",
        "constraint",
        "context",
        "draft",
        "draft_counts",
        "draft_parts",
        "first_scheduled_s",
        "first_token_s",
        "index",
        "is_closable",
        "mask_s",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_emitted_tokens",
        "num_forwards",
        "num_output_tokens",
        "num_prompt_tokens",
        "num_retracts",
        "order",
        "origins",
        "patience",
        "request",
        "stands_for",
        "stops",
    )

    def __init__(self, context: RequestContext, index: int, stands_for: tuple[int, ...]) -> None:
        request = context.request
        self.context = context
        self.request = request
        self.index = index
        self.order = (context.arrival, index)  # rank of service: first come, first served
        self.stands_for = stands_for
        self._token_ids = list(request.prompt_ids)
        self.num_prompt_tokens = len(request.prompt_ids)
        self.num_output_tokens = 0
        self.draft: tuple[int, ...] = ()
        self.draft_parts: tuple[DraftPart, ...] = ()
        self.draft_counts: dict[str, DraftCounts] = {}
        self.num_forwards = 0
        self.num_computed_tokens = 0
        self.block_table = array("i")  # int32: a step copies it into its own table
        self._block_hashes: list[bytes] = []
        self._output_counts: Counter[int] = Counter()
        self._held_logprobs: list[TokenLogprobs] = []
        self.origins = Origins() if request.wants_origins else None
        self.num_emitted_tokens = 0
        self.num_retracts = 0
        self.constraint: Constraint | None = request.constraint
        self.closing: Closing | None = None
        self.is_closable = True
        self.patience = Patience()
        self.stops = StopMatcher(request.params.stop)
        self.num_cached_tokens: int | None = None
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.mask_s = 0.0

    # --- tokens ---------------------------------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Committed tokens, prompt and output."""
        return len(self._token_ids)

    @property
    def num_tokens_with_draft(self) -> int:
        return len(self._token_ids) + len(self.draft)

    @property
    def num_tokens_left(self) -> int:
        """Output tokens that may still be committed."""
        return self.context.max_tokens - self.num_output_tokens

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Committed tokens and draft at positions start .. stop - 1."""
        committed = self._token_ids[start:stop]
        return committed + list(self.draft[: stop - start - len(committed)]) if self.draft else committed

    def output_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Output tokens start .. stop - 1."""
        return tuple(self._token_ids[self.num_prompt_tokens + start : self.num_prompt_tokens + stop])

    def history(self, num_drafted: int = 0) -> History:
        """What a row is drawn after: the output, and so many tokens of the draft."""
        if not num_drafted:
            return History(self.num_output_tokens, self._output_counts)
        counts = self._output_counts
        if self.context.pipeline.needs_counts:
            counts = counts + Counter(self.draft[:num_drafted])
        return History(self.num_output_tokens + num_drafted, counts)

    def commit(self, ids: tuple[int, ...], logprobs: TokenLogprobs | None = None) -> None:
        """Append output tokens. logprobs: of the one token, if asked for."""
        self._token_ids.extend(ids)
        self.num_output_tokens += len(ids)
        if logprobs is not None:
            self._held_logprobs.append(logprobs)
        if self.context.pipeline.needs_counts:
            self._output_counts.update(ids)

    def cut(self, kept_tokens: int) -> tuple[int, ...]:
        """Take back the output past the first kept_tokens, which are at least those emitted; returns it.

        If the sequence goes on, `Scheduler.retracted` must follow: blocks, hashes and `num_computed_tokens` still cover
        what is gone.
        """
        dropped = self.output_ids(kept_tokens, self.num_output_tokens)
        del self._token_ids[self.num_prompt_tokens + kept_tokens :]
        self.num_output_tokens = kept_tokens
        del self._held_logprobs[kept_tokens - self.num_emitted_tokens :]
        if self.origins is not None:
            self.origins.cut(kept_tokens)
        if self.context.pipeline.needs_counts:
            self._output_counts -= Counter(dropped)  # in place, and leaves no zero behind
        self.drop_draft()
        return dropped

    def take_settled(self, num_settled: int) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """Output tokens up to num_settled that were not taken yet, with their log-probabilities (if asked for)."""
        start = self.num_emitted_tokens
        stop = min(num_settled, self.num_output_tokens)
        if stop <= start:
            return (), ()
        logprobs: tuple[TokenLogprobs, ...] = ()
        if self._held_logprobs:
            logprobs = tuple(self._held_logprobs[: stop - start])
            del self._held_logprobs[: stop - start]
        self.num_emitted_tokens = stop
        return self.output_ids(start, stop), logprobs

    # --- draft ----------------------------------------------------------------------------------------------------

    def set_draft(self, parts: tuple[DraftPart, ...]) -> None:
        """Guessed tokens after the committed ones, pending until a forward verifies them."""
        self.draft_parts = parts
        self.draft = tuple(token_id for part in parts for token_id in part.ids)

    def drop_draft(self) -> None:
        self.draft, self.draft_parts = (), ()

    # --- blocks ---------------------------------------------------------------------------------------------------

    def block_hashes(self, pool: BlockPool, count: int) -> list[bytes]:
        """The content hash chain of the first `count` full blocks, over committed tokens only."""
        block_size = pool.block_size
        if count * block_size > self.num_tokens:
            raise ValueError(f"{count} blocks of {block_size} reach past the {self.num_tokens} committed tokens")
        while len(self._block_hashes) < count:
            place = len(self._block_hashes)
            parent = self._block_hashes[-1] if place else pool.root_hash(self.request.cache_salt)
            ids = self._token_ids[place * block_size : (place + 1) * block_size]
            self._block_hashes.append(pool.block_hash(parent, ids))
        return self._block_hashes[:count]

    def trim_block_hashes(self, count: int) -> None:
        """Forget the chain past `count` blocks: their tokens are no longer this sequence's."""
        del self._block_hashes[count:]

    def fork(self, index: int) -> Sequence:
        """The request's sequence `index`, at the same point. Takes no reference of blocks: the scheduler does."""
        if self.num_output_tokens:
            raise ValueError(f"sequence {self.index} of {self.request.request_id!r} has output already; it cannot fork")
        twin = Sequence(self.context, index, (index,))
        twin.num_computed_tokens = self.num_computed_tokens
        twin.block_table = self.block_table[:]
        twin._block_hashes = list(self._block_hashes)
        twin.constraint = None if self.constraint is None else self.constraint.fork()
        twin.closing = self.closing
        twin.is_closable = self.is_closable
        twin.patience = replace(self.patience)
        twin.num_cached_tokens = self.num_cached_tokens
        twin.first_scheduled_s = self.first_scheduled_s
        twin.mask_s = self.mask_s
        twin.num_forwards = self.num_forwards
        return twin
