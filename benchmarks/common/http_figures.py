"""What `benchmarks/serve.py` makes of its measurements: names, best settings, medians, ratios, the cost of HTTP."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.common import percentile
from safegen.load.trace import Served, Slo, trace_figures

KINDS = ("free", "json")
WANTED = {"ratio.c16.json": 4.0}
AT_MOST = {"http_overhead_pct": 5.0}
Loads = dict[tuple[str, str, int, str], list[list[Served]]]  # engine, setting, concurrency, kind -> each round's
Turns = dict[tuple[str, str], list[float]]  # "inside" or "http", kind -> tokens a second of each turn


def tokens_per_s(served: Sequence[Served]) -> float:
    start_s, end_s = min(each.sent_s for each in served), max(each.last_s for each in served)
    return sum(each.tokens for each in served) / (end_s - start_s)


def load_figures(loads: Loads, slo: Slo) -> dict[str, float]:
    """Of the setting that is fastest at each load."""
    figures: dict[str, float] = {}
    for key, setting in best_settings(loads).items():
        engine, concurrency, kind = key
        rounds = loads[engine, setting, concurrency, kind]
        prefix = f"{engine}.c{concurrency}.{kind}"
        figures[f"{prefix}.tok_s"] = statistics.median(tokens_per_s(served) for served in rounds)
        together = [each for served in rounds for each in served]
        for name, values in (
            ("ttft", [each.ttft_s for each in together]),
            ("tpot", [tpot_s for each in together if (tpot_s := each.tpot_s) is not None]),
        ):
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                if values:
                    figures[f"{prefix}.{name}_ms_{label}"] = 1e3 * percentile(values, share)
        whole = [trace_figures(served, slo) for served in rounds]
        for name in ("goodput_pct", "ok_pct", "requests_per_s"):
            figures[f"{prefix}.{name}"] = statistics.median(each[name] for each in whole)
        figures[f"{prefix}.tokens"] = statistics.fmean(each.tokens for each in together)
        figures[f"{prefix}.prompt_tokens"] = statistics.fmean(each.prompt_tokens for each in together)
    return figures | ratio_figures(figures)


def best_settings(loads: Loads) -> dict[tuple[str, int, str], str]:
    """The setting with the highest median of tokens a second, for each (engine, concurrency, kind)."""
    rates: dict[tuple[str, int, str], dict[str, float]] = {}
    for (engine, setting, concurrency, kind), rounds in loads.items():
        rate = statistics.median(tokens_per_s(served) for served in rounds)
        rates.setdefault((engine, concurrency, kind), {})[setting] = rate
    return {key: max(by_setting, key=by_setting.__getitem__) for key, by_setting in rates.items()}


def ratio_figures(figures: dict[str, float]) -> dict[str, float]:
    ratios = {}
    for name, value in figures.items():
        engine, _, rest = name.partition(".")
        theirs = figures.get(f"llamacpp.{rest}")
        if engine == "safegen" and rest.endswith(".tok_s") and theirs:
            ratios[f"ratio.{rest.removesuffix('.tok_s')}"] = value / theirs
    return ratios


def overhead_figures(turns: Turns) -> dict[str, float]:
    """What HTTP adds to the time of a step, in percent of the step inside the process."""
    figures: dict[str, float] = {}
    for kind in KINDS:
        inside, http = turns.get(("inside", kind)), turns.get(("http", kind))
        if inside and http:
            figures[f"http_overhead.{kind}_pct"] = 100 * (statistics.median(inside) / statistics.median(http) - 1)
    if figures:
        figures["http_overhead_pct"] = max(figures.values())
    return figures


def verdict(name: str, value: float) -> str:
    if name in WANTED:
        return f">= {WANTED[name]:g} {'ok' if value >= WANTED[name] else 'MISSED'}"
    if name in AT_MOST:
        return f"<= {AT_MOST[name]:g} {'ok' if value <= AT_MOST[name] else 'MISSED'}"
    return ""
