"""The counts of an LLM as OpenMetrics text (version 1.0), for Prometheus and whatever else scrapes it.

The exposition format as the OpenMetrics specification has it: a family's TYPE, UNIT and HELP come before its samples,
families do not interleave, counters end in `_total`, times are in seconds, a histogram's buckets are cumulative and end
with `+Inf`, the text ends with `# EOF`. Names are stable: a change is a change of the public API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, get_args

from safegen.engine.request import FinishReason
from safegen.engine.stats import LATENCY_BOUNDS_MS, EngineStats, Latency
from safegen.errors import RequestError
from safegen.observe.meter import RequestMeter

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = Mapping[str, str]
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = frozenset({"status", "reason", "state", "source", "guard", "drafter", "outcome", "le", "route", "code"})


def metrics_text(
    engine: EngineStats, meter: RequestMeter, labels: Labels | None = None, further: Iterable[Family] = ()
) -> str:
    """All families, and further ones at the end. labels: put on every sample, such as {"model": "small"}. Raises
    RequestError for a bad name."""
    return families_text([*_request_families(engine, meter), *_engine_families(engine), *further], labels)


def families_text(families: Iterable[Family], labels: Labels | None = None) -> str:
    """The exposition of these families. Raises RequestError for a bad name of a label."""
    common = dict(labels or {})
    for name in common:
        if not isinstance(name, str) or not _LABEL_NAME.fullmatch(name) or name.startswith("__") or name in _OWN_LABELS:
            raise RequestError(
                f"{name!r} cannot be a label here: a name is letters, digits and '_', and none of "
                f"{', '.join(sorted(_OWN_LABELS))}",
                field="labels",
                value=name,
            )
    lines = [line for family in families for line in family.lines(common)]
    return "\n".join([*lines, "# EOF"]) + "\n"


class Family:
    """One metric by name, with its samples. samples: (suffix of the name, labels, value)."""

    def __init__(
        self, name: str, kind: str, text: str, samples: Sequence[tuple[str, Labels, float]], unit: str | None = None
    ) -> None:
        self._name, self._kind, self._text, self._samples, self._unit = name, kind, text, samples, unit

    def lines(self, common: Labels) -> Iterator[str]:
        name = f"safegen_{self._name}"
        yield f"# TYPE {name} {self._kind}"
        if self._unit is not None:
            yield f"# UNIT {name} {self._unit}"
        yield f"# HELP {name} {self._text}"
        for suffix, labels, value in self._samples:
            pairs = ",".join(f'{key}="{_escaped(each)}"' for key, each in {**common, **labels}.items())
            yield f"{name}{suffix}{'{' + pairs + '}' if pairs else ''} {_number(value)}"


def _request_families(engine: EngineStats, meter: RequestMeter) -> Iterator[Family]:
    requests, guard_s = meter.taken()
    yield counters("requests", "Calls by the status of their result.", "status", requests)
    finished = {reason: engine.finished.get(reason, 0) for reason in get_args(FinishReason)}
    yield counters("sequences_finished", "Sequences by why they ended.", "reason", finished)
    yield gauge("sequences_running", "Sequences that are computed now.", engine.running)
    yield gauge("sequences_waiting", "Sequences that wait for admission.", engine.waiting)
    for name, key, text in (
        ("queue_seconds", "queue", "From the submission to the first forward."),
        ("first_token_seconds", "first_token", "From the submission to the first output token."),
        ("token_seconds", "token", "Mean of a sequence's tokens after its first."),
        ("sequence_seconds", "total", "From the submission to the end of an answered sequence."),
    ):
        yield _histogram(name, text, engine.latency.get(key, Latency()))
    if guard_s:
        yield counters("guard_seconds", "Time in guards.", "guard", guard_s, "seconds")


def _engine_families(engine: EngineStats) -> Iterator[Family]:
    held = engine.num_blocks - engine.free_blocks
    yield gauge("kv_blocks", "Blocks of the KV cache.", engine.num_blocks)
    yield gauge("kv_blocks_used", "Blocks that sequences hold.", held)
    yield gauge("kv_blocks_cached", "Blocks that the prefix cache can find.", engine.cached_blocks)
    yield gauge("kv_use_ratio", "Share of the KV cache that sequences hold.", held / engine.num_blocks, "ratio")
    computed = {"cache": engine.cached_tokens, "computed": engine.prompt_tokens - engine.cached_tokens}
    yield counters("prompt_tokens", "Prompt tokens of ended sequences.", "source", computed)
    yield _counter("output_tokens", "Tokens handed to callers.", engine.output_tokens)
    yield _counter("computed_tokens", "Tokens that went through a forward.", engine.computed_tokens)
    yield gauge("output_tokens_per_second", "Output tokens a second, over the last ten.", engine.tokens_per_s)
    yield _counter("steps", "Steps of the engine.", engine.steps)
    yield _counter("preemptions", "Sequences that lost their blocks and were computed again.", engine.preemptions)
    yield _counter("retracts", "Times that output was taken back.", engine.retracts)
    yield _counter("retracted_tokens", "Tokens that were taken back.", engine.retracted_tokens)
    yield _counter("forward_seconds", "Time in the model.", engine.forward_s, "seconds")
    yield _counter("mask_seconds", "Time filling masks.", engine.mask_s, "seconds")
    if engine.by_drafter:
        samples = [
            ("_total", {"drafter": name, "outcome": outcome}, number)
            for name, counts in engine.by_drafter.items()
            for outcome, number in (("accepted", counts.accepted), ("rejected", counts.drafted - counts.accepted))
        ]
        yield Family("draft_tokens", "counter", "Tokens of drafts that a forward verified.", samples)


def gauge(name: str, text: str, value: float, unit: str | None = None) -> Family:
    return Family(name, "gauge", text, [("", {}, value)], unit)


def _counter(name: str, text: str, value: float, unit: str | None = None) -> Family:
    return Family(name, "counter", text, [("_total", {}, value)], unit)


def counters(name: str, text: str, label: str, values: Mapping[Any, float], unit: str | None = None) -> Family:
    return Family(name, "counter", text, [("_total", {label: key}, value) for key, value in values.items()], unit)


def _histogram(name: str, text: str, latency: Latency) -> Family:
    bounds = [*(_number(bound / 1e3) for bound in LATENCY_BOUNDS_MS), "+Inf"]
    totals = list(accumulate(latency.buckets))
    samples: list[tuple[str, Labels, float]] = [
        ("_bucket", {"le": bound}, total) for bound, total in zip(bounds, totals)
    ]
    samples += [("_count", {}, totals[-1]), ("_sum", {}, latency.sum_ms / 1e3)]
    return Family(name, "histogram", text, samples, "seconds")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _escaped(value: str) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


__all__ = ["CONTENT_TYPE", "Family", "gauge", "metrics_text"]
