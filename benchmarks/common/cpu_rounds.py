"""Rounds of measures, engine by engine: which setting of an engine is its best, medians, the figures' names, ratios.

An engine is given every setting in the first round and its best one, for each measure, in the others. Its figure is the
median of all values of the setting whose median is best. (Choosing helps the engine that has more settings: a peer.)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.common.cpu_workload import BATCH_SIZES, JSON_BATCH_SIZES

Values = dict[str, dict[str, list[float]]]  # measure -> setting -> values
PEER_RATIOS = ("decode.b1", "decode.b16", "prefill512", "json.b1", "json.b16")
# What we hold ourselves to, by figure: at least, or where less is better (kl, rss_mb) at most.
TARGETS = {
    "ratio.decode.b1.llamacpp_q4_1": 1.8,
    "ratio.decode.b16.llamacpp_q4_1": 4.0,
    "ratio.prefill512.llamacpp_q4_1": 6.0,
    "ratio.decode.b1.llamacpp_q4_0": 1.6,
    "ratio.decode.b16.llamacpp_q4_0": 2.2,
    "ratio.prefill512.llamacpp_q4_0": 2.0,
    "ratio.json.b1.llamacpp_q4_1": 2.0,
    "ratio.json.b16.llamacpp_q4_1": 8.0,
    "ratio.json.b16.llamacpp_q4_0": 4.0,
    "ratio.json.b1.transformers": 10.0,
    "ratio.json.b16.transformers": 10.0,
    "ratio.json_over_decode.b16": 1.0,
    "ratio.kl.llamacpp_q4_1": 1.1,
    "bandwidth_fraction.b1": 0.75,
    "rss_mb.safegen": 300.0,
}


def measure_names(*, quick: bool) -> list[str]:
    """What is measured, in this order: tokens a second, and ttft_ms."""
    batches = [size for size in BATCH_SIZES if not quick or size in JSON_BATCH_SIZES]
    return [
        "prefill512",
        *(f"decode.b{size}" for size in batches),
        *(f"json.b{size}" for size in JSON_BATCH_SIZES),
        "ttft_ms",
    ]


def less_is_better(measure: str) -> bool:
    return measure.endswith("_ms")


@dataclass
class EngineRounds:
    """What one engine came to. settings: all there are; notes: by measure and setting, of the last value."""

    settings: list[str]
    values: Values = field(default_factory=dict)
    notes: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    rss_mb: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)

    def add(self, values: Values, notes: Mapping[str, Mapping[str, dict[str, float]]]) -> None:
        for measure, by_setting in values.items():
            for setting, numbers in by_setting.items():
                self.values.setdefault(measure, {}).setdefault(setting, []).extend(numbers)
        for measure, noted in notes.items():
            self.notes.setdefault(measure, {}).update(noted)

    def best_setting(self, measure: str) -> str | None:
        """None: nothing was measured, or the engine cannot do it."""
        by_setting = self.values.get(measure)
        if not by_setting:
            return None
        choose = min if less_is_better(measure) else max
        return choose(by_setting, key=lambda setting: statistics.median(by_setting[setting]))

    def median(self, measure: str) -> float | None:
        setting = self.best_setting(measure)
        return None if setting is None else statistics.median(self.values[measure][setting])

    def next_settings(self, measure: str) -> list[str]:
        """What to measure in the coming round."""
        if not self.values:
            return self.settings
        best = self.best_setting(measure)
        return [] if best is None else [best]


def speed_figures(engine: str, rounds: EngineRounds, measures: Iterable[str]) -> dict[str, float]:
    """`prefill512.<engine>`, `decode.b<N>.<engine>`, `json.b<N>.<engine>`, `ttft_ms.<engine>`, `rss_mb.<engine>`,
    `load_s.<engine>`, as far as there are values."""
    found = {f"{measure}.{engine}": rounds.median(measure) for measure in measures}
    figures = {name: value for name, value in found.items() if value is not None}
    for name in ("rss_mb", "load_s"):
        numbers: Sequence[float] = getattr(rounds, name)
        if numbers:
            figures[f"{name}.{engine}"] = statistics.median(numbers)
    return figures


def ratio_figures(figures: Mapping[str, float], peers: Iterable[str]) -> dict[str, float]:
    """`ratio.<measure>.<peer>`: safegen's tokens a second over the peer's; `ratio.kl.<peer>`: its divergence over the
    peer's (below 1 is better); `ratio.json_over_decode.b16`: constrained over free."""
    ratios: dict[str, float] = {}
    for peer in peers:
        for measure in (*PEER_RATIOS, "kl"):
            ours, theirs = figures.get(f"{measure}.safegen"), figures.get(f"{measure}.{peer}")
            if ours is not None and theirs:
                ratios[f"ratio.{measure}.{peer}"] = ours / theirs
    free, constrained = figures.get("decode.b16.safegen"), figures.get("json.b16.safegen")
    if free and constrained:
        ratios["ratio.json_over_decode.b16"] = constrained / free
    return ratios


def bandwidth_fraction(weight_bytes: int, steps_per_s: float, bytes_per_s: float) -> float:
    """Share of the read bandwidth that one sequence's decoding takes: each step reads every packed weight once."""
    return weight_bytes * steps_per_s / bytes_per_s


def wanted(name: str, value: float) -> str:
    """The target of a figure, and whether it is met; nothing where there is none."""
    target = TARGETS.get(name)
    if target is None:
        return ""
    at_most = name.startswith(("ratio.kl.", "rss_mb."))
    met = value <= target if at_most else value >= target
    return f"{'<=' if at_most else '>='} {target:g} {'ok' if met else 'MISSED'}"
