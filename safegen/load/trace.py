"""Arrivals as users make them, and what a service's answers to them come to: TTFT, TPOT, percentiles, goodput.

Times are the client's. An open loop's requests come when they come, whatever became of the earlier ones: their times
count from when they should have been sent, so that a late client is the service's problem too. A closed loop sends the
next request when one has ended. Plain Python: benchmarks of other engines use it as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not pass (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """at_s: since the start of the trace. place: which entry of the workload it asks for."""

    at_s: float
    place: int


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request, in seconds of the client's clock since the trace began. first_s: its first text; None: it
    ended without any. tokens: of the answer; prompt_tokens: of the prompt."""

    arrival: Arrival
    sent_s: float
    first_s: float | None
    last_s: float
    tokens: int
    ok: bool
    prompt_tokens: int = 0

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

    def tokens_within(self, start_s: float, end_s: float) -> float:
        """How many of its tokens came in that time, if they came evenly from the first to the last."""
        if self.first_s is None:
            return 0.0
        overlap_s = min(end_s, self.last_s) - max(start_s, self.first_s)
        if self.last_s <= self.first_s:
            return float(self.tokens) if start_s <= self.first_s <= end_s else 0.0
        return self.tokens * max(0.0, overlap_s) / (self.last_s - self.first_s)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a user is promised: the first text within ttft_s, and then tpot_s a token. None: nothing is.

    share: of the requests that this holds for, so that 0.99 speaks of the 99th percentiles."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    share: float = 0.99

    def holds(self, served: Served) -> bool:
        tpot_s = served.tpot_s
        in_time = self.ttft_s is None or served.ttft_s <= self.ttft_s
        return served.ok and in_time and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)

    def misses(self, served: Sequence[Served]) -> list[str]:
        """What does not hold, in words; nothing where all of it does."""
        found = []
        times = (
            ("TTFT", self.ttft_s, [each.ttft_s for each in served]),
            ("TPOT", self.tpot_s, [tpot_s for each in served if (tpot_s := each.tpot_s) is not None]),
        )
        for name, promised_s, values in times:
            if promised_s is not None and values:
                reached_s = percentile(values, self.share)
                if reached_s > promised_s:
                    label = f"p{100 * self.share:g}"
                    found.append(f"{label} of {name} is {reached_s * 1e3:.0f} ms, promised are {promised_s * 1e3:g} ms")
        num_failed = sum(not each.ok for each in served)
        if num_failed > len(served) * (1 - self.share):
            found.append(f"{num_failed} of {len(served)} requests were not answered as they should")
        return found


def poisson_trace(rate_per_s: float, count: int, num_places: int, seed: int) -> list[Arrival]:
    """`count` arrivals of a Poisson process (independent exponential gaps), each asking for a random entry."""
    _check_rate(rate_per_s)
    rng = random.Random(seed)
    at_s, arrivals = 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        arrivals.append(Arrival(at_s, rng.randrange(num_places)))
    return arrivals


def fixed_trace(rate_per_s: float, count: int, num_places: int, seed: int) -> list[Arrival]:
    """`count` arrivals at equal distances, each asking for a random entry."""
    _check_rate(rate_per_s)
    rng = random.Random(seed)
    return [Arrival(number / rate_per_s, rng.randrange(num_places)) for number in range(count)]


def _check_rate(rate_per_s: float) -> None:
    if not rate_per_s > 0:
        raise ValueError(f"the rate must be positive, got {rate_per_s}")


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
        "client_late_ms": 1e3 * max(each.sent_s - each.arrival.at_s for each in served),
    }


def steady_tokens_per_s(served: Sequence[Served], concurrency: int) -> float | None:
    """Tokens a second while `concurrency` requests were in flight: from the first text of the last of those that the
    loop began with, until the last request was sent. None: there were too few requests for that."""
    in_order = sorted(served, key=lambda each: each.sent_s)
    begun = [each.first_s for each in in_order[:concurrency] if each.first_s is not None]
    start_s, end_s = max(begun, default=0.0), in_order[-1].sent_s
    if len(served) <= concurrency or end_s <= start_s:
        return None
    return sum(each.tokens_within(start_s, end_s) for each in served) / (end_s - start_s)


__all__ = [
    "Arrival",
    "Served",
    "Slo",
    "fixed_trace",
    "percentile",
    "poisson_trace",
    "steady_tokens_per_s",
    "trace_figures",
]
