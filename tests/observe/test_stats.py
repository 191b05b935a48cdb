"""`llm.stats()`: every number follows from what was asked, whoever asked it, and however it ended."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest

from safegen.async_llm import AsyncLLM
from safegen.engine.speculate.forced import ForcedDrafter
from safegen.engine.speculate.speculator import Speculator
from safegen.errors import GuardBlocked, QueueFull, RequestError
from safegen.guards.base import GuardView, Match
from safegen.guards.custom import Custom
from safegen.llm import LLM
from safegen.observe.meter import guard_milliseconds
from safegen.speculation import Speculation
from safegen.types import Choice, JsonSchema, Regex
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, ByteTokenizer, ScriptedBackend, make_llm, make_runtime


def requests(llm: LLM) -> dict[str, int]:
    return {status: count for status, count in llm.stats().requests.items() if count}


def test_a_fresh_llm_has_no_rates_of_nothing() -> None:
    with make_llm() as llm:
        stats = llm.stats()
    assert stats.requests == dict.fromkeys(
        ("ok", "truncated", "refused", "blocked", "invalid", "cancelled", "error"), 0
    )
    assert (stats.running, stats.waiting, stats.kv_use, stats.tokens_per_s) == (0, 0, 0.0, 0.0)
    assert stats.cache_hit_rate is None and stats.acceptance == {}
    assert stats.first_token_ms.count == 0 and stats.first_token_ms.p99 is None and stats.first_token_ms.mean is None


def test_every_call_counts_once_by_the_status_of_its_result() -> None:
    with make_llm() as llm:
        llm.generate("a", Choice(["pos", "neg"]))
        llm.generate("a", max_tokens=3)  # free text, cut
        llm.batch([("b", Regex("[0-9]{3}")), ("b", JsonSchema({"type": "text"})), "c"], max_tokens=4)
        with pytest.raises(RequestError):
            llm.generate("a", temperature=-1)
        with llm.stream("d", Choice(["pos", "neg"])) as events:
            events.result()
        llm.generate("e", Choice(["pos", "neg"], probabilities=True))
        assert requests(llm) == {"ok": 4, "truncated": 2, "refused": 2}


def test_a_stream_that_is_left_early_is_cancelled_once() -> None:
    with make_llm(ScriptedBackend("x" * 400)) as llm:
        with llm.stream("a", max_tokens=300) as events:
            next(events)
        assert requests(llm) == {"cancelled": 1}
        while llm.stats().sequences.get("cancelled") != 1:
            time.sleep(0.001)
        assert llm.stats().total_ms.count == 0, "a cancelled sequence has no latency"


def test_async_calls_count_as_plain_ones_do() -> None:
    async def use(llm: AsyncLLM) -> None:
        await llm.generate("a", Choice(["pos", "neg"]))
        async with llm.stream("b", Choice(["pos", "neg"])) as events:
            await events.result()
        await llm.batch(["c", "d"], Choice(["pos", "neg"]))

    runtime = make_runtime()
    llm = AsyncLLM.from_runtime(runtime)
    asyncio.run(use(llm))
    assert llm.stats().requests["ok"] == 4
    assert llm.metrics_text().count("safegen_requests_total") == 7
    runtime.close()


def test_a_full_queue_is_a_refusal() -> None:
    class Stuck(FakeBackend):
        def __init__(self) -> None:
            super().__init__(len(TOKEN_BYTES), MAX_CONTEXT)
            self.go = threading.Event()

        def forward(self, batch: Any, masks: Any = None) -> Any:
            self.go.wait(10)
            return super().forward(batch, masks)

    backend = Stuck()
    with make_llm(backend, max_queue=1, max_num_seqs=1) as llm:
        with llm.stream("a", max_tokens=2) as first:
            while not llm.stats().running:
                time.sleep(0.001)
            with llm.stream("b", max_tokens=2) as second:
                stats = llm.stats()
                assert (stats.running, stats.waiting) == (1, 1) and stats.kv_blocks_used >= 1
                with pytest.raises(QueueFull), llm.stream("c", max_tokens=2):
                    pass
                backend.go.set()
                second.result()
            first.result()
        assert requests(llm) == {"refused": 1, "truncated": 2}


def test_tokens_cache_and_latencies_are_those_of_the_requests() -> None:
    with make_llm(block_size=4) as llm:
        results = [llm.generate("the same prompt, long enough for blocks", max_tokens=12) for _ in range(3)]
        stats = llm.stats()
    usages = [result.usage for result in results]
    assert stats.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert stats.cached_tokens == sum(usage.cached_tokens for usage in usages) > 0
    assert stats.cache_hit_rate == stats.cached_tokens / stats.prompt_tokens
    assert stats.output_tokens == sum(usage.completion_tokens for usage in usages)
    assert stats.computed_tokens >= stats.prompt_tokens - stats.cached_tokens
    assert stats.tokens_per_s > 0 and stats.forward_s > 0 and stats.kv_blocks_cached > 0 and stats.kv_use == 0.0
    for name, of in (("total_ms", "total_ms"), ("first_token_ms", "first_token_ms"), ("queue_ms", "queue_ms")):
        values = sorted(getattr(result.timings, of) for result in results)
        percentiles = getattr(stats, name)
        assert percentiles.count == 3 and percentiles.mean == pytest.approx(sum(values) / 3)
        assert (percentiles.p50, percentiles.p99) == (values[1], values[2])
    assert stats.token_ms.count == 3


def test_samples_of_one_request_share_its_prompt() -> None:
    with make_llm() as llm:
        result = llm.generate("a prompt", n=4, temperature=1.0, max_tokens=5, seed=1)
        stats = llm.stats()
    assert sum(stats.sequences.values()) == 4 and stats.prompt_tokens == result.usage.prompt_tokens
    assert stats.total_ms.count == 4 and sum(stats.requests.values()) == 1


def test_mask_time_and_drafts_are_those_of_the_usages() -> None:
    speculation = Speculation(drafters=("forced",))
    speculator = Speculator([ForcedDrafter(ByteTokenizer().encode, TOKEN_BYTES)], adaptive=False)
    with make_llm(speculator=speculator, speculation=speculation) as llm:
        result = llm.generate("a", Regex("(abcdefghijkl){3}[0-9]{4}"))
        stats = llm.stats()
    assert result.usage.drafted > 0
    counts = stats.drafts["forced"]
    assert (counts.drafted, counts.accepted) == (result.usage.drafted, result.usage.accepted)
    assert stats.acceptance == {"forced": counts.accepted / counts.drafted}
    assert stats.mask_s * 1e3 == pytest.approx(result.timings.mask_ms)


def slow_guard(name: str = "slow") -> Custom:
    def find(view: GuardView) -> list[Match]:
        time.sleep(0.004)
        place = view.text.find("bad")
        return [Match(place, place + 3)] if place >= 0 else []

    return Custom(find, name=name, max_match=3, inline=True)


def test_guard_time_is_that_of_the_audit_records_and_blocks_are_counted() -> None:
    with make_llm(guards=[slow_guard()]) as llm:
        fine = llm.generate("a", Choice(["pos", "neg"]))
        stopped = llm.generate("a bad prompt", Choice(["pos", "neg"]))
        assert isinstance(stopped.error, GuardBlocked)
        stats = llm.stats()
        assert requests(llm) == {"ok": 1, "blocked": 1}
    spent = sum(guard_milliseconds((*fine.audit,)).values()) + sum(guard_milliseconds((*stopped.audit,)).values())
    assert stats.guard_s["slow"] * 1e3 == pytest.approx(spent) and stats.guard_s["slow"] > 0.008


def test_records_of_one_look_are_not_added_up() -> None:
    with make_llm(guards=[slow_guard()]) as llm:
        [record, *_] = llm.generate("a", Choice(["pos", "neg"])).audit
    record = dataclasses.replace(record, milliseconds=4.0)
    twice = [record, dataclasses.replace(record, number=1), dataclasses.replace(record, guard="other")]
    assert guard_milliseconds(twice) == {"slow": 4.0, "other": 4.0}


def test_stats_may_be_asked_by_many_threads_while_requests_run() -> None:
    seen: list[int] = []
    stop = threading.Event()
    with make_llm() as llm:

        def watch() -> None:
            while not stop.is_set():
                stats = llm.stats()
                seen.append(stats.output_tokens)
                assert 0.0 <= stats.kv_use <= 1.0 and stats.cached_tokens <= stats.prompt_tokens
                assert llm.metrics_text().endswith("# EOF\n")
                time.sleep(0.001)

        watchers = [threading.Thread(target=watch) for _ in range(3)]
        for watcher in watchers:
            watcher.start()
        results = llm.batch([f"row {number}" for number in range(60)], max_tokens=8)
        stop.set()
        for watcher in watchers:
            watcher.join()
        assert llm.stats().output_tokens == sum(result.usage.completion_tokens for result in results)
    assert len(seen) > 3
