"""Arrivals as users make them, and what a service's answers to them come to: TTFT, TPOT, percentiles, goodput."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common import percentile

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Arrival:
    """at_s: since the start of the trace. place: which entry of the workload it asks for."""

    at_s: float
    place: int


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request, in seconds of the client's clock since the trace began. first_s: its first text; None: it
    ended without any. tokens: of the answer."""

    arrival: Arrival
    sent_s: float
    first_s: float | None
    last_s: float
    tokens: int
    ok: bool

    @property
    def ttft_s(self) -> float:
        """From when it should have been sent, so that a late client is the service's problem too."""
        return (self.last_s if self.first_s is None else self.first_s) - self.arrival.at_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None where there is no second one."""
        if self.first_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a user is promised: the first text within ttft_s, and then tpot_s a token."""

    ttft_s: float
    tpot_s: float

    def holds(self, served: Served) -> bool:
        tpot_s = served.tpot_s
        return served.ok and served.ttft_s <= self.ttft_s and (tpot_s is None or tpot_s <= self.tpot_s)


def poisson_trace(rate_per_s: float, count: int, num_places: int, seed: int) -> list[Arrival]:
    """`count` arrivals of a Poisson process (independent exponential gaps), each asking for a random entry."""
    if rate_per_s <= 0:
        raise ValueError(f"the rate must be positive, got {rate_per_s}")
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        arrivals.append(Arrival(at_s, rng.randrange(num_places)))
    return arrivals


def trace_figures(served: Sequence[Served], slo: Slo) -> dict[str, float]:
    """ttft_ms.*, tpot_ms.*, total_ms.* (percentiles), goodput_pct and goodput_per_s (requests within the SLO),
    requests_per_s, tokens_per_s, ok_pct, client_late_ms (the most that a request was sent too late)."""
    series = {
        "ttft_ms": [each.ttft_s * 1e3 for each in served],
        "tpot_ms": [tpot_s * 1e3 for each in served if (tpot_s := each.tpot_s) is not None],
        "total_ms": [(each.last_s - each.arrival.at_s) * 1e3 for each in served],
    }
    figures = {
        f"{name}.{key}": percentile(values, share)
        for name, values in series.items()
        if values
        for key, share in SHARES.items()
    }
    good = sum(slo.holds(each) for each in served)
    span_s = max(each.last_s for each in served) - min(each.arrival.at_s for each in served)
    return figures | {
        "goodput_pct": 100 * good / len(served),
        "goodput_per_s": good / span_s,
        "requests_per_s": len(served) / span_s,
        "tokens_per_s": sum(each.tokens for each in served) / span_s,
        "ok_pct": 100 * sum(each.ok for each in served) / len(served),
        "client_late_ms": max(each.sent_s - each.arrival.at_s for each in served) * 1e3,
    }
