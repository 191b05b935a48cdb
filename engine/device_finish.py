"""The finish phase on a device: what each row of a step is drawn by, and what the tokens that came back mean.

The law, the rows that are drawn together, and those that go through the pipeline of engine/logits.py are those of
engine/finish.py; the draws are made where the logits are (kernels/triton/sampling.py). Of rows that the pipeline draws
(log-probabilities, bias, penalties, tokens before min_tokens, sampled drafts, several indexes at once) the logits come
along. One-hot drafts need nothing of their own: each of their rows is drawn, and compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import DeviceRows, Drawn, DrawnRow
from safegen.engine.finish import DrawnRows, by_pipeline, drawn_outcome, is_sampled
from safegen.engine.sequence import Sequence
from safegen.engine.step import Span, SpanOutcome, StepMasks, StepOutcome, StepPlan, row_error
from safegen.grammars.constraint import TableConstraint, TokenTable
from safegen.kernels.sampling import FAULT_KINDS, DrawFault

_WORD, _SIGN = 2**64, 2**63


@dataclass(slots=True)
class Asked:
    """A step's draws. rows: one a sampled row; None for one that the pipeline draws, and of a sequence without a mask.
    span_rows: the first row of each span that has some, and its first mask row. errors: of spans without a mask."""

    plan: StepPlan
    masks: StepMasks
    rows: list[DrawnRow | None] = field(default_factory=list)
    span_rows: dict[Sequence, tuple[int, int | None]] = field(default_factory=dict)
    errors: dict[Sequence, Exception] = field(default_factory=dict)

    def add(self, span: Span, mask_row: int | None, rows: list[DrawnRow] | None) -> None:
        """rows: None for a span that the pipeline draws."""
        self.span_rows[span.sequence] = (len(self.rows), mask_row)
        self.rows += [None] * span.num_sampled if rows is None else rows

    def first_row(self, sequence: Sequence) -> int:
        return self.span_rows[sequence][0]

    def is_alone(self, span: Span) -> bool:
        """The pipeline draws it, or nobody can."""
        return self.rows[self.first_row(span.sequence)] is None

    def device_rows(self) -> DeviceRows:
        last = max((row.mask_row for row in self.rows if row is not None and row.mask_row is not None), default=-1)
        return DeviceRows(tuple(self.rows), self.masks.rows.words[: last + 1] if last >= 0 else None)


def token_table(sequence: Sequence) -> TokenTable | None:
    """Of a constraint that a table says all about."""
    table: TokenTable | None = getattr(sequence.constraint, "token_table", None)
    return table


def ask(plan: StepPlan, masks: StepMasks, tables: Mapping[Sequence, TokenTable]) -> Asked:
    """tables: of sequences whose rows are drawn by one. masks: of all other constrained sequences of the plan."""
    asked = Asked(plan, masks)
    for span in plan.spans:
        sequence = span.sequence
        if not span.num_sampled:
            continue
        if sequence in tables:
            asked.add(span, None, _tabled_rows(span, tables[sequence]))
            continue
        try:
            mask_row = masks.row(sequence, 0, plan.step_id)
        except Exception as exc:
            asked.errors[sequence] = row_error(exc, sequence)
            asked.add(span, None, None)
            continue
        asked.add(span, mask_row, None if needs_logits(span) else _masked_rows(span, mask_row))
    return asked


def _masked_rows(span: Span, mask_row: int | None) -> list[DrawnRow]:
    rows = [drawn_row(span, offset) for offset in range(span.num_sampled)]
    return rows if mask_row is None else [row._replace(mask_row=mask_row + place) for place, row in enumerate(rows)]


def _tabled_rows(span: Span, table: TokenTable) -> list[DrawnRow]:
    """Of each row the state after the drafted tokens before it."""
    state, rows = cast(TableConstraint, span.sequence.constraint).table_state, []
    for offset in range(span.num_sampled):
        rows.append(drawn_row(span, offset)._replace(table=table, state=state))
        if offset < span.num_sampled - 1:
            state = int(table.targets[state, table.classes[span.sequence.draft[offset]]])
    return rows


def needs_logits(span: Span) -> bool:
    """Whether the pipeline draws the span's rows, on the host."""
    sequence, first = span.sequence, first_place(span)
    pipeline = sequence.context.pipeline
    if len(sequence.stands_for) > 1 or first < sequence.request.params.min_tokens:
        return True
    return pipeline.plain_settings(first) is None or (span.num_sampled > 1 and is_sampled(span))


def first_place(span: Span) -> int:
    """Output position of the token that the span's first sampled row gives."""
    return span.start + span.num_tokens - span.num_sampled + 1 - span.sequence.num_prompt_tokens


def drawn_row(span: Span, offset: int) -> DrawnRow:
    sequence = span.sequence
    place = first_place(span) + offset
    settings = sequence.context.pipeline.plain_settings(place)
    assert settings is not None
    seed = (sequence.context.seed + _SIGN) % _WORD - _SIGN  # the bits of 64, as a signed number
    return DrawnRow(settings, seed, sequence.index, place, sequence.num_retracts)


def answer(asked: Asked, drawn: Drawn) -> StepOutcome:
    """What came of the draws."""
    ids, next_logits = drawn.ids.tolist(), 0
    faults = {row: _fault(int(drawn.faults[row])) for row in np.flatnonzero(drawn.faults).tolist()}
    outcomes: list[SpanOutcome] = []
    for span in asked.plan.spans:
        if not span.num_sampled:
            outcomes.append(SpanOutcome(span, (), None))
            continue
        row, mask_row = asked.span_rows[span.sequence]
        if not asked.is_alone(span):
            no_logits = drawn.logits[:0]
            outcomes.append(drawn_outcome(DrawnRows(span, no_logits, asked.masks, mask_row, ids, faults, row)))
            continue
        logits = drawn.logits[next_logits : next_logits + span.num_sampled]
        next_logits += span.num_sampled
        error = asked.errors.get(span.sequence)
        outcomes.append(_alone(span, logits, asked.masks, mask_row) if error is None else SpanOutcome(span, (), error))
    return StepOutcome(asked.plan.step_id, outcomes)


def _fault(kind: int) -> DrawFault:
    return DrawFault(FAULT_KINDS[kind], -np.inf if kind == 2 else np.nan)


def _alone(span: Span, logits: NDArray[np.float32], masks: StepMasks, mask_row: int | None) -> SpanOutcome:
    try:
        return SpanOutcome(span, by_pipeline(span, logits, masks, mask_row), None)
    except Exception as exc:
        return SpanOutcome(span, (), row_error(exc, span.sequence))


__all__ = ["Asked", "answer", "ask", "drawn_row", "first_place", "needs_logits", "token_table"]
