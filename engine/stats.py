"""What an engine counts about itself. Written by its thread alone, readable from any.

A step adds one number to a rate window; all else is counted at the end of a sequence. Readers take no lock: they see
counts of one moment, which may lie a step apart from each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from safegen.engine.request import DraftCounts, FinishReason, Timings, Usage

RATE_WINDOW_S = 10
LATENCY_BOUNDS_MS = (
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 2.5e4, 5e4, 1e5, 2.5e5,
)  # fmt: skip
_RECENT = 1024  # values that percentiles are taken of
_ANSWERED = ("stop", "length")  # the ends that latencies are counted of


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one kind. buckets: how many lay at or below each of LATENCY_BOUNDS_MS but above the one before,
    and last those above all. recent: the newest values, at most 1,024, in no order: what percentiles are taken of."""

    sum_ms: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_MS) + 1)
    recent: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def percentile(self, share: float) -> float | None:
        """The smallest recent value that at least `share` of them do not pass (nearest rank); None: there is none."""
        ordered = sorted(self.recent)
        return ordered[max(0, -(-round(share * 1000) * len(ordered) // 1000) - 1)] if ordered else None


class _LatencyRecorder:
    def __init__(self) -> None:
        self._sum_ms = 0.0
        self._buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._recent: list[float] = []
        self._next = 0

    def add(self, milliseconds: float) -> None:
        self._sum_ms += milliseconds
        self._buckets[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += 1
        if len(self._recent) < _RECENT:
            self._recent.append(milliseconds)
        else:
            self._recent[self._next] = milliseconds
            self._next = (self._next + 1) % _RECENT

    def taken(self) -> Latency:
        return Latency(self._sum_ms, tuple(self._buckets), tuple(self._recent))


class RateWindow:
    """Tokens a second over the last RATE_WINDOW_S seconds, kept as a sum for each second of the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s = clock()
        self._seconds = [-1] * RATE_WINDOW_S
        self._counts = [0] * RATE_WINDOW_S

    def add(self, count: int) -> None:
        second = int(self._clock())
        place = second % RATE_WINDOW_S
        if self._seconds[place] != second:
            self._counts[place] = 0
            self._seconds[place] = second
        self._counts[place] += count

    def per_second(self) -> float:
        """Over the window, or as long as there has been one, at least a second."""
        now_s = self._clock()
        oldest = int(now_s) - RATE_WINDOW_S + 1
        total = sum(count for second, count in zip(self._seconds, self._counts) if second >= oldest)
        return total / max(1.0, min(now_s - oldest, now_s - self._started_s))


class SequenceMeter:
    """Totals over ended sequences: why they ended, their tokens and their latencies."""

    def __init__(self) -> None:
        self.finished: Counter[FinishReason] = Counter()
        self.prompt_tokens = self.cached_tokens = 0
        self._latency = {name: _LatencyRecorder() for name in ("queue", "first_token", "token", "total")}

    def ended(self, indexes: list[int], reason: FinishReason, usage: Usage, timings: Timings) -> None:
        """indexes: the request's samples that the sequence answered for; the prompt counts once, with the first."""
        if not indexes:
            return
        self.finished[reason] += len(indexes)
        if 0 in indexes:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
        if reason in _ANSWERED:
            for _ in indexes:
                self._answered(usage, timings)

    def _answered(self, usage: Usage, timings: Timings) -> None:
        latency = self._latency
        latency["queue"].add(timings.queue_ms)
        latency["total"].add(timings.total_ms)
        if usage.completion_tokens:
            latency["first_token"].add(timings.first_token_ms)
        if usage.completion_tokens > 1:
            latency["token"].add((timings.total_ms - timings.first_token_ms) / (usage.completion_tokens - 1))

    def latency(self) -> dict[str, Latency]:
        return {name: recorder.taken() for name, recorder in self._latency.items()}


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of one moment (running to cached_blocks) and since the start (the others).

    running, waiting: sequences. cached_blocks: blocks that the prefix cache can find. prefix_hit_tokens: tokens taken
    from it instead of being computed. computed_tokens: tokens that went through a forward. output_tokens: tokens handed
    to callers. retracts: how often a sequence went back and on; retracted_tokens: drawn tokens that this cost.
    drafted_tokens: tokens of drafts that a forward verified; accepted_tokens: those that were drawn; by_drafter: both,
    drafter by drafter. forward_s, mask_s: seconds in the backend's forwards, and in filling masks. tokens_per_s: output
    tokens a second over the last RATE_WINDOW_S. Of ended sequences: finished by reason, their prompt_tokens and those
    of them that came from the prefix cache, and latency of the answered ones: "queue" (to the first forward),
    "first_token" and "total", from the submission on, and "token", the mean of a sequence's tokens after its first.
    """

    running: int
    waiting: int
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    prefix_hit_tokens: int
    preemptions: int
    steps: int
    computed_tokens: int
    output_tokens: int
    finished_sequences: int
    retracts: int
    retracted_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)
    forward_s: float = 0.0
    mask_s: float = 0.0
    tokens_per_s: float = 0.0
    finished: Mapping[FinishReason, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    latency: Mapping[str, Latency] = field(default_factory=dict)
