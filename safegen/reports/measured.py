"""Charts of what `streaming` has counted: latencies, lengths, and rates over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from safegen.reports.charts import DrawnBar, Tick, area_chart, bar_chart
from safegen.reports.page import Column, chart
from safegen.reports.scales import clock, duration_ticks, milliseconds, number, ratio_ticks, span_ticks
from safegen.reports.streaming import Bar, LengthHistogram, LogHistogram, Piece, Timeline

_SHARES = (("median", 0.5), ("p90", 0.9), ("p99", 0.99))


def latency_chart(latencies: LogHistogram) -> str:
    """In milliseconds, on a scale of ratios."""
    bars = latencies.bars()
    low, high = bars[0].low, bars[-1].high

    def at(value: float) -> float:
        return math.log(value / low) / math.log(high / low)

    quantiles = [(name, latencies.quantile(share) or 0.0) for name, share in _SHARES]
    told = [*quantiles, ("slowest", latencies.largest), ("mean", latencies.mean)]
    alt = (
        f"Histogram of the latencies of {latencies.count:,} rows, on a scale of ratios: "
        + ", ".join(f"{name} {milliseconds(value)}" for name, value in told)
        + "."
    )
    ticks = [Tick(at(value), milliseconds(value)) for value in ratio_ticks(low, high)]
    drawn = _bars(bars, at, lambda bar: f"{milliseconds(bar.low)} to {milliseconds(bar.high)}")
    return chart(
        "latency", "Latency", "rows, by time from submission to end",
        bar_chart(drawn, ticks, alt, [Tick(at(value), name) for name, value in quantiles if name != "p90"]),
        columns=[Column("From"), Column("To"), Column("Rows", True)],
        cells=[[milliseconds(bar.low), milliseconds(bar.high), f"{bar.count:,}"] for bar in _filled(bars)],
        below_html=_read_off([(name, milliseconds(value)) for name, value in told]),
    )  # fmt: skip


def length_chart(lengths: LengthHistogram) -> str:
    """In tokens."""
    bars = lengths.bars()
    low, high = bars[0].low, bars[-1].high

    def at(value: float) -> float:
        return (value - low) / (high - low)

    quantiles = [(name, float(lengths.quantile(share) or 0)) for name, share in _SHARES]
    told = [*((name, f"{value:,.0f}") for name, value in quantiles), ("longest", f"{lengths.largest:,}")]
    told.append(("mean", number(round(lengths.mean, 1))))
    alt = (
        f"Histogram of the lengths of {lengths.count:,} answers in tokens: "
        + ", ".join(f"{name} {value}" for name, value in told)
        + "."
    )
    unit = bars[0].high - bars[0].low
    middle = 0.5 if unit == 1 else 0.0  # a bar of one length stands for that length
    ticks = [
        Tick(at(value + middle), f"{value:,.0f}")
        for value in span_ticks(low, high - middle)
        if value == int(value) and value + middle < high
    ]
    marks = [Tick(at(value + middle), name) for name, value in quantiles if name != "p90"]
    drawn = _bars(bars, at, lambda bar: f"{_range_of(bar)} tokens")
    return chart(
        "length", "Length of answers", "rows, by tokens of the answer", bar_chart(drawn, ticks, alt, marks),
        columns=[Column("Tokens"), Column("Rows", True)],
        cells=[[_range_of(bar), f"{bar.count:,}"] for bar in _filled(bars)],
        below_html=_read_off(told),
    )  # fmt: skip


def rate_charts(
    timeline: Timeline, seconds: float, max_pieces: int, rows_per_s: float, tokens_per_s: float
) -> list[str]:
    """Rows and tokens a second. rows_per_s, tokens_per_s: over all."""
    pieces = timeline.pieces(seconds, max_pieces)
    return [
        _rate_chart("rows", "Rows a second", [(piece, piece.rows_per_s) for piece in pieces], rows_per_s),
        _rate_chart("tokens", "Tokens a second", [(piece, piece.tokens_per_s) for piece in pieces], tokens_per_s),
    ]


def _rate_chart(name: str, title: str, rates: Sequence[tuple[Piece, float]], mean: float) -> str:
    end_s = rates[-1][0].end_s
    steps = []
    for piece, rate in rates:
        tip = f"{clock(piece.start_s)} to {clock(piece.end_s)}: {number(rate)} {name} a second"
        steps.append(DrawnBar(piece.start_s / end_s, piece.end_s / end_s, rate, tip))
    lowest, highest = min(rate for _, rate in rates), max(rate for _, rate in rates)
    told = [("mean", number(mean)), ("lowest", number(lowest)), ("highest", number(highest))]
    alt = f"{title} over {clock(end_s)}: " + ", ".join(f"{what} {value}" for what, value in told) + "."
    ticks = [Tick(at_s / end_s, clock(at_s) if at_s else "0") for at_s in duration_ticks(end_s)]
    return chart(
        f"{name}-rate", title, "over the time of this run", area_chart(steps, ticks, alt),
        columns=[Column("From"), Column("To"), Column(title, True)],
        cells=[[clock(piece.start_s), clock(piece.end_s), number(rate)] for piece, rate in rates],
        below_html=_read_off(told),
    )  # fmt: skip


def _bars(bars: Sequence[Bar], at: Callable[[float], float], name: Callable[[Bar], str]) -> list[DrawnBar]:
    return [
        DrawnBar(
            at(bar.low), at(bar.high), bar.count, f"{name(bar)}: {bar.count:,} {'row' if bar.count == 1 else 'rows'}"
        )
        for bar in bars
    ]


def _filled(bars: Sequence[Bar]) -> list[Bar]:
    return [bar for bar in bars if bar.count]


def _range_of(bar: Bar) -> str:
    low, high = int(bar.low), int(bar.high) - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _read_off(told: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"<span>{name} <b>{value}</b></span>" for name, value in told)
