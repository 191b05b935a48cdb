"""The text is OpenMetrics to a strict parser that is not ours, and its numbers are those of `llm.stats()`."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from safegen.engine.stats import LATENCY_BOUNDS_MS
from safegen.errors import RequestError
from safegen.llm import LLM
from safegen.observe.openmetrics import CONTENT_TYPE
from safegen.types import Choice, Regex
from tests.observe.test_stats import slow_guard
from tests.support.sdk_fakes import make_llm


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Any], name: str, suffix: str = "", **labels: str) -> float:
    [sample] = [each for each in found[name].samples if each.name == name + suffix and each.labels == labels]
    return float(sample.value)


@pytest.fixture(scope="module")
def used() -> Any:
    with make_llm(guards=[slow_guard('a "quoted"\nname\\')]) as llm:
        llm.generate("a", Regex("(abcdefgh){3}[0-9]{4}"))
        llm.batch(["b", "c", "d bad"], Choice(["pos", "neg"]))
        yield llm


def test_a_strict_parser_takes_it_fresh_and_used(used: LLM) -> None:
    assert families(used.metrics_text())
    with make_llm() as fresh:
        assert families(fresh.metrics_text())
    assert CONTENT_TYPE.startswith("application/openmetrics-text; version=1.0.0")


def test_its_numbers_are_those_of_the_stats(used: LLM) -> None:
    stats, found = used.stats(), families(used.metrics_text())
    for status, count in stats.requests.items():
        assert value(found, "safegen_requests", "_total", status=status) == count
    assert value(found, "safegen_requests", "_total", status="blocked") == 1
    assert value(found, "safegen_sequences_running") == stats.running
    assert value(found, "safegen_kv_blocks") == stats.kv_blocks
    assert value(found, "safegen_kv_blocks_cached") == stats.kv_blocks_cached
    assert value(found, "safegen_kv_use_ratio") == stats.kv_use
    assert value(found, "safegen_prompt_tokens", "_total", source="cache") == stats.cached_tokens
    assert value(found, "safegen_output_tokens", "_total") == stats.output_tokens > 0
    assert value(found, "safegen_mask_seconds", "_total") == stats.mask_s > 0
    [(guard, seconds)] = stats.guard_s.items()
    assert value(found, "safegen_guard_seconds", "_total", guard=guard) == seconds


def test_histograms_are_cumulative_and_in_seconds(used: LLM) -> None:
    stats, found = used.stats(), families(used.metrics_text())
    samples = found["safegen_sequence_seconds"].samples
    buckets = [(float(each.labels["le"]), each.value) for each in samples if each.name.endswith("_bucket")]
    assert [bound for bound, _ in buckets] == [*(bound / 1e3 for bound in LATENCY_BOUNDS_MS), math.inf]
    counts = [count for _, count in buckets]
    assert counts == sorted(counts) and counts[-1] == stats.total_ms.count == 3
    assert value(found, "safegen_sequence_seconds", "_count") == 3
    total = value(found, "safegen_sequence_seconds", "_sum")
    assert stats.total_ms.mean is not None and total == pytest.approx(3 * stats.total_ms.mean / 1e3)
    assert found["safegen_sequence_seconds"].unit == "seconds"


def test_labels_stand_on_every_sample_and_are_escaped(used: LLM) -> None:
    name = 'two\nlines, a "quote" and a \\'
    for family in families(used.metrics_text({"model": name, "zone": "a"})).values():
        assert all(each.labels["model"] == name and each.labels["zone"] == "a" for each in family.samples)


@pytest.mark.parametrize("name", ["", "1st", "a-b", "le", "status", "__own", "ä"])
def test_a_label_that_cannot_be_one_is_refused(used: LLM, name: str) -> None:
    with pytest.raises(RequestError, match="label"):
        used.metrics_text({name: "x"})
