"""The finish phase: from the logits and masks of a step to one drawn token for each index that is due.

Rows that mask and sampling parameters alone decide about are drawn natively, all in one call; the others (bias,
penalties, tokens before min_tokens, log-probabilities) go through the pipeline of engine/logits.py, which is the law of
both. What a row raises stays in its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safegen.engine import rng
from safegen.engine.logits import empty_mask, unusable
from safegen.engine.sampler import draw, token_logprobs
from safegen.engine.step import Sampled, Span, SpanOutcome, StepMasks, StepOutcome, StepPlan, row_error
from safegen.errors import EngineError
from safegen.kernels.sampling import Draw, DrawFault, SampleSettings, draw_tokens


def finish(plan: StepPlan, logits: NDArray[np.float32], masks: StepMasks) -> StepOutcome:
    """Draw the token after the last committed one of each sequence that has come so far, once for each index that the
    sequence stands for. logits: [sampled rows, >= vocabulary of the masks]."""
    outcomes: list[SpanOutcome] = []
    draws: list[Draw] = []
    drawn_together: list[tuple[int, int]] = []  # places of outcomes, and of their first draws
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
                if settings is None:
                    tokens = _sample(span, logits[row, : masks.rows.vocab_size], masks, mask_row)
                else:
                    drawn_together.append((len(outcomes), len(draws)))
                    _ask(span, settings, row, mask_row, draws)
            except Exception as exc:
                error = row_error(exc, sequence)
        outcomes.append(SpanOutcome(span, tokens, error))
    if draws:
        ids, faults = draw_tokens(logits, masks.rows.vocab_size, masks.rows.words, draws)
        for place, first in drawn_together:
            outcomes[place] = _outcome(outcomes[place].span, ids, faults, first)
            if outcomes[place].tokens and _is_held_back(outcomes[place], masks, draws[first]):
                outcomes[place] = _draw_alone(outcomes[place].span, logits, masks, draws[first])
    return StepOutcome(plan.step_id, outcomes)


def _ask(span: Span, settings: SampleSettings, row: int, mask_row: int | None, draws: list[Draw]) -> None:
    sequence = span.sequence
    if sequence.request.params.temperature == 0.0:
        draws += [Draw(settings, row, mask_row, 0.0)] * len(sequence.stands_for)
        return
    seed, place, attempt = sequence.context.seed, sequence.num_output_tokens, sequence.num_retracts
    for index in sequence.stands_for:
        draws.append(Draw(settings, row, mask_row, rng.uniform(seed, index, place, attempt)))


def _outcome(span: Span, ids: Sequence[int], faults: Mapping[int, DrawFault], first: int) -> SpanOutcome:
    indexes = span.sequence.stands_for
    if first in faults:  # then all draws of its row failed
        return SpanOutcome(span, (), _error_of(faults[first]))
    if len(indexes) == 1:
        return SpanOutcome(span, (Sampled(indexes[0], ids[first], None),), None)
    return SpanOutcome(span, tuple(Sampled(index, ids[first + i], None) for i, index in enumerate(indexes)), None)


def _is_held_back(outcome: SpanOutcome, masks: StepMasks, draw: Draw) -> bool:
    """A stop id before min-tokens, where another token is legal (of a lone legal one there may be no logit)."""
    sequence = outcome.span.sequence
    if not sequence.context.pipeline.holds_back(outcome.tokens[0].token_id, sequence.num_output_tokens):
        return False
    if draw.mask_row is None:
        return True
    return int(np.unpackbits(masks.rows.words[draw.mask_row].view(np.uint8)).sum()) > 1


def _draw_alone(span: Span, logits: NDArray[np.float32], masks: StepMasks, draw: Draw) -> SpanOutcome:
    try:
        row = logits[draw.row, : masks.rows.vocab_size]
        return SpanOutcome(span, _sample(span, row, masks, draw.mask_row), None)
    except Exception as exc:
        return SpanOutcome(span, (), row_error(exc, span.sequence))


def _error_of(fault: DrawFault) -> EngineError:
    return empty_mask() if fault.kind == "empty mask" else unusable(fault.score)


def _sample(span: Span, row: NDArray[np.float32], masks: StepMasks, mask_row: int | None) -> tuple[Sampled, ...]:
    """The same for one row by the pipeline."""
    sequence, context = span.sequence, span.sequence.context
    words = None if mask_row is None else masks.rows.words[mask_row]
    target = context.pipeline.target(row, sequence.history(), words)
    num_top = context.request.params.logprobs
    sampled = []
    for index in sequence.stands_for:
        place, attempt = sequence.num_output_tokens, sequence.num_retracts
        token_id = draw(target.law, rng.uniform(context.seed, index, place, attempt))
        logprobs = None if num_top is None else token_logprobs(row, target, token_id, num_top)
        sampled.append(Sampled(index, token_id, logprobs))
    return tuple(sampled)
