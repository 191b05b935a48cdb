"""A load report as text, as a page, and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safegen.errors import RequestError
from safegen.load.charts import Chart, Line, svg

if TYPE_CHECKING:
    from safegen.load.testing import LoadPoint, LoadReport

_COLUMNS = (
    ("ttft p50", "ttft_ms.p50"), ("p99 ms", "ttft_ms.p99"), ("tpot p50", "tpot_ms.p50"), ("p99 ms", "tpot_ms.p99"),
    ("total p99", "total_ms.p99"), ("req/s", "requests_per_s"), ("tokens/s", "tokens_per_s"), ("good %", "goodput_pct"),
    ("ok %", "ok_pct"),
)  # fmt: skip
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1f2328}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #d0d7de}
td:first-child,th:first-child{text-align:left}svg{width:560px;max-width:100%;margin-right:1em}
.title{font-weight:600;font-size:14px}.tick{font-size:11px;fill:#59636e}.grid{stroke:#d0d7de}.miss{color:#d1451b}
"""


def table(report: LoadReport) -> str:
    """Fixed-width text."""
    lines = [f"{'load':16}" + "".join(f"{head:>11}" for head, _ in _COLUMNS)]
    for point in report.points:
        lines.append(f"{point.name:16}" + "".join(f"{cell:>11}" for cell in _cells(point)))
        lines += [f"  misses: {miss}" for miss in point.misses]
    return "\n".join([*lines, *_verdict(report)])


def _cells(point: LoadPoint) -> list[str]:
    values = (point.figures.get(key) for _, key in _COLUMNS)
    return ["-" if value is None else f"{value:,.1f}" for value in values]


def _verdict(report: LoadReport) -> Iterator[str]:
    if report.slo.ttft_s is None and report.slo.tpot_s is None:
        return
    yield "SLO: " + _promise(report) + (": holds" if report.ok else ": does not hold at every load")
    held = [point.name for point in report.points if point.meets]
    if held and not report.ok:
        yield f"it holds at {', '.join(held)}"


def _promise(report: LoadReport) -> str:
    times = (("TTFT", report.slo.ttft_s), ("TPOT", report.slo.tpot_s))
    parts = [f"p{100 * report.slo.share:g} of {name} within {value * 1e3:g} ms" for name, value in times if value]
    return " and ".join(parts)


def charts(report: LoadReport) -> list[Chart]:
    """TTFT, TPOT and tokens a second; rates and closed loops apart, since they have no common axis."""
    groups = (
        ("requests a second", [point for point in report.points if point.rate_per_s is not None]),
        ("requests in flight", [point for point in report.points if point.concurrency is not None]),
    )
    return [chart for x_title, points in groups if points for chart in _charts(report, x_title, points)]


def _charts(report: LoadReport, x_title: str, points: Sequence[LoadPoint]) -> Iterator[Chart]:
    names = [f"{point.rate_per_s if point.rate_per_s is not None else point.concurrency:g}" for point in points]

    def line(name: str, key: str) -> Line:
        return Line(name, [point.figures.get(key) for point in points])

    for title, key, promised_s in (
        ("TTFT, ms", "ttft_ms", report.slo.ttft_s),
        ("TPOT, ms", "tpot_ms", report.slo.tpot_s),
    ):
        lines = [line(share, f"{key}.{share}") for share in ("p50", "p99")]
        if promised_s is not None:
            lines.append(Line("promised", [promised_s * 1e3] * len(points), dashed=True))
        yield Chart(title, x_title, names, lines)
    yield Chart("tokens a second", x_title, names, [line("tokens/s", "tokens_per_s")])
    yield Chart("within the promise, %", x_title, names, [line("goodput", "goodput_pct"), line("ok", "ok_pct")])


def page(report: LoadReport) -> str:
    """One HTML file that needs no other and no network."""
    heads = "".join(f"<th>{escape(head)}</th>" for head, _ in _COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(point.name)}</td>{''.join(f'<td>{cell}</td>' for cell in _cells(point))}</tr>"
        for point in report.points
    )
    misses = "".join(
        f'<li class="miss">{escape(point.name)}: {escape(miss)}</li>'
        for point in report.points
        for miss in point.misses
    )
    verdict = "".join(f"<p>{escape(line)}</p>" for line in _verdict(report))
    drawn = "".join(svg(chart) for chart in charts(report))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Load test</title><style>{_STYLE}</style>'
        f"</head><body><h1>Load test</h1>{verdict}<ul>{misses}</ul>{drawn}"
        f"<table><tr><th>load</th>{heads}</tr>{rows}</table>"
        f"<p>Arrivals: {escape(report.arrivals)}, seed {report.seed}.</p></body></html>\n"
    )


def check_plot(path: str) -> None:
    """Raises RequestError where `save_plot` would, as far as that can be known before there is a report."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".html", ".png", ".svg"):
        raise RequestError(f"a plot is .html, .png or .svg, got {path!r}", field="--plot", value=path)
    if not Path(path).absolute().parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no such folder", field="--plot", value=path)
    if suffix != ".html":
        _figure_class()


def save_plot(report: LoadReport, path: str) -> None:
    """The suffix says what: .html is `page`; .png and .svg are drawn by matplotlib."""
    check_plot(path)
    try:
        if Path(path).suffix.lower() == ".html":
            Path(path).write_text(page(report), encoding="utf-8")
        else:
            _figure(report).savefig(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error}", field="--plot", value=path) from error


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RequestError(
            "a .png or .svg plot needs matplotlib: pip install 'safegen[plot]'; a .html page needs nothing",
            field="--plot",
        ) from error
    return Figure


def _figure(report: LoadReport) -> Any:
    drawn = charts(report)
    figure = _figure_class()(figsize=(11, 3.2 * -(-len(drawn) // 2)), layout="constrained")
    places = figure.subplots(-(-len(drawn) // 2), 2, squeeze=False).flat
    for axes, chart in zip(places, drawn):
        for line in chart.lines:
            axes.plot(chart.x, line.y, linestyle="--" if line.dashed else "-", marker="" if line.dashed else "o",
                      label=line.name)  # fmt: skip
        axes.set(title=chart.title, xlabel=chart.x_title)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


__all__ = ["charts", "check_plot", "page", "save_plot", "table"]
