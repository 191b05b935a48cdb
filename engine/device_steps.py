"""Steps on a backend whose logits stay on a device: forwards are launched before the step before them is committed.

    launch t        the forward of a plan that the scheduler made
    fill t          masks, on the CPU, while the forward runs
    draw t          masks uploaded, tokens drawn on the device; the copy of the tokens is started
    launch t + 1    the next forward of the same sequences, whose ids are taken from the draw where it is
    wait t          the tokens of the draw arrive
    commit t        on the CPU, while the next forward runs

So the device never waits for a commit, and masks of step t + 1 are filled, from what was committed in t, while its
forward runs. Where every row of it is drawn by a table on the device, or by nothing but its logits, step t + 1 is drawn
right after its launch as well: mask and state move on there without the host, which only follows.

A step may be launched so far ahead where nothing of it depends on what is not known yet: every sequence that goes on
gets one token, blocks for it are free, no request could be admitted, and no drafter wants to see the tokens first. A
sequence that the commit of t ends, or takes back, has a row in t + 1 that nobody looks at: its keys lie in blocks that
whoever gets them next writes to later, in the device's order.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from safegen.engine.backend import Backend, DeviceBackend, Drawn, PendingDraw
from safegen.engine.device_finish import Asked, answer, ask, drawn_row, needs_logits, token_table
from safegen.engine.scheduler import Scheduler
from safegen.engine.sequence import Sequence
from safegen.engine.step import Span, StepMasks, StepOutcome, StepPlan, build_batch
from safegen.grammars.constraint import MaskRows, TokenTable

_NOTHING = Drawn(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, 0), np.float32))


@dataclass(slots=True)
class Flight:
    """A step whose forward is launched. attempts: how often each sequence had been retracted then. drawn: its draws, if
    they are started."""

    plan: StepPlan
    attempts: dict[Sequence, int]
    drawn: tuple[Asked, PendingDraw | None] | None = None

    @classmethod
    def of(cls, plan: StepPlan) -> Flight:
        return cls(plan, {span.sequence: span.sequence.num_retracts for span in plan.spans})

    def is_as_launched(self, sequence: Sequence) -> bool:
        return self.attempts[sequence] == sequence.num_retracts


class DeviceSteps:
    """The flights of an engine over a backend, which is both a `Backend` and a `DeviceBackend`.

    rows: the engine's mask rows. fill: the masks of a plan, but for some sequences. is_open: whether a sequence has not
    ended.
    """

    def __init__(
        self,
        backend: Backend,
        device: DeviceBackend,
        rows: MaskRows,
        block_size: int,
        fill: Callable[[StepPlan, AbstractSet[Sequence]], StepMasks],
        is_open: Callable[[Sequence], bool],
    ) -> None:
        self._backend = backend
        self._device = device
        self._rows = rows
        self._block_size = block_size
        self._fill = fill
        self._is_open = is_open
        self.flight: Flight | None = None
        self.num_ahead = 0  # steps that were launched before the one before them was committed
        self.num_drawn_ahead = 0  # of them, those whose draws were started too

    def drop_if_idle(self) -> None:
        """Forget a step of which nobody looks at a row any more."""
        if self.flight is not None and not any(map(self._is_open, self.flight.attempts)):
            self.flight = None

    def take_off(self, plan: StepPlan) -> None:
        """Launch a plan's forward. Raises what the backend raises."""
        for source, destination in plan.copies:
            self._backend.copy_block(source, destination)
        self._device.launch(build_batch(plan, self._block_size))
        self.flight = Flight.of(plan)

    def land(self, scheduler: Scheduler, step_id: int, *, goes_on: bool) -> StepOutcome:
        """Draw what is in flight, and wait for the tokens; before that launch the step after it, `step_id`, if goes_on
        and it can be launched. Raises what the backend raises; then nothing is in flight."""
        flight, self.flight = self.flight, None
        assert flight is not None
        asked, pending = flight.drawn or self._draw(flight.plan)
        following = self._following(flight, asked, scheduler, step_id) if goes_on else None
        self.flight = None if following is None else self._follow(asked, following)
        try:
            outcome = answer(asked, _NOTHING if pending is None else pending.wait())
        except Exception:
            self.flight = None
            raise
        kept = [each for each in outcome.outcomes if flight.is_as_launched(each.span.sequence)]
        return StepOutcome(outcome.step_id, kept)

    # --- draws --------------------------------------------------------------------------------------------------------

    def _draw(self, plan: StepPlan) -> tuple[Asked, PendingDraw | None]:
        tables = {span.sequence: table for span in plan.spans if (table := self._table(span)) is not None}
        dead = {span.sequence for span in plan.spans if not self._is_open(span.sequence)}
        asked = ask(plan, self._fill(plan, tables.keys() | dead), tables)
        return asked, self._started(asked)

    def _started(self, asked: Asked) -> PendingDraw | None:
        return self._device.draw(asked.device_rows()) if asked.rows else None

    def _table(self, span: Span) -> TokenTable | None:
        """What the span's rows are drawn by in place of masks."""
        table = token_table(span.sequence)
        if table is None or not span.num_sampled or needs_logits(span) or not self._device.holds(table):
            return None
        return table

    # --- the step after it --------------------------------------------------------------------------------------------

    def _following(self, flight: Flight, asked: Asked, scheduler: Scheduler, step_id: int) -> StepPlan | None:
        """One more token of each sequence in flight that may have one; None where that depends on what is drawn."""
        spans: list[Span] = []
        for span in flight.plan.spans:
            sequence, stop = span.sequence, span.start + span.num_tokens
            if not self._is_open(sequence):
                continue
            if span.num_sampled != 1 or asked.is_alone(span) or not flight.is_as_launched(sequence):
                return None
            if sequence.num_tokens_left < 2:
                continue
            if not scheduler.reserve([sequence], stop + 1 - sequence.num_computed_tokens):
                return None
            spans.append(Span(sequence, stop, 1, 1))
        return StepPlan(step_id, tuple(spans)) if spans else None

    def _follow(self, before: Asked, plan: StepPlan) -> Flight:
        carried = [before.first_row(span.sequence) for span in plan.spans]
        self._device.launch(build_batch(plan, self._block_size), np.array(carried, dtype=np.int32))
        flight = Flight.of(plan)
        self.num_ahead += 1
        if all(self._is_drawn_without_the_host(before, span) for span in plan.spans):
            asked = Asked(plan, StepMasks(plan.step_id, self._rows))
            for span, row in zip(plan.spans, carried):
                table = token_table(span.sequence)
                asked.add(span, None, [drawn_row(span, 0)._replace(table=table, state=None, carried=row)])
            flight.drawn = asked, self._started(asked)
            self.num_drawn_ahead += 1
        return flight

    def _is_drawn_without_the_host(self, before: Asked, span: Span) -> bool:
        """The row's state, if it has a table, is on the device already."""
        if needs_logits(span):
            return False
        row = before.rows[before.first_row(span.sequence)]
        return span.sequence.constraint is None or (row is not None and row.table is not None)


__all__ = ["DeviceSteps", "Flight"]
