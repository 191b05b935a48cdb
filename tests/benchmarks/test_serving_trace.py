"""The trace is a Poisson process that a seed fixes, and what is said about its answers follows from their times."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.serving import load_names, median_figures
from safegen.load.trace import Arrival, Served, Slo, poisson_trace, trace_figures


def test_a_seed_fixes_the_trace_and_gaps_are_those_of_a_poisson_process() -> None:
    trace = poisson_trace(4.0, 4000, 10, seed=3)
    assert trace == poisson_trace(4.0, 4000, 10, seed=3) != poisson_trace(4.0, 4000, 10, seed=4)
    times = [arrival.at_s for arrival in trace]
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times)]
    assert min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)  # exponential: the deviation equals the mean
    assert {arrival.place for arrival in trace} == set(range(10))
    with pytest.raises(ValueError, match="positive"):
        poisson_trace(0.0, 1, 1, seed=0)


def served(at_s: float, first_s: float | None, last_s: float, tokens: int, ok: bool = True) -> Served:
    return Served(Arrival(at_s, 0), at_s + 0.01, first_s, last_s, tokens, ok)


def test_times_count_from_the_arrival_and_tokens_from_the_first() -> None:
    one = served(1.0, 1.5, 2.5, 11)
    assert (one.ttft_s, one.tpot_s) == (0.5, 0.1)
    assert served(1.0, 1.5, 1.5, 1).tpot_s is None
    assert served(1.0, None, 3.0, 0).ttft_s == 2.0


def test_goodput_counts_the_right_answers_that_came_in_time() -> None:
    answers = [
        served(0.0, 0.4, 1.4, 11),  # in time: 0.4 s, 0.1 s a token
        served(0.0, 0.6, 1.0, 11),  # first text too late
        served(0.0, 0.1, 4.1, 11),  # too slow a token
        served(0.0, 0.1, 0.2, 1, ok=False),
    ]
    figures = trace_figures(answers, Slo(ttft_s=0.5, tpot_s=0.1001))
    assert figures["goodput_pct"] == 25.0 and figures["ok_pct"] == 75.0
    assert figures["requests_per_s"] == pytest.approx(4 / 4.1)
    assert figures["goodput_per_s"] == pytest.approx(1 / 4.1)
    assert figures["tokens_per_s"] == pytest.approx(34 / 4.1)
    assert figures["client_late_ms"] == pytest.approx(10.0)
    assert figures["ttft_ms.p50"] == pytest.approx(100.0) and figures["ttft_ms.p99"] == pytest.approx(600.0)
    assert figures["tpot_ms.p50"] == pytest.approx(100.0) and figures["tpot_ms.p95"] == pytest.approx(400.0)


def test_figures_are_medians_of_the_rounds_under_names_without_further_dots() -> None:
    rows = [
        {"load": load, "figures": figures}
        for load, figures in (
            ("capacity", {"capacity_per_s": 4.0}), ("load50", {"ttft_ms.p50": 10.0}),
            ("capacity", {"capacity_per_s": 8.0}), ("load50", {"ttft_ms.p50": 30.0}),
        )
    ]  # fmt: skip
    assert median_figures(rows) == {"capacity_per_s": 6.0, "load50.ttft_ms.p50": 20.0}
    assert load_names(None) == ["load25", "load50", "load75", "load100"]
    assert load_names([2.0, 0.5]) == ["rate2", "rate0_5"]
