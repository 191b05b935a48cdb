"""Draft length: what is let through pays, what does not pay is left out, and what was left out is tried again."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ids
from typing import Any

import pytest

from safegen.engine.backend import ForwardBatch
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft
from safegen.engine.speculate.estimate import Acceptance, Luck, StepCost
from safegen.engine.speculate.speculator import Speculator, _Rest
from tests.support.drafters import FunctionDrafter, coming_tokens
from tests.support.engine_driver import drive, make_core, make_request, naive
from tests.support.fake_backend import FakeBackend


def cost_of(fixed_s: float, row_s: float, rows: Ids[int], accepted: float = 1.0) -> StepCost:
    cost = StepCost()
    for number in rows:
        cost.measured(1, number, round(1 + (number - 1) * accepted), fixed_s + row_s * number)
    return cost


@pytest.mark.parametrize(("fixed_s", "row_s"), [(3e-3, 0.2e-3), (1e-3, 1e-3), (5e-3, 5e-3)])
def test_row_cost_is_the_slope_of_the_steps(fixed_s: float, row_s: float) -> None:
    cost = cost_of(fixed_s, row_s, [1, 4, 2, 8, 6, 3] * 12)
    assert cost.row_seconds == pytest.approx((row_s, row_s), rel=0.15)


def test_narrow_rows_have_a_cost_of_their_own() -> None:
    cost, rng = StepCost(), random.Random(5)
    for _ in range(200):
        wide, narrow = 16 + rng.randrange(8), rng.randrange(30)
        cost.measured(16, wide + narrow, wide + narrow, 2e-3 + 0.8e-3 * wide + 0.5e-3 * narrow, narrow)
    assert cost.row_seconds == pytest.approx((0.8e-3, 0.5e-3), rel=0.25)
    price = cost.price(16)
    assert price.wide > price.narrow + 0.1


def test_where_few_sequences_share_a_step_less_likely_tokens_pay() -> None:
    cost, rng = StepCost(), random.Random(5)
    for _ in range(200):
        num_rows = 16 + rng.randrange(20)
        cost.measured(16, num_rows, num_rows, 5e-3 + 0.8e-3 * num_rows)
    many, few = cost.price(16), cost.price(2)
    assert many.wide > 0.75 and few.wide < 0.5
    assert few.rate == pytest.approx(2 * 25.5 / 16 / (5e-3 + 0.8e-3 * 2 * 25.5 / 16), rel=0.2)


def test_narrow_rows_are_never_taken_for_dearer_than_others() -> None:
    cost, rng = StepCost(), random.Random(5)
    for _ in range(200):
        narrow = rng.randrange(8)
        cost.measured(8, 8 + narrow, 8, 2e-3 + 0.2e-3 * 8 + 0.9e-3 * narrow, narrow)
    wide_s, narrow_s = cost.row_seconds
    assert narrow_s <= wide_s


def test_where_rows_cost_little_unlikely_tokens_pay_and_where_they_cost_all_only_sure_ones() -> None:
    cheap = cost_of(3e-3, 0.1e-3, [1, 2, 3] * 20, accepted=0.3)
    dear = cost_of(0.1e-3, 1e-3, [16, 18, 20] * 20)
    assert cheap.price(1).wide < 0.2
    assert dear.price(1).wide > 0.85


def test_one_step_that_was_held_up_changes_little() -> None:
    cost = cost_of(3e-3, 0.5e-3, [1, 2, 4] * 20)
    before = cost.price(1).wide
    cost.measured(1, 1, 1, 3.0)
    assert cost.price(1).wide == pytest.approx(before, abs=0.2)


def test_before_anything_is_measured_the_threshold_is_in_the_middle() -> None:
    assert 0.2 < StepCost().price(1).wide == StepCost().price(1).narrow < 0.6


def test_acceptance_follows_what_is_measured_and_drifts_back_untried() -> None:
    acceptance = Acceptance()
    assert acceptance.chance("a", 0.7) == 0.7
    for _ in range(60):
        acceptance.tried("a", False)
    assert acceptance.chance("a", 0.7) < 0.1
    for _ in range(800):
        acceptance.untried("a", "never seen")
    assert acceptance.chance("a", 0.7) > 0.65


def test_a_new_kind_begins_with_the_chance_of_the_broad_one() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.tried("broad", False)
    assert acceptance.chance_within(("broad", "new"), 0.9) < 0.3
    for _ in range(30):
        acceptance.tried("narrow", True)
    assert acceptance.chance_within(("broad", "narrow"), 0.9) > 0.85


def test_kinds_are_bounded() -> None:
    acceptance = Acceptance()
    for number in range(40_000):
        acceptance.tried(number, True)
    assert len(acceptance._trials) <= 16_386


def test_a_sequence_that_does_worse_than_expected_counts_for_less() -> None:
    luck = Luck()
    assert luck.factor == 1.0
    for _ in range(20):
        luck.tried(False, 0.9)
    assert luck.factor < 0.4


class _Clock:
    """Time that passes by rows alone."""

    def __init__(self, fixed_s: float, row_s: float) -> None:
        self.now_s, self._fixed_s, self._row_s = 0.0, fixed_s, row_s

    def __call__(self) -> float:
        return self.now_s

    def passes(self, batch: ForwardBatch) -> None:
        self.now_s += self._fixed_s + self._row_s * len(batch.ids)


class _Sometimes:
    """Right with a given chance at every token; it says nothing about it."""

    name, is_costly, is_forced = "sometimes", False, False

    def __init__(self, wrong_every: int) -> None:
        self._wrong_every, self._rng = wrong_every, random.Random(1)

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [Draft(tuple(map(self._spoil, coming_tokens(ask, 6)))) for ask in asks]

    def _spoil(self, token_id: int) -> int:
        return token_id if self._rng.randrange(self._wrong_every) else (token_id + 1) % 60

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def run_of(wrong_every: int, fixed_s: float, row_s: float) -> tuple[float, Any]:
    """Seconds of 400 tokens, by a clock that knows rows alone, and the core's statistics."""
    clock = _Clock(fixed_s, row_s)
    backend = FakeBackend()
    backend.on_forward = clock.passes
    speculator = Speculator([_Sometimes(wrong_every)], clock=clock) if wrong_every else None
    core = make_core(backend, speculator=speculator, num_blocks=128, clock=clock)
    for number in range(2):
        asked = make_request(f"r{number}", [1, 2, 3], max_tokens=200, seed=number, temperature=1.0, stop_ids=())
        wanted = naive(asked)
        assert drive(core, [asked])[asked.request_id, 0].token_ids == wanted
    return clock.now_s, core.stats()


def test_right_drafts_are_taken_at_length_and_save_their_time() -> None:
    plain_s, _ = run_of(0, 3e-3, 0.5e-3)
    drafted_s, stats = run_of(1000, 3e-3, 0.5e-3)
    assert drafted_s < 0.4 * plain_s
    assert stats.accepted_tokens > 300


@pytest.mark.parametrize(("wrong_every", "row_s"), [(1, 1e-3), (2, 3e-3)])
def test_drafts_that_do_not_pay_cost_next_to_nothing(wrong_every: int, row_s: float) -> None:
    plain_s, _ = run_of(0, 1e-3, row_s)
    drafted_s, stats = run_of(wrong_every, 1e-3, row_s)
    assert drafted_s < plain_s / 0.94
    assert stats.drafted_tokens < 60


@pytest.mark.parametrize(("num_rows", "row_s", "least", "most"), [(16, 3e-3, 0.0, 0.4), (2, 1e-5, 0.9, 1.0)])
def test_where_rows_are_dear_free_text_that_has_nothing_to_copy_is_looked_at_seldom(
    num_rows: int, row_s: float, least: float, most: float
) -> None:
    clock, looks = _Clock(1e-5 if row_s > 1e-4 else 3e-3, row_s), list[int]()
    backend = FakeBackend()
    backend.on_forward = clock.passes

    def look(ask: Ask) -> Draft:
        looks.append(ask.sequence.num_output_tokens)
        return NO_DRAFT

    speculator = Speculator([FunctionDrafter(look)], clock=clock)
    core = make_core(backend, speculator=speculator, num_blocks=512, max_num_seqs=num_rows, clock=clock)
    sampling: dict[str, Any] = {"max_tokens": 100, "temperature": 1.0, "stop_ids": ()}
    drive(core, [make_request(f"r{number}", [1, 2, 3], seed=number, **sampling) for number in range(num_rows)])
    assert least * 100 * num_rows <= len(looks) <= most * 100 * num_rows
    assert max(looks) > 80  # never for good


def test_a_rest_grows_while_nothing_is_found_and_ends_when_something_is() -> None:
    rest, steps = _Rest(), []
    for step in range(40):
        if not rest.goes_on():
            steps.append(step)
            rest.asked(found=step == 22)
    assert steps == [0, 2, 6, 14, 22, 23, 25, 29, 37]
