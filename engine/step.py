"""What one step hands from phase to phase: the plan, the masks, the outcome. Frozen, and stamped with the step's id.

The stamp makes a stale hand-off an error: a mask row of another step is no mask (DESIGN rule 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.logits import MissingMask
from safegen.engine.request import TokenLogprobs
from safegen.engine.sequence import Sequence
from safegen.grammars.constraint import MaskRows


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start .. start + num_tokens - 1 of a sequence, computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def num_sampled(self) -> int:
        """Rows whose logits are wanted: that of the last committed token and of each draft token, else none."""
        stop = self.start + self.num_tokens
        return max(0, stop - self.sequence.num_tokens + 1)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the scheduler decided. copies: (source, destination) blocks, to be made in this order before the forward."""

    step_id: int
    spans: tuple[Span, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_preempted: int = 0


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Mask rows of a step, one a sampled row; those of unconstrained sequences mean nothing. place: order of service of
    a sequence -> its first row. failed: sequences whose constraint raised."""

    step_id: int
    rows: MaskRows
    place: dict[tuple[int, int], int] = field(default_factory=dict)
    failed: dict[tuple[int, int], Exception] = field(default_factory=dict)

    def row(self, sequence: Sequence, offset: int, step_id: int) -> NDArray[np.int32] | None:
        """The mask of the sequence's sampled row `offset`; None for an unconstrained sequence alone."""
        if sequence.constraint is None:
            return None
        if sequence.order in self.failed:
            raise self.failed[sequence.order]
        if step_id != self.step_id or sequence.order not in self.place:
            raise MissingMask(
                f"no mask of step {step_id} for sequence {sequence.index} of request {sequence.request.request_id!r}"
            )
        words: NDArray[np.int32] = self.rows.words[self.place[sequence.order] + offset]
        return words

    def for_forward(self, plan: StepPlan) -> RowMasks | None:
        """What the backend may leave out: illegal ids, but for rows whose raw log-probabilities are asked for."""
        if not self.place:
            return None
        restricted = [
            span.sequence.order in self.place and span.sequence.request.params.logprobs is None
            for span in plan.spans
            for _ in range(span.num_sampled)
        ]
        return RowMasks(self.rows.words[: len(restricted)], np.array(restricted, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token for the request's sequence `index`."""

    index: int
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class SpanOutcome:
    """tokens: one drawn token for each index the sequence stands for; none if nothing was sampled. error: the row's
    own failure."""

    span: Span
    tokens: tuple[Sampled, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    step_id: int
    outcomes: tuple[SpanOutcome, ...]


def build_batch(plan: StepPlan, block_size: int) -> ForwardBatch:
    """Lay out a plan as arrays."""
    spans = plan.spans
    lengths = np.array([span.num_tokens for span in spans], dtype=np.int32)
    query_start = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    context_len = np.array([span.start + span.num_tokens for span in spans], dtype=np.int32)
    num_blocks = -(-context_len // block_size)
    block_table = np.zeros((len(spans), int(num_blocks.max())), dtype=np.int32)
    for row, span in enumerate(spans):
        block_table[row, : num_blocks[row]] = span.sequence.block_table[: num_blocks[row]]
    ids = [token for span in spans for token in span.sequence.token_ids(span.start, span.start + span.num_tokens)]
    sequence_of = np.repeat(np.arange(len(spans)), lengths)
    offset = np.arange(query_start[-1], dtype=np.int32) - query_start[sequence_of]
    position = (context_len - lengths)[sequence_of] + offset
    slot = block_table[sequence_of, position // block_size] * block_size + position % block_size
    sampled = [np.arange(end - span.num_sampled, end) for end, span in zip(query_start[1:], spans)]
    return ForwardBatch(
        step_id=plan.step_id,
        ids=np.array(ids, dtype=np.int32),
        position=position.astype(np.int32),
        slot=slot.astype(np.int32),
        query_start=query_start,
        context_len=context_len,
        block_table=block_table,
        sampled_rows=np.concatenate(sampled).astype(np.int32),
        block_size=block_size,
    )
