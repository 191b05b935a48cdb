"""`Stats`: what one LLM has done and is doing, as numbers. Frozen; of one moment.

Made of the engine's own counts (`safegen.engine.stats`) and of those of its callers (`meter.py`). No number here is
estimated: rates are counts over a stated time, shares are ratios of stated counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from safegen.engine.request import DraftCounts, FinishReason
from safegen.engine.stats import RATE_WINDOW_S, EngineStats, Latency
from safegen.observe.meter import RequestMeter
from safegen.result import Status


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds. count, mean: of all since the start. p50 to p99: of the newest 1,024, None while there are none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, latency: Latency) -> Percentiles:
        count = latency.count
        mean = latency.sum_ms / count if count else None
        return cls(count, mean, *(latency.percentile(share) for share in (0.5, 0.9, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class Stats:
    """What `llm.stats()` returns.

    Now: running and waiting, sequences. kv_blocks, kv_blocks_used, kv_blocks_cached: blocks of the cache, those that
    sequences hold, and those that a later prompt may find; kv_use: the share that is held. tokens_per_s: output tokens
    a second over the last `window_s` seconds.

    Since the start: requests by status, those that raised as the status they would have in a batch; a stream left early
    is "cancelled". sequences by finish reason (a request with n > 1 is several, one that a guard asks for again too).
    prompt_tokens of ended sequences, cached_tokens of them from the prefix cache. output_tokens handed out.
    computed_tokens: that went through a forward. steps of the engine. preemptions: sequences that lost their blocks and
    were computed again. retracts, retracted_tokens: output taken back. forward_s, mask_s: seconds in the model and in
    filling masks. guard_s: seconds by guard, of concluded requests. drafts: drafted and accepted tokens by drafter.

    Latencies of answered sequences: queue_ms from the submission to the first forward, first_token_ms (TTFT) and
    total_ms from the submission, token_ms (TPOT) the mean of a sequence's tokens after its first.
    """

    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_used: int
    kv_blocks_cached: int
    tokens_per_s: float
    requests: Mapping[Status, int]
    sequences: Mapping[FinishReason, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    computed_tokens: int
    steps: int
    preemptions: int
    retracts: int
    retracted_tokens: int
    forward_s: float
    mask_s: float
    guard_s: Mapping[str, float]
    drafts: Mapping[str, DraftCounts]
    queue_ms: Percentiles
    first_token_ms: Percentiles
    token_ms: Percentiles
    total_ms: Percentiles
    window_s: int = RATE_WINDOW_S

    @property
    def kv_use(self) -> float:
        return self.kv_blocks_used / self.kv_blocks

    @property
    def cache_hit_rate(self) -> float | None:
        """The share of prompt tokens that came from the prefix cache; None before the first ended sequence."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def acceptance(self) -> Mapping[str, float]:
        """The share of drafted tokens that became output, by drafter."""
        return {name: counts.accepted / counts.drafted for name, counts in self.drafts.items() if counts.drafted}


def stats_of(engine: EngineStats, meter: RequestMeter) -> Stats:
    requests, guard_s = meter.taken()
    return Stats(
        running=engine.running,
        waiting=engine.waiting,
        kv_blocks=engine.num_blocks,
        kv_blocks_used=engine.num_blocks - engine.free_blocks,
        kv_blocks_cached=engine.cached_blocks,
        tokens_per_s=engine.tokens_per_s,
        requests=requests,
        sequences=engine.finished,
        prompt_tokens=engine.prompt_tokens,
        cached_tokens=engine.cached_tokens,
        output_tokens=engine.output_tokens,
        computed_tokens=engine.computed_tokens,
        steps=engine.steps,
        preemptions=engine.preemptions,
        retracts=engine.retracts,
        retracted_tokens=engine.retracted_tokens,
        forward_s=engine.forward_s,
        mask_s=engine.mask_s,
        guard_s=guard_s,
        drafts=engine.by_drafter,
        queue_ms=Percentiles.of(engine.latency.get("queue", Latency())),
        first_token_ms=Percentiles.of(engine.latency.get("first_token", Latency())),
        token_ms=Percentiles.of(engine.latency.get("token", Latency())),
        total_ms=Percentiles.of(engine.latency.get("total", Latency())),
    )


__all__ = ["Percentiles", "Stats", "stats_of"]
