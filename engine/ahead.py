"""Several decode steps in one call of the backend, where nothing but the draws lies between them.

A step's bookkeeping is small, but it runs with cold caches, after a model's weights have streamed through them: a good
part of a small model's step at a batch of one. So while every running sequence decodes one token a step that sampling
parameters alone decide about, some steps are computed in a row, as many as make about `_SECONDS_AHEAD` by the time
that such steps took; what came out is then committed step by step as ever. Each draw has the uniform number of its own
(seed, index, position), so the tokens are those of single steps. New requests and cancels wait for no longer than that,
and what a stop string or a cancel leaves behind was computed in vain: a few rows.
"""

from __future__ import annotations

import numpy as np

from safegen.engine import rng
from safegen.engine.backend import AheadDraws, Backend, ForwardAhead
from safegen.engine.scheduler import Scheduler
from safegen.engine.sequence import Sequence
from safegen.engine.step import Sampled, Span, SpanOutcome, StepOutcome, StepPlan

_SECONDS_AHEAD = 0.04
_MAX_STEPS = 8
_NEWEST_SHARE = 0.25  # of a measurement in the running mean


class Lookahead:
    """forward_ahead: None for a backend that cannot; then there is never more than one step."""

    def __init__(self, backend: Backend) -> None:
        self.forward: ForwardAhead | None = getattr(backend, "forward_ahead", None)
        self._step_s: dict[int, float] = {}  # mean seconds a step, by its number of rows

    def num_steps(self, plan: StepPlan, scheduler: Scheduler) -> int:
        """How many steps to compute, the plan's included; blocks for them are reserved."""
        step_s = self._step_s.get(len(plan.spans))
        if self.forward is None or step_s is None or not all(map(_is_plain, plan.spans)):
            return 1
        sequences = [span.sequence for span in plan.spans]
        left = min(sequence.num_tokens_left for sequence in sequences)
        num_steps = min(int(_SECONDS_AHEAD / step_s), _MAX_STEPS, left)
        return num_steps if num_steps > 1 and scheduler.reserve(sequences, num_steps) else 1

    def note(self, plan: StepPlan, num_steps: int, seconds: float) -> None:
        """How long the forward of that many steps of a plan took."""
        num_rows = len(plan.spans)
        if all(span.num_tokens == 1 for span in plan.spans):
            known, latest = self._step_s.get(num_rows), seconds / num_steps
            self._step_s[num_rows] = latest if known is None else known + _NEWEST_SHARE * (latest - known)


def _is_plain(span: Span) -> bool:
    sequence = span.sequence
    if sequence.constraint is not None or span.num_tokens != 1 or span.num_sampled != 1:
        return False
    pipeline = sequence.context.pipeline
    return len(sequence.stands_for) == 1 and pipeline.plain_settings(sequence.num_output_tokens) is not None


def draws_for(plan: StepPlan, num_steps: int, vocab_size: int) -> AheadDraws:
    """What the draws after each step but the last depend on."""
    sequences = [span.sequence for span in plan.spans]
    settings = [each.context.pipeline.plain_settings(each.num_output_tokens) for each in sequences]
    uniforms = np.zeros((num_steps - 1, len(sequences)))
    for row, sequence in enumerate(sequences):
        if sequence.request.params.temperature != 0.0:
            uniforms[:, row] = [_uniform(sequence, step) for step in range(num_steps - 1)]
    stop_ids = frozenset().union(*(each.request.stop_ids for each in sequences))
    return AheadDraws(vocab_size, [each for each in settings if each is not None], uniforms, stop_ids)


def _uniform(sequence: Sequence, step: int) -> float:
    place = sequence.num_output_tokens + step
    return rng.uniform(sequence.context.seed, sequence.index, place, sequence.num_retracts)


def later(plan: StepPlan, step: int) -> StepPlan:
    """The plan of a step that came so many after it."""
    spans = (Span(each.sequence, each.start + step, 1, 1) for each in plan.spans)
    return StepPlan(plan.step_id + step, tuple(spans))


def outcome_of(plan: StepPlan, ids: list[int]) -> StepOutcome:
    """ids: what was drawn for each span."""
    tokens = (Sampled(span.sequence.index, token_id, None) for span, token_id in zip(plan.spans, ids))
    outcomes = [SpanOutcome(span, (token,), None) for span, token in zip(plan.spans, tokens)]
    return StepOutcome(plan.step_id, outcomes)


__all__ = ["Lookahead", "draws_for", "later", "outcome_of"]
