"""A load test as a page: whether the promise is kept, at which load, and every number. See `safegen.reports`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from safegen.reports.charts import Chart, Line, bounds_in_sight, legend_marker, line_chart
from safegen.reports.hostile import isolated, plain
from safegen.reports.page import Column, Figure, chart, facts, figures, page, section, table
from safegen.reports.page import charts as side_by_side
from safegen.reports.scales import number, percent

if TYPE_CHECKING:
    from safegen.load.testing import LoadPoint, LoadReport

_TIMES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("total", "total_ms"))
_LONG_NAMES = {
    "ttft_ms": "Time to the first text (TTFT)",
    "tpot_ms": "Time of each further token (TPOT)",
    "total_ms": "Time to the last token",
}
_QUANTILES = ("p50", "p95", "p99")


def load_charts(report: LoadReport) -> list[Chart]:
    """Times, throughput and goodput; rates and closed loops apart, since they have no common axis."""
    groups = (
        ("requests a second", [point for point in report.points if point.rate_per_s is not None]),
        ("requests in flight", [point for point in report.points if point.concurrency is not None]),
    )
    return [each for x_title, points in groups if points for each in _charts(report, x_title, points)]


def _charts(report: LoadReport, x_title: str, points: Sequence[LoadPoint]) -> Iterator[Chart]:
    x = [_load(point) for point in points]
    make = functools.partial(Chart, x_title=x_title, x=x, names=[f"{value:g}" for value in x])

    def line(name: str, key: str) -> Line:
        return Line(name, [point.figures.get(key) for point in points])

    promised_s = {"ttft_ms": report.slo.ttft_s, "tpot_ms": report.slo.tpot_s}
    for key, title in _LONG_NAMES.items():
        lines = [line(share, f"{key}.{share}") for share in _QUANTILES]
        bound_s = promised_s.get(key)
        if bound_s is not None:
            name = f"promised for {percent(report.slo.share)}: {bound_s * 1e3:g} ms"
            lines.append(Line(name, [bound_s * 1e3] * len(points), dashed=True))
        yield make(title=title, lines=lines, unit="ms")
    yield make(title="Throughput", lines=[line("tokens/s", "tokens_per_s")], unit="tokens a second")
    yield make(title="Requests answered", lines=[line("requests/s", "requests_per_s")], unit="requests a second")
    yield make(title="Goodput", lines=[line("ok", "ok_pct"), line("in time", "goodput_pct")], unit="% of requests")


def _load(point: LoadPoint) -> float:
    return float(point.rate_per_s if point.rate_per_s is not None else point.concurrency or 0)


def load_page(report: LoadReport, promise: str) -> str:
    """promise: of the SLO, in words; empty where there is none."""
    if not promise:
        state, verdict = "open", "<b>Measured.</b> No promise was asked for."
    elif report.ok:
        state, verdict = "good", f"<b>The promise holds</b> at every load: {escape(promise)}."
    else:
        held = ", ".join(plain(point.name) for point in report.points if point.meets)
        state = "bad"
        verdict = f"<b>The promise does not hold</b> at every load: {escape(promise)}. " + (
            f"It holds at {held}." if held else "It holds at none."
        )
    parts = [_best(report), _misses(report), *_chart_sections(report), _table(report), _about(report)]
    name = report.model or "the model"
    return page(
        f"{plain(name)} – safegen bench", "safegen bench", isolated(name, "name"), state, verdict,
        "\n".join(part for part in parts if part),
    )  # fmt: skip


def _best(report: LoadReport) -> str:
    """What is looked for first: the highest throughput, and the lowest times, with the loads that had them."""

    def extreme(name: str, label: str, key: str, unit: str, *, lowest: bool = False) -> list[Figure]:
        found = [(point.figures[key], point.name) for point in report.points if key in point.figures]
        if not found:
            return []
        value, load = (min if lowest else max)(found, key=lambda pair: pair[0])
        return [Figure(name, label, f"{number(value)}{unit}", f"at {load}")]

    num_requests = sum(point.num_requests for point in report.points)
    kept = f", {sum(point.meets for point in report.points):,} keep the promise" if _is_promised(report) else ""
    return figures(
        [
            Figure("points", "Loads", f"{len(report.points):,}", f"{num_requests:,} requests{kept}"),
            *extreme("tokens_per_s", "Most tokens a second", "tokens_per_s", ""),
            *extreme("requests_per_s", "Most requests a second", "requests_per_s", ""),
            *extreme("ttft", "Lowest TTFT p99", "ttft_ms.p99", " ms", lowest=True),
            *extreme("tpot", "Lowest TPOT p99", "tpot_ms.p99", " ms", lowest=True),
        ]
    )


def _is_promised(report: LoadReport) -> bool:
    return report.slo.ttft_s is not None or report.slo.tpot_s is not None


def _misses(report: LoadReport) -> str:
    misses = [(point.name, miss) for point in report.points for miss in point.misses]
    if not misses:
        return ""
    cells = [[plain(name), plain(miss)] for name, miss in misses]
    columns = [Column("Load", css_class="name-cell"), Column("What does not hold")]
    drawn = table("What does not hold", columns, cells, name="misses")
    return section("missed", "What does not hold", f'<div class="card">{drawn}</div>')


def _chart_sections(report: LoadReport) -> Iterator[str]:
    drawn = load_charts(report)
    for place, x_title in enumerate(dict.fromkeys(each.x_title for each in drawn)):
        made = [_figure(f"{place}-{number_}", each) for number_, each in enumerate(drawn) if each.x_title == x_title]
        yield section(f"charts-{place}", f"Against {x_title}", side_by_side(made))


def _figure(name: str, drawn: Chart) -> str:
    legend = ""
    if len(drawn.measured) > 1:
        entries = "".join(
            f"<li>{legend_marker(place)}{escape(line.name)}</li>" for place, line in enumerate(drawn.measured)
        )
        legend = f'<ul class="legend">{entries}</ul>'
    in_sight = bounds_in_sight(drawn)
    beyond = [name for name, bound in drawn.bounds if (name, bound) not in in_sight]
    cells = [
        [escape(x), *("–" if (value := line.y[place]) is None else number(value) for line in drawn.measured)]
        for place, x in enumerate(drawn.names)
    ]
    return chart(
        name, drawn.title, drawn.unit, line_chart(drawn, _alt(drawn)),
        columns=[Column(drawn.x_title), *(Column(line.name, True) for line in drawn.measured)],
        cells=cells, legend_html=legend, x_title=drawn.x_title,
        below_html=f"{escape(', '.join(beyond))}: far above all of this." if beyond else "",
    )  # fmt: skip


def _alt(drawn: Chart) -> str:
    parts = []
    for line in drawn.measured:
        values = [f"{number(value)} at {x}" for x, value in zip(drawn.names, line.y) if value is not None]
        if values:
            parts.append(f"{line.name} from {values[0]} to {values[-1]}")
    bounds = "".join(f"; {name}" for name, _ in drawn.bounds)
    return (
        f"{drawn.title}, {drawn.unit}, against {drawn.x_title}: {', '.join(parts) or 'nothing was measured'}{bounds}."
    )


def _table(report: LoadReport) -> str:
    keys = [(f"{name} {share}", f"{key}.{share}") for name, key in _TIMES for share in ("p50", "p95", "p99")]
    keys += [
        ("req/s", "requests_per_s"), ("tokens/s", "tokens_per_s"), ("good %", "goodput_pct"), ("ok %", "ok_pct"),
    ]  # fmt: skip
    promised = _is_promised(report)
    columns = [Column("Load"), *(Column("Promise") for _ in range(promised)), Column("Requests", True)]
    columns += [Column(title, True) for title, _ in keys]
    cells = [
        [
            plain(point.name),
            *(("kept" if point.meets else "missed") for _ in range(promised)),
            f"{point.num_requests:,}",
            *("–" if (value := point.figures.get(key)) is None else f"{value:,.1f}" for _, key in keys),
        ]
        for point in report.points
    ]
    drawn = table("All loads; times in milliseconds", columns, cells, name="points")
    return section(
        "loads", "All loads", f'<div class="card wide-table">{drawn}</div>', intro_html="Times in milliseconds."
    )


def _about(report: LoadReport) -> str:
    first = report.points[0].figures if report.points else {}
    given = [
        ("Model", isolated(report.model or "not named", "name")),
        ("Measured", plain(report.measured_at or "not told")),
        ("Arrivals at a rate", plain(report.arrivals)),
        ("Seed", f"{report.seed}"),
        *(
            (name, f"{first[key]:,.0f} tokens")
            for name, key in (("Prompts, on average", "prompt_tokens"), ("Answers, on average", "output_tokens"))
            if key in first
        ),
        *((name, plain(value)) for name, value in report.versions),
    ]
    notes = (
        "Times are those of a client in the same process. At a rate they count from when a request should have been "
        "sent, so a service that falls behind shows it; in flight, the next is sent when one has ended.",
        "Percentiles are nearest rank, of all requests of a load: p99 is the smallest time that at least 99 % of them "
        "do not pass. Goodput counts the requests that were answered right and in time.",
    )
    listed = "".join(f"<li>{note}</li>" for note in notes)
    return section("about", "The test", f'<div class="card">{facts(given)}</div><ul class="notes">{listed}</ul>')


__all__ = ["load_charts", "load_page"]
