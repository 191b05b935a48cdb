"""Asks the drafters, in their order, and lets through what is sound and what pays.

The first drafter's guess is the context of the next one's, so that a draft may be forced bytes, then what followed them
before, then what a small model makes of it. Each guess is cut to the room left: `max_tokens_a_draft`, what the request
may still commit after it (its last token is drawn, not drafted), and `max_tokens_a_step` for all drafts together, which
bounds mask rows and logits. It is cut where its chance falls below what its row costs (estimate.py).

A drafter is not trusted. What it raises, and what is no draft at all, is logged once and counted; after `_MAX_FAULTS`
in a row it is asked no more.
Ids outside the vocabulary end a draft, and so do probabilities that are no law. A request with a seed of its own, or a
greedy one, takes sampled drafts as one-hot ones: its output is then the same token by token without them.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Ids

import numpy as np
from numpy.typing import NDArray

from safegen.engine import faults
from safegen.engine.request import DraftCounts
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, BlockBorrower, Draft, Drafter, DraftPart
from safegen.engine.speculate.estimate import Acceptance, Luck, Price, StepCost
from safegen.engine.step import Sampled, Span, StepOutcome, StepPlan

_log = logging.getLogger(__name__)
_MAX_FAULTS = 8
_DEFAULT_CHANCE = 0.6
_FIRST = "first"
# A cheap guess in free text gives up steps that are computed ahead (engine/ahead.py), too; a costly one has shown its
# worth before it was asked for.
_FREE_MARGIN, _FREE_HIGHEST = 1.4, 0.97
_FREE = Price(0.0, 0.0, 0.0)
# Where only what is all but certain pays, little is guessed: what is not the beginning of a value is not looked at each
# time.
_DEAR = 0.9
_MAX_REST = 3  # in powers of two
_NEW_SHARE = 0.1
_KEEP_UNASKED = 0.995
_SUM_TOLERANCE = 1e-3


class Speculator:
    """The drafters of one engine. Its own thread alone calls it, but for the counts. adaptive: False lets through
    whatever the drafters give, for tests and measurements."""

    def __init__(
        self,
        drafters: Iterable[Drafter],
        *,
        max_tokens_a_draft: int = 16,
        max_tokens_a_step: int = 256,
        adaptive: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafters = tuple(drafters)
        self._cheap = frozenset(each.name for each in self._drafters if not each.is_costly)
        self._narrow = frozenset(each.name for each in self._drafters if each.is_forced)
        self._num_narrow = 0  # rows of the step that is being committed
        self.max_tokens_a_step = max_tokens_a_step if self._drafters else 0
        self._max_tokens_a_draft = max_tokens_a_draft
        self._adaptive = adaptive
        self._vocab_size = 0
        self._acceptance = Acceptance()
        self._cost = StepCost()
        self._luck: dict[Sequence, dict[str, Luck]] = {}
        self._rests: dict[Sequence, _Rest] = {}
        self._logged: set[str] = set()  # drafters that have failed
        self._faults = dict.fromkeys((each.name for each in self._drafters), 0)
        self._seconds_a_token = dict.fromkeys(self._faults, 0.0)
        self._counts: dict[str, DraftCounts] = {}
        self._clock = clock

    def bind(self, vocab_size: int, reserve: Callable[[Sequence, int], int], block_size: int) -> None:
        """vocab_size: ids at or above it are no tokens. reserve: `Scheduler.reserve_draft`."""
        self._vocab_size = vocab_size
        for drafter in self._drafters:
            if isinstance(drafter, BlockBorrower):
                drafter.attach(reserve, block_size)

    @property
    def num_drafted(self) -> int:
        return sum(counts.drafted for counts in self.counts().values())

    @property
    def num_accepted(self) -> int:
        return sum(counts.accepted for counts in self.counts().values())

    def counts(self) -> dict[str, DraftCounts]:
        return dict(self._counts)

    # --- before a step --------------------------------------------------------------------------------------------

    def propose(self, running: Ids[Sequence], waiting: Ids[Sequence]) -> None:
        """Give drafts to the sequences that have none. waiting: those that the step may admit."""
        if not self._drafters:
            return
        left = self.max_tokens_a_step
        asked: list[tuple[Sequence, int]] = []
        for sequence in (*running, *waiting):
            if sequence.draft:
                left -= len(sequence.draft)
            elif len(sequence.stands_for) == 1 and sequence.request.drafters != frozenset():
                room = min(self._max_tokens_a_draft, sequence.num_tokens_left - 1)
                if room > 0:
                    asked.append((sequence, room))
        if asked:
            price = self._cost.price(len(running) or len(asked)) if self._adaptive else _FREE
            for sequence, parts in self._collect(asked, price):
                left = self._give(sequence, parts, left)

    def _give(self, sequence: Sequence, parts: list[DraftPart], left: int) -> int:
        kept = []
        for part in parts:
            if left > 0:
                kept.append(part if len(part.ids) <= left else part.cut(left))
                left -= len(kept[-1].ids)
        sequence.set_draft(tuple(kept))
        return left

    def _collect(self, asked: list[tuple[Sequence, int]], price: Price) -> Iterator[tuple[Sequence, list[DraftPart]]]:
        growing = {sequence: _Growing(sequence, room) for sequence, room in asked}
        for drafter in self._drafters:
            name = drafter.name
            if self._faults[name] >= _MAX_FAULTS:
                continue
            threshold = price.narrow if name in self._narrow else price.wide
            wanted = threshold and threshold + price.rate * self._seconds_a_token[name]
            open_ones, asks = list[_Growing](), list[Ask]()
            asks_first = name in self._cheap and name not in self._narrow
            rests = asks_first and _in_free_text(wanted) >= _DEAR
            for each in growing.values():
                room = each.room_for(drafter)
                if room > 0 and drafter.is_costly:
                    room = self._paying_room(each, name, room, wanted)
                if room > 0 and rests and not each.parts and self._rest_of(each.sequence).goes_on():
                    continue
                if room > 0:
                    open_ones.append(each)
                    worth = self._worth(each, name, wanted) if asks_first else None
                    asks.append(Ask(each.sequence, each.ids, room, worth))
            if asks:
                drafts = self._ask(drafter, asks)
                told = (one for one in zip(open_ones, asks, drafts) if one[2] is not NO_DRAFT)
                sound = [self._extend(*one, wanted, name) for one in told]
                if drafts and all(sound):
                    self._faults[name] = 0
                if rests:
                    for each, ask in zip(open_ones, asks):
                        self._rest_of(each.sequence).asked(found=len(each.ids) > len(ask.prefix))
        return ((each.sequence, each.parts) for each in growing.values() if each.parts)

    def _paying_room(self, growing: _Growing, name: str, room: int, wanted: float) -> int:
        """How many of a costly drafter's tokens are worth asking for, going by how its first ones have done."""
        kind = (name, _FIRST, growing.sequence.request.type_key)
        chance = self._acceptance.chance(kind, _DEFAULT_CHANCE) * self._luck_of(growing.sequence, name).factor
        reach, count = growing.chance, 0
        while count < room and reach * min(chance, 1.0) >= wanted:
            reach *= min(chance, 1.0)
            count += 1
        if not count:
            self._acceptance.untried(kind)
            self._seconds_a_token[name] *= _KEEP_UNASKED  # one slow call does not keep it off for good
        return count

    def _ask(self, drafter: Drafter, asks: list[Ask]) -> Ids[Draft]:
        started_s = self._clock()
        try:
            drafts = drafter.propose(asks)
            if len(drafts) != len(asks):
                raise ValueError(f"{len(drafts)} drafts for {len(asks)} sequences")
            num_tokens = sum(len(draft.ids) for draft in drafts)
        except Exception as error:
            self._failed(drafter.name, error)
            return ()
        if num_tokens:
            seconds = (self._clock() - started_s) / num_tokens
            before = self._seconds_a_token[drafter.name]
            self._seconds_a_token[drafter.name] = before + _NEW_SHARE * (seconds - before)
        return drafts

    def _failed(self, name: str, error: Exception) -> None:
        if name not in self._logged:
            _log.warning("drafter %r failed; its requests go on without it: %s", name, faults.told(error))
            self._logged.add(name)
        self._faults[name] += 1

    def _extend(self, growing: _Growing, ask: Ask, draft: Draft, threshold: float, name: str) -> bool:
        """Append what of a draft is sound and pays. False for what is not even shaped like a draft."""
        try:
            ids, probs = self._sound(draft, ask)
            if ids:
                self._append(growing, name, draft, ids, probs, threshold)
        except Exception as error:
            self._failed(name, error)
            return False
        return True

    def _append(
        self,
        growing: _Growing,
        name: str,
        draft: Draft,
        ids: tuple[int, ...],
        probs: NDArray[np.float64] | None,
        threshold: float,
    ) -> None:
        sequence = growing.sequence
        threshold = self._threshold(sequence, name, threshold)
        factor = self._luck_of(sequence, name).factor
        type_key = sequence.request.type_key
        kinds: list[tuple[Hashable, ...]] = []
        expected: list[float] = []
        for place in range(len(ids)):
            opinion = _opinion(draft, place)
            kind = _kind(draft, place, opinion, name, type_key)
            chance = min(1.0, factor * self._acceptance.chance_within(kind, opinion))
            pays = growing.chance * chance >= threshold
            if not pays:
                self._acceptance.untried(*kind)
                if probs is None:
                    break
            growing.chance *= chance
            kinds.append(kind)
            expected.append(chance)
            if not pays:  # a sampled token is never dropped for what it is
                break
        if kinds:
            part = DraftPart(name, ids, probs, tuple(kinds), tuple(expected))
            growing.add(part if len(kinds) == len(ids) else part.cut(len(kinds)))
        growing.is_open = len(kinds) == len(ids)

    def _threshold(self, sequence: Sequence, name: str, threshold: float) -> float:
        if sequence.constraint is None and name in self._cheap:
            return _in_free_text(threshold)
        return threshold

    def _worth(self, growing: _Growing, name: str, threshold: float) -> _Worth:
        sequence = growing.sequence
        least = self._threshold(sequence, name, threshold)
        factor = growing.chance * self._luck_of(sequence, name).factor
        return _Worth(self._acceptance, name, sequence.request.type_key, factor, growing.chance, least)

    def _sound(self, draft: Draft, ask: Ask) -> tuple[tuple[int, ...], NDArray[np.float64] | None]:
        """The ids up to the first that is none, and their laws up to the first that is none. Raises for garbage."""
        ids: list[int] = []
        for value in tuple(draft.ids)[: ask.room]:
            token_id = operator.index(value)
            if not 0 <= token_id < self._vocab_size:
                break
            ids.append(token_id)
        params = ask.sequence.request.params
        if draft.probs is None or params.temperature == 0.0 or params.seed is not None:
            return tuple(ids), None
        probs = np.asarray(draft.probs, dtype=np.float64)[: len(ids), : self._vocab_size]
        if probs.ndim != 2 or probs.shape[1] != self._vocab_size:
            return (), None
        count = _num_laws(probs, ids)
        return tuple(ids[:count]), probs[:count]

    def _rest_of(self, sequence: Sequence) -> _Rest:
        rest = self._rests.get(sequence)
        if rest is None:
            rest = self._rests[sequence] = _Rest()
        return rest

    def _luck_of(self, sequence: Sequence, name: str) -> Luck:
        by_name = self._luck.get(sequence)
        if by_name is None:
            by_name = self._luck[sequence] = {}
        luck = by_name.get(name)
        if luck is None:
            luck = by_name[name] = Luck()
        return luck

    # --- after a step ---------------------------------------------------------------------------------------------

    def verified(self, span: Span, tokens: Ids[Sampled]) -> None:
        """What the forward made of the sequence's draft, which is still in place."""
        sequence, place = span.sequence, 0
        num_drafted = span.num_sampled - 1
        for part in sequence.draft_parts:
            ids = part.ids[: num_drafted - place]
            num_accepted = 0
            for at, token_id in enumerate(ids):
                if place + at >= len(tokens):
                    break
                accepted = tokens[place + at].token_id == token_id
                for kind in part.kinds[at]:
                    self._acceptance.tried(kind, accepted)
                if not at:
                    self._acceptance.tried((part.drafter, _FIRST, sequence.request.type_key), accepted)
                self._luck_of(sequence, part.drafter).tried(accepted, part.expected[at])
                if not accepted:
                    break
                num_accepted += 1
            if part.drafter in self._narrow:
                self._num_narrow += len(ids)
            _count(sequence.draft_counts, part.drafter, len(ids), num_accepted)
            _count(self._counts, part.drafter, len(ids), num_accepted)
            place += len(ids)
            if num_accepted < len(ids):
                tokens = ()

    def timed(self, plan: StepPlan, outcome: StepOutcome, seconds: float) -> None:
        """How long a step took. Those that compute prompts are left out."""
        if self._drafters and all(span.num_tokens == span.num_sampled for span in plan.spans):
            num_rows = sum(span.num_sampled for span in plan.spans)
            num_tokens = sum(len(each.tokens) for each in outcome.outcomes)
            self._cost.measured(len(plan.spans), num_rows, num_tokens, seconds, self._num_narrow)
        self._num_narrow = 0

    def timed_ahead(self, plan: StepPlan, num_steps: int, seconds: float) -> None:
        """The same for steps without drafts that were computed in one call (engine/ahead.py)."""
        if self._drafters:
            num_rows = len(plan.spans)
            self._cost.measured(num_rows, num_rows, num_rows, seconds / num_steps)

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._luck.pop(sequence, None)
        self._rests.pop(sequence, None)
        for drafter in self._drafters:
            try:
                drafter.release(sequence)
            except Exception as error:
                self._failed(drafter.name, error)


class _Rest:
    """After each look at a sequence that found nothing, twice as many steps go by until the next one, unless forced
    text comes before."""

    __slots__ = ("_left", "_num_vain")

    def __init__(self) -> None:
        self._num_vain = self._left = 0

    def goes_on(self) -> bool:
        """One step of it, if there is one left."""
        self._left -= 1
        return self._left >= 0

    def asked(self, *, found: bool) -> None:
        self._num_vain = 0 if found else min(self._num_vain + 1, _MAX_REST)
        self._left = 2**self._num_vain - 1


class _Growing:
    """A sequence's draft in the making. ids: of its parts so far."""

    __slots__ = ("_asked", "_names", "_room", "chance", "ids", "is_open", "parts", "sequence")

    def __init__(self, sequence: Sequence, room: int) -> None:
        self.sequence = sequence
        self.parts: list[DraftPart] = []
        self.ids: tuple[int, ...] = ()
        self.chance = 1.0  # that all of it is accepted
        self.is_open = True
        self._room = room
        self._names = sequence.request.drafters
        self._asked: dict[int, int] = {}

    def room_for(self, drafter: Drafter) -> int:
        """0 also for one that was asked for this very draft already: it stands in the line a second time, for what
        others leave it to go on from."""
        if not self.is_open or not (self._names is None or drafter.name in self._names):
            return 0
        room = self._room - len(self.ids)
        if room <= 0 or self._asked.get(id(drafter)) == len(self.parts):
            return 0
        self._asked[id(drafter)] = len(self.parts)
        return room

    def add(self, part: DraftPart) -> None:
        self.parts.append(part)
        self.ids += part.ids


class _Worth:
    """`Worth` of the next token of a draft in the making. reach: the chance that the draft is accepted so far."""

    __slots__ = ("_acceptance", "_factor", "_least", "_name", "_reach", "_type_key")

    def __init__(
        self, acceptance: Acceptance, name: str, type_key: int | None, factor: float, reach: float, least: float
    ) -> None:
        self._acceptance, self._name, self._type_key = acceptance, name, type_key
        self._factor, self._reach, self._least = factor, reach, least

    def pays(self, kind: Hashable, chance: float) -> bool:
        measured = self._acceptance.chance_within(_kinds(kind, self._name, self._type_key), chance)
        return min(self._reach, self._factor * measured) >= self._least

    def left_out(self, kind: Hashable) -> None:
        self._acceptance.untried(*_kinds(kind, self._name, self._type_key))


def _count(counts: dict[str, DraftCounts], name: str, drafted: int, accepted: int) -> None:
    before = counts.get(name, DraftCounts())
    counts[name] = DraftCounts(before.drafted + drafted, before.accepted + accepted)


def _in_free_text(threshold: float) -> float:
    """The threshold of a cheap guess where no constraint is."""
    return min(_FREE_MARGIN * threshold, _FREE_HIGHEST)


def _opinion(draft: Draft, place: int) -> float:
    if draft.chances is None or place >= len(draft.chances):
        return _DEFAULT_CHANCE
    chance = float(draft.chances[place])
    return min(max(chance, 0.0), 1.0) if chance == chance else _DEFAULT_CHANCE


def _kind(draft: Draft, place: int, opinion: float, name: str, type_key: int | None) -> tuple[Hashable, ...]:
    """What acceptance is kept by, from the broad to the narrow."""
    if draft.kinds is None or place >= len(draft.kinds):
        return ((name, int(opinion * 8), type_key),)
    return _kinds(draft.kinds[place], name, type_key)


def _kinds(kind: Hashable, name: str, type_key: int | None) -> tuple[Hashable, ...]:
    narrow = (name, kind, type_key)
    return ((name, kind[0], type_key), narrow) if isinstance(kind, tuple) and kind else (narrow,)


def _num_laws(probs: NDArray[np.float64], ids: list[int]) -> int:
    """How many rows, from the first, are a law that may have drawn their id."""
    count = 0
    for row, token_id in zip(probs, ids):
        is_law = bool(np.isfinite(row).all()) and row.min() >= 0.0 and abs(row.sum() - 1.0) <= _SUM_TOLERANCE
        if not is_law or row[token_id] <= 0.0:
            break
        count += 1
    return count
