"""The engine without its thread: one `step()` in five phases, a function of what was added and cancelled before it.

    admit   new requests and cancels
    plan    the scheduler picks tokens and blocks
    launch  the backend computes the logits
    fill    one mask row a sampled position of a constrained row; before launch for a backend that takes the masks
    finish  the one logits pipeline, then the draws, which also verify the drafts (engine/finish.py)
    commit  token by token: constraint, stops, block hashes, events

Before the plan the drafters propose (engine/speculate); what a forward has verified of a draft is committed as if each
token had come by itself, until one ends the sequence or takes output back.

A failure stays in its row: what a constraint or the pipeline raises ends that sequence with "error"; what the backend
raises ends the sequences of that step; only a fault of the engine's own bookkeeping leaves `step`, and `end_all` then
starts over. Tokens are handed out when they are settled, which without verified nodes is at once (engine/retract.py);
what a sequence still holds back is handed out when it ends, whatever ends it. `cancel` may be called from any thread
and is looked at on admission and again before commit, so that a request cancelled while its forward runs commits
nothing more. Everything else belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from safegen.engine import ahead, commit, rng
from safegen.engine.backend import Backend, DeviceBackend, KnowsMaxima
from safegen.engine.block_pool import BlockPool
from safegen.engine.config import EngineConfig
from safegen.engine.device_steps import DeviceSteps
from safegen.engine.door import open_door
from safegen.engine.finish import finish
from safegen.engine.ledger import Ledger
from safegen.engine.logits import LogitsPipeline, RowBuffers
from safegen.engine.origins import Origins, origin_of
from safegen.engine.request import Event, FinishReason, Request, TokensEvent
from safegen.engine.scheduler import Scheduler
from safegen.engine.sequence import RequestContext, Sequence
from safegen.engine.speculate.speculator import Speculator
from safegen.engine.stats import EngineStats, RateWindow
from safegen.engine.step import Sampled, SpanOutcome, StepMasks, StepOutcome, StepPlan, build_batch, row_error
from safegen.errors import EngineError, RequestError
from safegen.grammars.constraint import BatchFill, MaskRows


class EngineCore:
    """Synchronous engine over a backend. token_bytes: bytes of every token id, None for those that stand for no text;
    ids past its end are never sampled. speculator: None is no speculation."""

    def __init__(
        self,
        backend: Backend,
        token_bytes: Ids[bytes | None],
        config: EngineConfig,
        *,
        speculator: Speculator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._speculator = Speculator(()) if speculator is None else speculator
        num_rows = config.max_num_seqs + self._speculator.max_tokens_a_step
        if isinstance(backend, DeviceBackend):
            backend.prepare_draws(len(token_bytes), num_rows)
        self.door = open_door(backend, len(token_bytes), config)
        backend.allocate(self.door.num_blocks, config.block_size)
        self.scheduler = self._fresh_scheduler()
        self._backend = backend
        self._token_bytes = token_bytes
        self._longest_token = max(len(text or b"") for text in token_bytes)
        self._clock = clock
        self._maxima_of = backend.maxima_of if isinstance(backend, KnowsMaxima) else _no_maxima
        self._ahead = ahead.Lookahead(backend)
        self._speculator.bind(len(token_bytes), self._reserve_draft, config.block_size)
        self._masks = MaskRows.allocate(num_rows, len(token_bytes))
        self._buffers = RowBuffers(len(token_bytes))
        self._ledger = Ledger(clock)
        self._on_device: DeviceSteps | None = None
        if isinstance(backend, DeviceBackend):
            self._on_device = DeviceSteps(
                backend, backend, self._masks, config.block_size, self._fill, self._ledger.is_open
            )
        self._new: list[Sequence] = []
        self._events: list[Event] = []
        self._tokens_at: dict[tuple[str, int], int] = {}  # places of events: a call of step hands out one a sequence
        self._cancelled: dict[str, Exception | None] = {}
        self._num_arrived = self._num_steps = self._num_computed = self._num_output = 0
        self._num_retracts = self._num_retracted = 0
        self._forward_s = self._mask_s = 0.0
        self._rate = RateWindow(clock)

    def _fresh_scheduler(self) -> Scheduler:
        config = self.config
        pool = BlockPool(self.door.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
        return Scheduler(pool, config)

    def _reserve_draft(self, sequence: Sequence, num_tokens: int) -> int:
        return self.scheduler.reserve_draft(sequence, num_tokens)

    # --- what goes in ---------------------------------------------------------------------------------------------

    def add(self, request: Request, *, submitted_s: float | None = None) -> None:
        """Take a request in; it is admitted by the next step. Raises as `Door.check`, and for an id that is in use."""
        self.door.check(request)
        if request.request_id in self._ledger:
            raise RequestError(
                f"request_id {request.request_id!r} is in flight already", field="request_id", value=request.request_id
            )
        params = request.params
        context = RequestContext(
            request=request,
            arrival=self._num_arrived,
            submitted_s=self._clock() if submitted_s is None else submitted_s,
            seed=rng.fresh_seed() if params.seed is None else params.seed,
            max_tokens=self.door.max_tokens(request),
            pipeline=LogitsPipeline(params, request.prompt_ids, request.stop_ids, self._buffers),
            max_retracts=self.config.max_retracts,
        )
        self._num_arrived += 1
        sequence = Sequence(context, 0, tuple(range(params.n)))
        self._ledger.open(sequence)
        self._new.append(sequence)

    def cancel(self, request_id: str, error: Exception | None = None) -> None:
        """End a request's sequences as "cancelled". Any thread; an id that is not in flight is ignored."""
        if request_id in self._ledger:
            self._cancelled[request_id] = error

    def end_all(self, reason: FinishReason, make_error: Callable[[], Exception]) -> list[Event]:
        """End every open sequence and start over with an empty block pool, whatever state the old one is in."""
        for sequence in self._ledger:
            self._emit(sequence, sequence.num_output_tokens)
            self._events += self._ledger.close(sequence, reason, error=make_error())
            self._speculator.release(sequence)
        self._new.clear()
        self._cancelled.clear()
        if self._on_device is not None:
            self._on_device.flight = None
        old, self.scheduler = self.scheduler, self._fresh_scheduler()
        self.scheduler.num_preemptions = old.num_preemptions
        self.scheduler.num_prefix_hit_tokens = old.num_prefix_hit_tokens
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        self._tokens_at.clear()
        return events

    @property
    def has_work(self) -> bool:
        return bool(self._ledger)

    @property
    def num_waiting(self) -> int:
        return len(self._new) + len(self.scheduler.waiting)

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=self.num_waiting,
            num_blocks=scheduler.pool.num_blocks,
            free_blocks=scheduler.pool.num_free,
            cached_blocks=scheduler.pool.num_cached,
            prefix_hit_tokens=scheduler.num_prefix_hit_tokens,
            preemptions=scheduler.num_preemptions,
            steps=self._num_steps,
            computed_tokens=self._num_computed,
            output_tokens=self._num_output,
            finished_sequences=self._ledger.num_finished,
            retracts=self._num_retracts,
            retracted_tokens=self._num_retracted,
            drafted_tokens=self._speculator.num_drafted,
            accepted_tokens=self._speculator.num_accepted,
            by_drafter=self._speculator.counts(),
            forward_s=self._forward_s,
            mask_s=self._mask_s,
            tokens_per_s=self._rate.per_second(),
            finished=dict(self._ledger.meter.finished),
            prompt_tokens=self._ledger.meter.prompt_tokens,
            cached_tokens=self._ledger.meter.cached_tokens,
            latency=self._ledger.meter.latency(),
        )

    # --- the step -------------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """One step. Returns its events in order of service; raises only on a fault of the engine itself."""
        num_before = self._num_output
        self._admit()
        if self.scheduler.running or self.scheduler.waiting:
            self._compute()
        if self._num_output > num_before:
            self._rate.add(self._num_output - num_before)
        return self._take_events()

    def _compute(self) -> None:
        started_s = self._clock()
        if self._on_device is not None:
            self._compute_on_device(self._on_device, started_s)
            return
        self._speculator.propose(self.scheduler.running, self.scheduler.candidates())
        plan = self._plan()
        num_steps = 1 if self._cancelled else self._ahead.num_steps(plan, self.scheduler)
        if num_steps > 1:
            if (num_computed := self._compute_ahead(plan, num_steps)) > 0:
                self._speculator.timed_ahead(plan, num_computed, self._clock() - started_s)
            return
        masks = self._fill(plan) if self._backend.takes_masks else None
        try:
            logits = self._launch(plan, masks)
        except Exception as exc:
            self._fail(plan, exc)
            return
        if masks is None:
            masks = self._fill(plan)
        outcome = self._finish(plan, logits, masks)
        self._commit(outcome)
        self._speculator.timed(plan, outcome, self._clock() - started_s)

    def _compute_on_device(self, steps: DeviceSteps, started_s: float) -> None:
        """One step; another one may be in flight when it is committed."""
        steps.drop_if_idle()
        flight = steps.flight
        if flight is None:
            self._speculator.propose(self.scheduler.running, self.scheduler.candidates())
            plan = self._plan()
        else:
            plan = flight.plan
        try:
            if flight is None:
                steps.take_off(plan)
            goes_on = not (self._cancelled or self.scheduler.candidates() or self._speculator.max_tokens_a_step)
            outcome = steps.land(self.scheduler, self._num_steps, goes_on=goes_on)
        except Exception as exc:
            self._fail(plan, exc)
            return
        self._num_steps += steps.flight is not None
        self._forward_s += self._clock() - started_s
        self._commit(outcome)
        self._speculator.timed(plan, outcome, self._clock() - started_s)

    def _compute_ahead(self, plan: StepPlan, num_steps: int) -> int:
        """Returns how many steps it came to, 0 if the forward failed."""
        try:
            drawn, logits = self._launch_ahead(plan, num_steps)
        except Exception as exc:
            self._fail(plan, exc)
            return 0
        for step, ids in enumerate(drawn):
            self._commit(ahead.outcome_of(ahead.later(plan, step), ids))
        self._num_steps += len(drawn)
        last = ahead.later(plan, len(drawn))
        self._commit(self._finish(last, logits, StepMasks(last.step_id, self._masks)))
        return len(drawn) + 1

    def _admit(self) -> None:
        self._drop_cancelled()
        new, self._new = self._new, []
        for sequence in new:
            try:
                ending = commit.begin(sequence, self._token_bytes, self._longest_token)
            except Exception as exc:
                self._end(sequence, "error", error=row_error(exc, sequence))
                continue
            if ending is None:
                self.scheduler.add(sequence)
            else:
                self._end(sequence, ending.reason, ending=ending)

    def _plan(self) -> StepPlan:
        plan = self.scheduler.plan(self._num_steps)
        self._num_steps += 1
        if not plan.spans:
            raise EngineError("sequences wait, but the scheduler found nothing to compute: no progress is possible")
        now_s = self._clock()
        for span in plan.spans:
            if span.sequence.first_scheduled_s is None:
                span.sequence.first_scheduled_s = now_s
        return plan

    def _copy_blocks(self, plan: StepPlan) -> None:
        for source, destination in plan.copies:
            self._backend.copy_block(source, destination)

    def _launch_ahead(self, plan: StepPlan, num_steps: int) -> tuple[list[list[int]], NDArray[np.float32]]:
        """The ids drawn after each step but the last, and the last one's logits."""
        assert self._ahead.forward is not None
        self._copy_blocks(plan)
        batch = build_batch(plan, self.config.block_size, num_steps - 1)
        draws = ahead.draws_for(plan, num_steps, self._masks.vocab_size)
        started_s = self._clock()
        drawn, logits = self._ahead.forward(batch, draws)
        self._forwarded(plan, len(drawn) + 1, self._clock() - started_s)
        return drawn, logits

    def _forwarded(self, plan: StepPlan, num_steps: int, seconds: float) -> None:
        self._forward_s += seconds
        self._ahead.note(plan, num_steps, seconds)

    def _launch(self, plan: StepPlan, masks: StepMasks | None) -> NDArray[np.float32]:
        self._copy_blocks(plan)
        batch = build_batch(plan, self.config.block_size)
        started_s = self._clock()
        logits = self._backend.forward(batch, None if masks is None else masks.for_forward(plan))
        self._forwarded(plan, 1, self._clock() - started_s)
        num_rows = len(batch.sampled_rows)
        if logits.ndim != 2 or logits.shape[0] != num_rows or logits.shape[1] < len(self._token_bytes):
            raise EngineError(f"the backend gave logits of shape {logits.shape} for {num_rows} rows")
        return np.asarray(logits, dtype=np.float32)

    def _fill(self, plan: StepPlan, left_out: AbstractSet[Sequence] = frozenset()) -> StepMasks:
        """left_out: sequences that need no masks."""
        masks = StepMasks(plan.step_id, self._masks)
        together: dict[BatchFill, list[tuple[Sequence, tuple[int, ...], int]]] = {}
        next_row = 0
        for span in plan.spans:
            sequence, first_row, num_rows = span.sequence, next_row, span.num_sampled
            next_row += num_rows
            if sequence.constraint is None or not num_rows or sequence in left_out:
                continue
            batch_fill = getattr(sequence.constraint, "batch_fill", None)
            if batch_fill is None:
                self._fill_alone(sequence, first_row, num_rows, masks)
            else:
                draft = sequence.draft[: num_rows - 1]
                together.setdefault(batch_fill, []).append((sequence, draft, first_row))
        for batch_fill, members in together.items():
            self._fill_together(batch_fill, members, masks)
        return masks

    def _fill_alone(self, sequence: Sequence, first_row: int, num_rows: int, masks: StepMasks) -> None:
        assert sequence.constraint is not None
        words = self._masks.words[first_row : first_row + num_rows]
        words.fill(0)
        started_s = self._clock()
        draft = sequence.draft[: num_rows - 1]
        try:
            try:
                sequence.constraint.fill(draft, MaskRows(words, self._masks.vocab_size))
            except Exception:
                if not draft:
                    raise
                words.fill(0)  # a draft costs no request: the row of the next token may do without it
                sequence.constraint.fill((), MaskRows(words[:1], self._masks.vocab_size))
            masks.place[sequence] = first_row
        except Exception as exc:
            masks.failed[sequence] = exc
        seconds = self._clock() - started_s
        sequence.mask_s += seconds
        self._mask_s += seconds

    def _fill_together(
        self, fill: BatchFill, members: list[tuple[Sequence, tuple[int, ...], int]], masks: StepMasks
    ) -> None:
        """Each sequence is charged an equal part of the time."""
        started_s = self._clock()
        faults = fill(
            [sequence.constraint for sequence, _, _ in members],
            [draft for _, draft, _ in members],
            self._masks,
            [row for _, _, row in members],
        )
        seconds = self._clock() - started_s
        self._mask_s += seconds
        seconds_each = seconds / len(members)
        for (sequence, draft, first_row), fault in zip(members, faults, strict=True):
            sequence.mask_s += seconds_each
            if fault is None:
                masks.place[sequence] = first_row
            elif draft:
                self._fill_alone(sequence, first_row, len(draft) + 1, masks)
            else:
                masks.failed[sequence] = fault

    def _finish(self, plan: StepPlan, logits: NDArray[np.float32], masks: StepMasks) -> StepOutcome:
        return finish(plan, logits, masks, self._maxima_of(logits))

    # --- commit ---------------------------------------------------------------------------------------------------

    def _commit(self, outcome: StepOutcome) -> None:
        self._drop_cancelled()
        for result in outcome.outcomes:
            sequence = result.span.sequence
            if not self._ledger.is_open(sequence):
                continue
            self.scheduler.computed(result.span)
            self._num_computed += result.span.num_tokens
            if result.error is not None:
                self._end(sequence, "error", error=result.error)
                continue
            if result.tokens:
                self._commit_tokens(result)

    def _commit_tokens(self, result: SpanOutcome) -> None:
        """One token for each index that the sequence stands for, or the verified ones of its draft."""
        span, tokens = result.span, result.tokens
        sequence = span.sequence
        sequence.num_forwards += 1
        if len(sequence.stands_for) > 1:
            for token, heir in zip(tokens, self._heirs(sequence, tokens)):
                self._accept(heir, token)
            return
        if not sequence.draft:
            self._accept(sequence, tokens[0])
            return
        guesses = (*sequence.draft[: span.num_sampled - 1], None)  # the last row's token was not guessed
        self._speculator.verified(span, tokens)
        sequence.drop_draft()
        last = len(tokens) - 1
        for place, (token, guess) in enumerate(zip(tokens, guesses)):
            if not self._accept(sequence, token, guess, is_last=place == last):
                return
        self.scheduler.accepted(span)

    def _heirs(self, sequence: Sequence, tokens: tuple[Sampled, ...]) -> list[Sequence]:
        """The sequence itself and its forks, now that it has the first tokens of all that it stood for."""
        forks: list[Sequence] = []
        try:
            forks.extend(self.scheduler.fork(sequence, token.sequence_index) for token in tokens[1:])
        except Exception as exc:
            for fork in forks:
                self.scheduler.discard(fork)
            self._end(sequence, "error", error=row_error(exc, sequence))
            return []
        sequence.stands_for = (sequence.index,)
        for fork in forks:
            self._ledger.open(fork)
        return [sequence, *forks]

    def _accept(self, sequence: Sequence, token: Sampled, guess: int | None = None, *, is_last: bool = True) -> bool:
        """Commit a token; False when what was drawn after it is of no use: it ended the sequence, or took output
        back. is_last: of those drawn in this step; what is settled by then is handed out together."""
        try:
            if sequence.origins is None:
                accepted = commit.accept(sequence, token.token_id, token.logprobs, self._token_bytes)
            else:
                accepted = self._accept_noted(sequence, sequence.origins, token, guess)
        except Exception as exc:
            self._end(sequence, "error", error=row_error(exc, sequence))
            return False
        if sequence.first_token_s is None and sequence.num_output_tokens:
            sequence.first_token_s = self._clock()
        goes_on = accepted.ending is None and not accepted.num_retracted
        if goes_on and not is_last:
            return True
        if accepted.num_retracted:
            self._num_retracts += 1
            self._num_retracted += accepted.num_retracted
            self.scheduler.retracted(sequence)
        self._emit(sequence, accepted.num_settled)
        if accepted.ending is not None:
            self._end(sequence, accepted.ending.reason, ending=accepted.ending)
        return goes_on

    def _accept_noted(self, sequence: Sequence, origins: Origins, token: Sampled, guess: int | None) -> commit.Accepted:
        """Commit a token, and note where it came from."""
        origin, place = (
            origin_of(sequence.constraint, token.token_id, guess, self._token_bytes),
            sequence.num_output_tokens,
        )
        accepted = commit.accept(sequence, token.token_id, token.logprobs, self._token_bytes)
        is_it = sequence.output_ids(place, sequence.num_output_tokens) == (token.token_id,)
        origins.note(origin if is_it else "forced", sequence.num_output_tokens)
        return accepted

    def _emit(self, sequence: Sequence, num_settled: int) -> None:
        """Hand out the output tokens up to num_settled that were not handed out yet."""
        start = sequence.num_emitted_tokens
        token_ids, logprobs = sequence.take_settled(num_settled)
        if not token_ids:
            return
        self._num_output += len(token_ids)
        origins = () if sequence.origins is None else sequence.origins.between(start, start + len(token_ids))
        event = TokensEvent(sequence.request.request_id, sequence.index, token_ids, logprobs, origins)
        place = self._tokens_at.setdefault((event.request_id, event.index), len(self._events))
        if place == len(self._events):
            self._events.append(event)
            return
        before = self._events[place]
        assert isinstance(before, TokensEvent)
        joined = before.token_ids + token_ids, before.logprobs + logprobs, before.origins + origins
        self._events[place] = TokensEvent(event.request_id, event.index, *joined)

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            request_id, error = self._cancelled.popitem()
            self._new = [sequence for sequence in self._new if sequence.request.request_id != request_id]
            for sequence in self._ledger.of_request(request_id):
                self._end(sequence, "cancelled", error=error)

    def _fail(self, plan: StepPlan, exc: Exception) -> None:
        """The forward of a plan failed: what it was to compute is in nobody's cache."""
        self._drop_cancelled()
        for span in plan.spans:
            self._end(span.sequence, "error", error=row_error(exc, span.sequence))

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        ending: commit.Ending | None = None,
        error: Exception | None = None,
    ) -> None:
        self.scheduler.discard(sequence)
        self._speculator.release(sequence)
        self._emit(sequence, sequence.num_output_tokens)
        self._events += self._ledger.close(sequence, reason, ending=ending, error=error)


def _no_maxima(logits: NDArray[np.float32]) -> None:
    return None
