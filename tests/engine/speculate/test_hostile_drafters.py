"""A drafter that raises, or gives garbage, costs speed and never a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
import pytest

from safegen.engine.request import Request
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import Ask, Draft
from safegen.engine.speculate.speculator import Speculator
from tests.support.drafters import coming_tokens, speculator_of
from tests.support.engine_driver import STOP, drive, make_core, make_request, naive
from tests.support.fake_backend import FAKE_VOCAB

UNIFORM = np.full((6, FAKE_VOCAB), 1 / FAKE_VOCAB)


def laws(change: Callable[[Any], Any]) -> Any:
    changed = UNIFORM.copy()
    return change(changed)


def spoil(row: int, value: float) -> Any:
    def change(probs: Any) -> Any:
        probs[row] = value
        return probs

    return laws(change)


GARBAGE: dict[str, Draft] = {
    "negative ids": Draft((-1, 3)),
    "huge ids": Draft((2**63, 3)),
    "ids just past the vocabulary": Draft((FAKE_VOCAB, 3)),
    "ids that are no numbers": Draft(("a", None)),  # type: ignore[arg-type]
    "ids that are floats": Draft((1.5, 2.0)),  # type: ignore[arg-type]
    "no ids at all": Draft(None),  # type: ignore[arg-type]
    "a million ids": Draft((7,) * 1_000_000),
    "control ids": Draft((STOP, STOP, STOP)),
    "NaN probabilities": Draft((1, 2, 3), spoil(0, np.nan)),
    "NaN in the second row": Draft((1, 2, 3), spoil(1, np.nan)),
    "infinite probabilities": Draft((1, 2, 3), spoil(0, np.inf)),
    "negative probabilities": Draft((1, 2, 3), laws(lambda probs: -probs)),
    "probabilities that sum to 2": Draft((1, 2, 3), laws(lambda probs: 2 * probs)),
    "zero probabilities": Draft((1, 2, 3), laws(lambda probs: 0 * probs)),
    "too few rows": Draft((1, 2, 3), UNIFORM[:1]),
    "too few columns": Draft((1, 2, 3), UNIFORM[:, :5]),
    "one row": Draft((1, 2, 3), UNIFORM[0]),
    "probabilities of text": Draft((1, 2, 3), np.array([["a"] * FAKE_VOCAB])),  # type: ignore[arg-type]
    "NaN chances": Draft((1, 2, 3), None, (float("nan"),) * 3),
    "too few chances": Draft((1, 2, 3), None, (0.5,), ()),
    "kinds that cannot be hashed": Draft((1, 2, 3), None, None, ([], [], [])),  # type: ignore[arg-type]
    "no draft": None,  # type: ignore[dict-item]
}


def requests() -> list[Request]:
    made = []
    for number in range(6):
        seed = None if number == 5 else number  # with a seed of its own, probabilities are not looked at
        made.append(
            make_request(
                f"r{number}", [number + 1, 9], max_tokens=12, constrained=number % 2 == 1, temperature=1.0, seed=seed
            )
        )
    return made


def assert_answered_as_ever(speculator: Speculator) -> None:
    asked = requests()
    wanted = {one.request_id: naive(one) for one in asked if one.params.seed is not None}
    outcomes = drive(make_core(speculator=speculator), asked)
    for one in asked:
        outcome = outcomes[one.request_id, 0]
        assert outcome.reason in ("stop", "length")
        if one.request_id in wanted:
            assert outcome.token_ids == wanted[one.request_id]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_costs_no_request(name: str, adaptive: bool) -> None:
    speculator = speculator_of(lambda ask: GARBAGE[name])
    speculator._adaptive = adaptive
    assert_answered_as_ever(speculator)


@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyError(3), RecursionError(), MemoryError(), AssertionError()]
)
def test_a_drafter_that_raises_is_logged_once_and_asked_no_more(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken(ask: Ask) -> Draft:
        calls.append(1)
        raise error

    with caplog.at_level(logging.WARNING):
        assert_answered_as_ever(speculator_of(broken))
    assert len([record for record in caplog.records if "went on" in record.message or "failed" in record.message]) == 1
    assert len(calls) == 8


@pytest.mark.parametrize("name", ["ids that are no numbers", "no ids at all", "kinds that cannot be hashed"])
def test_a_drafter_that_gives_no_drafts_is_logged_once_and_asked_no_more(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken(ask: Ask) -> Draft:
        calls.append(1)
        return GARBAGE[name]

    asked = make_request("a", [1, 9], max_tokens=30, stop_ids=())
    with caplog.at_level(logging.WARNING):
        outcome = drive(make_core(speculator=speculator_of(broken)), [asked])["a", 0]
    assert outcome.token_ids == naive(asked)
    assert sum("failed" in record.message for record in caplog.records) == 1
    assert len(calls) == 8


def test_a_drafter_that_fails_now_and_then_goes_on() -> None:
    calls: list[int] = []

    def shaky(ask: Ask) -> Draft:
        calls.append(1)
        if len(calls) % 10 == 0:  # fails the proposals of all six
            raise OSError("now and then")
        return Draft(tuple(coming_tokens(ask, 2)))

    speculator = speculator_of(shaky)
    assert_answered_as_ever(speculator)
    assert speculator.num_accepted > 5


class _WrongCount:
    name, is_costly, is_forced = "wrong count", True, False

    def __init__(self, drafts: Any) -> None:
        self._drafts = drafts

    def propose(self, asks: Ids[Ask]) -> Any:
        return self._drafts

    def release(self, sequence: Sequence) -> None:
        raise RuntimeError("release fails too")


@pytest.mark.parametrize("drafts", [[], [Draft((1,))] * 50, None, 3, [None]], ids=repr)
def test_another_number_of_drafts_than_asked_for_costs_no_request(drafts: Any) -> None:
    assert_answered_as_ever(Speculator([_WrongCount(drafts)], adaptive=False))


def test_a_wrong_drafter_does_not_stop_the_one_after_it() -> None:
    good = speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 3))))
    both = Speculator([_WrongCount(None), *good._drafters], max_tokens_a_draft=6, adaptive=False)
    assert_answered_as_ever(both)
    assert both.counts()["function"].accepted > 5
