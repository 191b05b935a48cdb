"""Drafts of a model: a second checkpoint of the same vocabulary, or the first layers of the model itself.

All sequences that draft do so together, one forward a drafted token. The constraint is forked, and its mask is in force
on the drafting model's row as well: each token comes from the request's whole pipeline (mask, penalties, temperature,
top-k, ...) over the draft model's logits, so q is masked, renormalised, and as like the target as it gets.

    greedy                 the likeliest token of that row, as a one-hot draft
    with a seed            a draw from q by the number that the output is going to be drawn with: where q is near p, the
                           draw is the same. It is a one-hot draft too, so the output is token by token what it is
                           without a drafter, whatever the drafts' lengths
    sampled without one    a draw from q by a number of its own; verified by the rejection rule, with q

The number of a sampled draft is that of (seed, index, position, proposals so far): drafting again at a position takes a
fresh one, so that what was drafted before, and what was decided because of it, tells nothing of it.

A draft ends after a token, never before one because of what it is: after a stop id, after what completes the answer,
after rows that the draft model itself is not sure enough of, and where its row or mask cannot be had. What
the forward raises comes out of `propose` if no token has been drawn yet; later it ends the drafts where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ids

import numpy as np
from numpy.typing import NDArray

from safegen.engine import rng
from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.logits import History, Target
from safegen.engine.sampler import draw
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft
from safegen.engine.speculate.draft_cache import DraftCache, Lane, Reserve, SharedCache, draft_batch
from safegen.errors import EngineError
from safegen.grammars.constraint import Constraint, MaskRows

# The chance of a token of which the draft model is not sure at all. It may be right all the same, the more so if both
# draw it by one number, or by the rejection rule; and what is never tried is never measured.
_GREEDY_FLOOR, _DRAWN_FLOOR = 0.25, 0.5

Forward = Callable[[ForwardBatch, RowMasks | None], NDArray[np.float32]]


class ModelDrafter:
    """forward: logits of the drafting model, [sampled rows, >= vocab_size]. vocab_size: of the tokenizer.
    max_tokens_a_forward: of committed tokens that the drafting model has not seen; what is more comes in later steps,
    without a draft until then. least_reach: a draft ends where the model's confidence in its tokens, multiplied up,
    falls below it."""

    is_costly = True
    is_forced = False

    def __init__(
        self,
        name: str,
        forward: Forward,
        cache: DraftCache,
        vocab_size: int,
        *,
        max_tokens_a_forward: int = 2048,
        least_reach: float = 0.15,
    ) -> None:
        self.name = name
        self._forward = forward
        self._cache = cache
        self._vocab_size = vocab_size
        self._max_tokens_a_forward = max_tokens_a_forward
        self._least_reach = least_reach
        self._masks = MaskRows.allocate(1, vocab_size)
        self._num_proposals = 0

    def attach(self, reserve: Reserve, block_size: int) -> None:
        """What the engine lends to a drafter that computes in its blocks."""
        if isinstance(self._cache, SharedCache):
            self._cache.attach(reserve, block_size)

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        self._num_proposals += 1
        runs = [None if lane is None else self._begin(ask, lane) for ask, lane in zip(asks, self._cache.lanes(asks))]
        going, has_drawn = self._caught_up([run for run in runs if run is not None]), False
        while going:
            going, masks = self._fill(going)
            if not going:
                break
            try:
                logits = self._rows(going, masks)
            except Exception:
                if not has_drawn:
                    raise
                break
            has_drawn = True
            going = [run for row, run in enumerate(going) if run.take(logits[row, : self._vocab_size], masks, row)]
        return [NO_DRAFT if run is None else run.draft() for run in runs]

    def release(self, sequence: Sequence) -> None:
        self._cache.release(sequence)

    def _begin(self, ask: Ask, lane: Lane) -> _Run | None:
        """None where nothing can come after the prefix."""
        constraint = ask.sequence.constraint
        if not ask.sequence.request.stop_ids.isdisjoint(ask.prefix):
            return None
        if constraint is not None:
            constraint = constraint.fork()
            if ask.prefix and not _goes_on(constraint, ask.prefix):
                return None
        return _Run(
            ask,
            lane,
            constraint,
            vocab_size=self._vocab_size,
            least_reach=self._least_reach,
            num_proposals=self._num_proposals,
        )

    def _caught_up(self, runs: list[_Run]) -> list[_Run]:
        """Those whose tokens so far fit the next forward; as much of the others as fits is computed now."""
        ready, behind, counts, left = list[_Run](), list[Lane](), list[int](), self._max_tokens_a_forward
        for run in runs:
            num_pending = len(run.lane.pending)
            if num_pending <= left:
                ready.append(run)
            elif left:
                behind.append(run.lane)
                counts.append(left)
            left -= min(num_pending, left)
        if behind:
            self._forward(draft_batch(behind, counts, self._cache.block_size, is_sampled=False), None)
            for lane, count in zip(behind, counts):
                lane.computed(count)
        return ready

    def _fill(self, runs: list[_Run]) -> tuple[list[_Run], MaskRows]:
        """The runs whose next mask can be had, and their masks."""
        if len(runs) > len(self._masks.words):
            self._masks = MaskRows.allocate(2 * len(runs), self._vocab_size)
        words, filled = self._masks.words, list[_Run]()
        for run in runs:
            row = len(filled)
            words[row] = 0
            if run.fill(MaskRows(words[row : row + 1], self._vocab_size)):
                filled.append(run)
        return filled, self._masks

    def _rows(self, runs: list[_Run], masks: MaskRows) -> NDArray[np.float32]:
        lanes = [run.lane for run in runs]
        counts = [len(lane.pending) for lane in lanes]
        batch = draft_batch(lanes, counts, self._cache.block_size, is_sampled=True)
        restricted = np.array([run.constraint is not None for run in runs], dtype=np.bool_)
        logits = self._forward(batch, RowMasks(masks.words[: len(runs)], restricted) if restricted.any() else None)
        if logits.ndim != 2 or len(logits) != len(runs) or logits.shape[1] < self._vocab_size:
            raise EngineError(f"the draft model gave logits of shape {logits.shape} for {len(runs)} rows")
        for lane, count in zip(lanes, counts):
            lane.computed(count)
        return np.asarray(logits, dtype=np.float32)


class _Run:
    """A sequence's draft in the making."""

    def __init__(
        self,
        ask: Ask,
        lane: Lane,
        constraint: Constraint | None,
        *,
        vocab_size: int,
        least_reach: float,
        num_proposals: int,
    ) -> None:
        self.lane = lane
        self.constraint = constraint
        self._sequence = ask.sequence
        self._prefix = ask.prefix
        self._vocab_size = vocab_size
        self._num_proposals = num_proposals
        self._ids: list[int] = []
        self._probs: list[NDArray[np.float64]] = []
        self._chances: list[float] = []
        self._reach, self._least_reach = 1.0, least_reach

    def fill(self, rows: MaskRows) -> bool:
        """Write the next row's mask, if there is one to write; False if it cannot be had."""
        if self.constraint is None:
            return True
        try:
            self.constraint.fill((), rows)
        except Exception:
            return False
        return True

    def take(self, row: NDArray[np.float32], masks: MaskRows, mask_row: int) -> bool:
        """Draw a token of the row; False where the draft ends with it, or before it because it is not a row."""
        words = None if self.constraint is None else masks.words[mask_row]
        try:
            token_id = self._draw(row, words)
        except EngineError:
            return False
        self._ids.append(token_id)
        self._reach *= self._chances[-1]
        self.lane.pending.append(token_id)
        is_over = len(self._ids) == self.lane.room or token_id in self._sequence.request.stop_ids
        return not is_over and self._reach >= self._least_reach and self._advance(token_id)

    def draft(self) -> Draft:
        probs = np.stack(self._probs) if self._probs else None
        return Draft(tuple(self._ids), probs, tuple(self._chances)) if self._ids else NO_DRAFT

    def _draw(self, row: NDArray[np.float32], words: NDArray[np.int32] | None) -> int:
        params, context = self._sequence.request.params, self._sequence.context
        target = context.pipeline.target(row, self._history(), words)
        law = target.law
        if params.temperature == 0.0:
            token_id = int(law.ids[0])
            self._chances.append(_opinion(_GREEDY_FLOOR, _confidence(row, words, target, token_id)))
            return token_id
        token_id = draw(law, self._number())
        self._chances.append(_opinion(_DRAWN_FLOOR, float(law.probs.max())))  # of the row; not of what was drawn
        if params.seed is None:
            probs = np.zeros(self._vocab_size)
            probs[law.ids] = law.probs
            self._probs.append(probs)
        return token_id

    def _number(self) -> float:
        sequence = self._sequence
        seed, place = sequence.context.seed, sequence.num_output_tokens + len(self._prefix) + len(self._ids)
        if sequence.request.params.seed is not None:
            return rng.uniform(seed, sequence.index, place, sequence.num_retracts)
        return rng.uniform(seed, sequence.index, place, self._num_proposals, rng.DRAFT)

    def _history(self) -> History:
        before = self._sequence.history()
        num_tokens, counts = before.num_output_tokens + len(self._prefix) + len(self._ids), before.output_counts
        if self._sequence.context.pipeline.needs_counts:
            counts = Counter(counts) + Counter(self._prefix) + Counter(self._ids)
        return History(num_tokens, counts)

    def _advance(self, token_id: int) -> bool:
        return self.constraint is None or _goes_on(self.constraint, (token_id,))


def _goes_on(constraint: Constraint, ids: tuple[int, ...]) -> bool:
    """Move a fork; False where nothing is known to follow."""
    try:
        return constraint.advance(ids) is None and not constraint.is_complete()
    except Exception:  # whatever a constraint raises about a guess
        return False


def _opinion(floor: float, confidence: float) -> float:
    return floor + (1.0 - floor) * confidence


def _confidence(row: NDArray[np.float32], words: NDArray[np.int32] | None, target: Target, token_id: int) -> float:
    """The token's probability at temperature 1 among the legal ones."""
    scores = row if target.scores is None else target.scores
    best = row[token_id] if target.scores is None else target.scores.max()
    if words is not None and target.scores is None:
        scores = row[np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little", count=row.size))]
    if scores.size == 1:
        return 1.0
    return float(1.0 / np.exp(scores - best).sum())
