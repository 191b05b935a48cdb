"""The engine's own counters: rates over a window, latencies by nearest rank, ends by reason."""

from __future__ import annotations

import pytest

from safegen.engine.request import Timings, Usage
from safegen.engine.stats import LATENCY_BOUNDS_MS, RATE_WINDOW_S, Latency, RateWindow, SequenceMeter


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def test_rate_is_that_of_the_window_and_forgets_what_is_older() -> None:
    clock = Clock(1000.0)
    window = RateWindow(clock)
    for _ in range(40):
        window.add(50)
        clock.now_s += 0.5  # 100 a second
    assert window.per_second() == pytest.approx(100.0, rel=0.06)
    clock.now_s += RATE_WINDOW_S + 1
    assert window.per_second() == 0.0


def test_rate_of_a_young_window_is_over_its_age_and_of_a_newborn_over_a_second() -> None:
    clock = Clock(10.25)
    window = RateWindow(clock)
    window.add(30)
    assert window.per_second() == 30.0
    clock.now_s += 3.0
    assert window.per_second() == 10.0


def test_percentiles_are_nearest_ranks_of_the_newest_values_and_buckets_count_all() -> None:
    meter = SequenceMeter()
    for milliseconds in range(1, 1501):
        meter.ended([0], "stop", Usage(1, 1), Timings(0.0, float(milliseconds), float(milliseconds)))
    total = meter.latency()["total"]
    assert total.count == 1500 and total.sum_ms == 1500 * 1501 / 2
    assert sorted(total.recent) == [float(value) for value in range(1500 - 1023, 1501)]
    assert total.percentile(0.5) == 988.0 and total.percentile(1.0) == 1500.0 and total.percentile(0.0) == 477.0
    assert total.buckets[0] == 1  # at or below 1 ms
    assert sum(total.buckets[: LATENCY_BOUNDS_MS.index(100.0) + 1]) == 100
    assert Latency().percentile(0.5) is None


def test_only_answered_sequences_have_latencies_and_a_prompt_counts_once() -> None:
    meter = SequenceMeter()
    meter.ended([0], "stop", Usage(40, 11, cached_tokens=16), Timings(5.0, 20.0, 120.0))
    meter.ended([1], "length", Usage(40, 1, cached_tokens=16), Timings(5.0, 20.0, 20.0))
    meter.ended([0], "cancelled", Usage(7, 3), Timings(1.0, 2.0, 9.0))
    meter.ended([], "stop", Usage(9, 9), Timings(1.0, 2.0, 9.0))
    assert meter.finished == {"stop": 1, "length": 1, "cancelled": 1}
    assert (meter.prompt_tokens, meter.cached_tokens) == (47, 16)
    latency = meter.latency()
    assert [latency[name].count for name in ("queue", "first_token", "total", "token")] == [2, 2, 2, 1]
    assert latency["token"].recent == (10.0,)
