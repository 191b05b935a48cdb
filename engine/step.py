"""What one step hands from phase to phase: the plan, the masks, the outcome. Frozen, and stamped with the step's id.

The stamp makes a stale hand-off an error: a mask row of another step is no mask (DESIGN rule 1). What there is one of a
row and step is a named tuple, which is made in a third of the time that a frozen dataclass takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.logits import MissingMask
from safegen.engine.request import TokenLogprobs
from safegen.engine.sequence import Sequence
from safegen.errors import EngineError, SafegenError
from safegen.grammars.constraint import MaskRows


class Span(NamedTuple):
    """Tokens start .. start + num_tokens - 1 of a sequence, computed in this step. num_sampled: rows whose logits are
    wanted, that of the last committed token and of each draft token, else none."""

    sequence: Sequence
    start: int
    num_tokens: int
    num_sampled: int

    @classmethod
    def of(cls, sequence: Sequence, start: int, num_tokens: int) -> Span:
        return cls(sequence, start, num_tokens, max(0, start + num_tokens - sequence.num_tokens + 1))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the scheduler decided. copies: (source, destination) blocks, to be made in this order before the forward."""

    step_id: int
    spans: tuple[Span, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_preempted: int = 0


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Mask rows of a step, one a sampled row; those of unconstrained sequences mean nothing. place: sequence -> its
    first row. failed: sequences whose constraint raised."""

    step_id: int
    rows: MaskRows
    place: dict[Sequence, int] = field(default_factory=dict)
    failed: dict[Sequence, Exception] = field(default_factory=dict)

    def row(self, sequence: Sequence, offset: int, step_id: int) -> int | None:
        """Which of `rows` is the mask of the sequence's sampled row `offset`; None for an unconstrained sequence
        alone."""
        if sequence.constraint is None:
            return None
        if sequence in self.failed:
            raise self.failed[sequence]
        place = self.place.get(sequence)
        if step_id != self.step_id or place is None:
            raise MissingMask(
                f"no mask of step {step_id} for sequence {sequence.index} of request {sequence.request.request_id!r}"
            )
        return place + offset

    def for_forward(self, plan: StepPlan) -> RowMasks | None:
        """What the backend may leave out: illegal ids, but for rows whose raw log-probabilities are asked for."""
        if not self.place:
            return None
        restricted = [
            span.sequence in self.place and span.sequence.request.params.logprobs is None
            for span in plan.spans
            for _ in range(span.num_sampled)
        ]
        return RowMasks(self.rows.words[: len(restricted)], np.array(restricted, dtype=np.bool_))


class Sampled(NamedTuple):
    """One drawn token for the request's sequence of that index."""

    sequence_index: int
    token_id: int
    logprobs: TokenLogprobs | None


class SpanOutcome(NamedTuple):
    """tokens: one drawn token for each index the sequence stands for; none if nothing was sampled. error: the row's
    own failure."""

    span: Span
    tokens: tuple[Sampled, ...]
    error: Exception | None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    step_id: int
    outcomes: list[SpanOutcome]


def build_batch(plan: StepPlan, block_size: int, num_ahead: int = 0) -> ForwardBatch:
    """Lay out a plan as arrays. num_ahead: tokens past each span that the block table is to reach. Ids of tokens that
    are not committed yet are 0."""
    ids, position, slot, context_len, sampled_rows = (array("i") for _ in range(5))
    query_start = array("i", (0,))
    for sequence, start, num_tokens, num_sampled in plan.spans:
        stop, blocks = start + num_tokens, sequence.block_table
        known = sequence.token_ids(start, stop)
        ids.extend(known if len(known) == num_tokens else known + [0] * (num_tokens - len(known)))
        position.extend(range(start, stop))
        slot.extend([blocks[place // block_size] * block_size + place % block_size for place in range(start, stop)])
        context_len.append(stop)
        query_start.append(len(ids))
        sampled_rows.extend(range(len(ids) - num_sampled, len(ids)))
    return ForwardBatch(
        step_id=plan.step_id,
        ids=_int32(ids),
        position=_int32(position),
        slot=_int32(slot),
        query_start=_int32(query_start),
        context_len=_int32(context_len),
        block_table=_block_table(plan.spans, num_ahead, block_size),
        sampled_rows=_int32(sampled_rows),
        block_size=block_size,
    )


def _int32(numbers: array[int]) -> NDArray[np.int32]:
    return np.array(numbers, dtype=np.int32)


def _block_table(spans: Ids[Span], num_ahead: int, block_size: int) -> NDArray[np.int32]:
    counts = [-(-(span.start + span.num_tokens + num_ahead) // block_size) for span in spans]
    most = max(counts)
    table = array("i")
    for span, count in zip(spans, counts):
        table.extend(span.sequence.block_table[:count])
        table.extend((0,) * (most - count))
    return _int32(table).reshape(len(counts), most)


def row_error(exc: Exception, sequence: Sequence) -> Exception:
    """What a FinishedEvent carries: our own errors as they are, others as the cause of an EngineError."""
    if isinstance(exc, SafegenError):
        return exc
    error = EngineError(f"sequence {sequence.index} of request {sequence.request.request_id!r} failed: {exc!r}")
    error.__cause__ = exc
    return error
