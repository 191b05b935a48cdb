"""Circuits and the retry budget by a clock that the test moves."""

from __future__ import annotations

from safegen.gateway.breaker import CircuitBreaker
from safegen.gateway.budget import RetryBudget
from safegen.gateway.config import Circuit, Retries


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.failed(breaker.begin())


def opened(clock: Clock, **given: float) -> CircuitBreaker:
    breaker = CircuitBreaker(Circuit.model_validate({"failures": 3, "open_s": 1.0, "max_open_s": 4.0, **given}), clock)
    fail(breaker, 3)
    assert breaker.state == "open"
    return breaker


def test_successive_failures_open_it_and_a_success_between_does_not() -> None:
    breaker = CircuitBreaker(Circuit(failures=3), Clock())
    fail(breaker, 2)
    breaker.succeeded(breaker.begin())
    fail(breaker, 2)
    assert breaker.state == "closed" and breaker.allows()
    fail(breaker, 1)
    assert breaker.state == "open" and not breaker.allows()


def test_a_share_of_failures_opens_it() -> None:
    breaker = CircuitBreaker(Circuit(failures=100, window=10, failure_share=0.5), Clock())
    for _ in range(4):
        fail(breaker, 1)
        breaker.succeeded(breaker.begin())
    assert breaker.state == "closed"  # 4 of 8: too few to tell
    breaker.succeeded(breaker.begin())
    breaker.succeeded(breaker.begin())
    assert breaker.state == "closed"  # 4 of 10
    fail(breaker, 1)  # the first failure leaves the window
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"  # 5 of 10


def test_one_probe_goes_when_it_is_half_open() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 0.99
    assert not breaker.allows() and breaker.rest_s > 0
    clock.now = 1.0
    assert breaker.state == "half_open" and breaker.allows() and breaker.rest_s == 0
    era = breaker.begin()
    assert not breaker.allows()
    breaker.succeeded(era)
    assert breaker.state == "closed" and breaker.allows()


def test_it_rests_twice_as_long_after_each_probe_that_fails() -> None:
    clock = Clock()
    breaker = opened(clock)
    for rest_s in (2.0, 4.0, 4.0):
        clock.now += breaker.rest_s
        assert breaker.failed(breaker.begin())
        assert breaker.rest_s == rest_s
    clock.now += breaker.rest_s
    breaker.succeeded(breaker.begin())
    fail(breaker, 3)
    assert breaker.rest_s == 1.0  # all is forgotten


def test_a_probe_that_is_left_lets_another_go() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 1.0
    era = breaker.begin()
    breaker.abandoned(era)
    assert breaker.allows()


def test_what_was_begun_before_it_changed_does_not_count() -> None:
    clock = Clock()
    breaker = CircuitBreaker(Circuit(failures=2, open_s=1.0), clock)
    early = [breaker.begin() for _ in range(4)]
    for era in early[:2]:
        breaker.failed(era)
    clock.now = 1.0
    probe = breaker.begin()
    breaker.failed(early[2])
    breaker.succeeded(early[3])
    breaker.abandoned(early[3])
    assert breaker.state == "half_open" and not breaker.allows()
    breaker.succeeded(probe)
    assert breaker.state == "closed"


def test_retries_are_a_share_of_requests_with_a_reserve() -> None:
    clock = Clock()
    budget = RetryBudget(Retries(share=0.25, per_second=0, reserve=3), clock=clock)
    assert [budget.withdraw() for _ in range(4)] == [True, True, True, False]
    for _ in range(8):
        budget.deposit()
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    assert budget.num_refused == 2
    for _ in range(1000):
        budget.deposit()
    assert budget.tokens == 3


def test_a_few_retries_a_second_go_whatever_comes() -> None:
    clock = Clock()
    budget = RetryBudget(Retries(share=0, per_second=2, reserve=2), clock=clock)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    clock.now = 0.5
    assert [budget.withdraw() for _ in range(2)] == [True, False]
    clock.now = 100.0
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]


def test_no_reserve_is_no_retry() -> None:
    budget = RetryBudget(Retries(reserve=0), 7, Clock())
    budget.deposit()
    assert not budget.withdraw()


def test_the_reserve_is_what_all_upstreams_may_have_in_work() -> None:
    budget = RetryBudget(Retries(), 7, Clock())
    assert [budget.withdraw() for _ in range(8)] == [True] * 7 + [False]
