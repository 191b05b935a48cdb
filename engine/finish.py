"""The finish phase: from the logits and masks of a step to the tokens of each sequence that has come so far.

A sequence without a draft gets one token for each index that it stands for. One with a draft gets what
engine/speculate/verify.py makes of it: each of its rows is drawn as if it were the row of a step of its own.

Rows that mask and sampling parameters alone decide about are drawn natively, all in one call; the others (bias,
penalties, tokens before min_tokens, log-probabilities, sampled drafts) go through the pipeline of engine/logits.py,
which is the law of both. What a row raises stays in its sequence; past the first row it only ends the draft there,
because the next step asks for that row again, and raises then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safegen.engine import rng
from safegen.engine.logits import Law, Target, empty_mask, unusable
from safegen.engine.request import TokenLogprobs
from safegen.engine.sampler import draw, token_logprobs
from safegen.engine.speculate.base import DraftPart
from safegen.engine.speculate.verify import RowsEnd, verify
from safegen.engine.step import Sampled, Span, SpanOutcome, StepMasks, StepOutcome, StepPlan, row_error
from safegen.errors import EngineError
from safegen.kernels.sampling import Draw, DrawFault, SampleSettings, draw_tokens


def finish(
    plan: StepPlan, logits: NDArray[np.float32], masks: StepMasks, maxima: NDArray[np.float32] | None = None
) -> StepOutcome:
    """Draw the tokens after the last committed one of each sequence that has come so far. logits: [sampled rows, >=
    vocabulary of the masks]. maxima: of KnowsMaxima."""
    outcomes: list[SpanOutcome] = []
    draws: list[Draw] = []
    drawn_together: list[tuple[int, int, int]] = []  # places of outcomes, and of their first draws and rows
    next_row = 0
    for span in plan.spans:
        row, next_row = next_row, next_row + span.num_sampled
        tokens: tuple[Sampled, ...] = ()
        error: Exception | None = None
        if span.num_sampled:
            sequence = span.sequence
            try:
                mask_row = masks.row(sequence, 0, plan.step_id)
                settings = sequence.context.pipeline.plain_settings(sequence.num_output_tokens)
                if settings is None or (span.num_sampled > 1 and is_sampled(span)):
                    tokens = by_pipeline(span, logits[row : row + span.num_sampled], masks, mask_row)
                else:
                    drawn_together.append((len(outcomes), len(draws), row))
                    _ask(span, settings, row, mask_row, draws)
            except Exception as exc:
                error = row_error(exc, sequence)
        outcomes.append(SpanOutcome(span, tokens, error))
    if draws:
        ids, faults = draw_tokens(logits, masks.rows.vocab_size, masks.rows.words, draws, maxima)
        for place, first, row in drawn_together:
            span = outcomes[place].span
            outcome = None if first in faults else _lone_outcome(span, ids[first])
            if outcome is None:
                rows = logits[row : row + span.num_sampled]
                outcome = drawn_outcome(DrawnRows(span, rows, masks, draws[first].mask_row, ids, faults, first))
            outcomes[place] = outcome
    return StepOutcome(plan.step_id, outcomes)


def is_sampled(span: Span) -> bool:
    return any(part.probs is not None for part in span.sequence.draft_parts)


def _draft_of(span: Span) -> list[DraftPart]:
    """The part of the sequence's draft that this span has computed."""
    room, parts = span.num_sampled - 1, []
    for part in span.sequence.draft_parts:
        if room <= 0:
            break
        parts.append(part if len(part.ids) <= room else part.cut(room))
        room -= len(part.ids)
    return parts


def _ask(span: Span, settings: SampleSettings, row: int, mask_row: int | None, draws: list[Draw]) -> None:
    sequence = span.sequence
    place, attempt = sequence.num_output_tokens, sequence.num_retracts
    is_greedy = sequence.request.params.temperature == 0.0
    for index in sequence.stands_for:
        for offset in range(span.num_sampled):
            number = 0.0 if is_greedy else rng.uniform(sequence.context.seed, index, place + offset, attempt)
            draws.append(Draw(settings, row + offset, None if mask_row is None else mask_row + offset, number))


class _Pipeline:
    """`TargetRows` of a sequence by engine/logits.py. logits: [its sampled rows, >= vocabulary of the masks]."""

    def __init__(self, span: Span, logits: NDArray[np.float32], masks: StepMasks, mask_row: int | None) -> None:
        self._sequence = span.sequence
        self._logits = logits
        self._masks = masks.rows
        self._mask_row = mask_row
        self._index = span.sequence.stands_for[0]
        self._target: Target | None = None
        self._row = logits[0]

    def law(self, offset: int) -> Law:
        self._row = self._logits[offset, : self._masks.vocab_size]
        words = None if self._mask_row is None else self._masks.words[self._mask_row + offset]
        try:
            history = self._sequence.history(offset)
            self._target = self._sequence.context.pipeline.target(self._row, history, words)
        except EngineError as exc:
            if offset:
                raise RowsEnd from exc
            raise
        return self._target.law

    def draw(self, offset: int) -> int:
        return self.draw_from(self.law(offset), offset)

    def draw_from(self, law: Law, offset: int) -> int:
        return draw(law, self._number(offset, self._index, rng.OUTPUT))

    def draw_for(self, index: int, law: Law) -> int:
        """The first row's token of one of the indexes that the sequence stands for."""
        return draw(law, self._number(0, index, rng.OUTPUT))

    def coin(self, offset: int) -> float:
        return self._number(offset, self._index, rng.COIN)

    def _number(self, offset: int, index: int, stream: int) -> float:
        sequence = self._sequence
        place = sequence.num_output_tokens + offset
        return rng.uniform(sequence.context.seed, index, place, sequence.num_retracts, stream)

    def logprobs(self, token_id: int) -> TokenLogprobs | None:
        """Of the row asked for last, if they are wanted."""
        num_top = self._sequence.request.params.logprobs
        if num_top is None or self._target is None:
            return None
        return token_logprobs(self._row, self._target, token_id, num_top)


def by_pipeline(span: Span, logits: NDArray[np.float32], masks: StepMasks, mask_row: int | None) -> tuple[Sampled, ...]:
    rows, indexes = _Pipeline(span, logits, masks, mask_row), span.sequence.stands_for
    if span.num_sampled > 1:
        return tuple(Sampled(indexes[0], token, rows.logprobs(token)) for token in verify(_draft_of(span), rows))
    law = rows.law(0)
    tokens = [rows.draw_for(index, law) for index in indexes]
    return tuple(Sampled(index, token, rows.logprobs(token)) for index, token in zip(indexes, tokens))


class DrawnRows:
    """`TargetRows` of one-hot drafts whose draws were made together. ids, faults: of all draws; first: its own."""

    def __init__(
        self,
        span: Span,
        logits: NDArray[np.float32],
        masks: StepMasks,
        mask_row: int | None,
        ids: Sequence[int],
        faults: Mapping[int, DrawFault],
        first: int,
    ) -> None:
        self.span = span
        self._by_pipeline = (span, logits, masks, mask_row)
        self._ids, self._faults, self._first = ids, faults, first

    def draw(self, offset: int) -> int:
        place = self._first + offset
        if place in self._faults:
            if offset:
                raise RowsEnd
            raise _error_of(self._faults[place])
        token_id = self._ids[place]
        return _Pipeline(*self._by_pipeline).draw(offset) if self._is_held_back(token_id, offset) else token_id

    def _is_held_back(self, token_id: int, offset: int) -> bool:
        """A stop id before min-tokens, where another token is legal (of a lone legal one there may be no logit)."""
        span, _, masks, mask_row = self._by_pipeline
        sequence = span.sequence
        if not sequence.context.pipeline.holds_back(token_id, sequence.num_output_tokens + offset):
            return False
        if mask_row is None:
            return True
        return int(np.unpackbits(masks.rows.words[mask_row + offset].view(np.uint8)).sum()) > 1

    def law(self, offset: int) -> Law:
        raise EngineError("the laws of rows that were drawn together are not known")

    def draw_from(self, law: Law, offset: int) -> int:
        raise EngineError("rows that were drawn together have no other law")

    def coin(self, offset: int) -> float:
        raise EngineError("rows that were drawn together need no coin")

    def tokens(self) -> tuple[Sampled, ...]:
        indexes = self.span.sequence.stands_for
        if self.span.num_sampled > 1:
            return tuple(Sampled(indexes[0], token, None) for token in verify(_draft_of(self.span), self))
        first = self.draw(0)
        if len(indexes) == 1:
            return (Sampled(indexes[0], first, None),)
        if first != self._ids[self._first]:  # greedy, held back: so it is for all of them
            return tuple(Sampled(index, first, None) for index in indexes)
        return tuple(Sampled(index, self._ids[self._first + place], None) for place, index in enumerate(indexes))


def _lone_outcome(span: Span, token_id: int) -> SpanOutcome | None:
    """The plain case, short cut: one row, one index, and a token that nothing holds back. None for the others."""
    sequence = span.sequence
    if span.num_sampled > 1 or len(sequence.stands_for) > 1:
        return None
    if sequence.context.pipeline.holds_back(token_id, sequence.num_output_tokens):
        return None
    return SpanOutcome(span, (Sampled(sequence.index, token_id, None),), None)


def drawn_outcome(rows: DrawnRows) -> SpanOutcome:
    try:
        return SpanOutcome(rows.span, rows.tokens(), None)
    except Exception as exc:
        return SpanOutcome(rows.span, (), row_error(exc, rows.span.sequence))


def _error_of(fault: DrawFault) -> EngineError:
    return empty_mask() if fault.kind == "empty mask" else unusable(fault.score)
