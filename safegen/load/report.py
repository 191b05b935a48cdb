"""A load report as text, as a page, and as a plot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safegen.errors import JobOutputError, RequestError
from safegen.jobs.durable import replace_file
from safegen.load.html_report import load_charts, load_page
from safegen.reports.charts import bounds_in_sight, is_by_ratio

if TYPE_CHECKING:
    from safegen.load.testing import LoadPoint, LoadReport

_COLUMNS = (
    ("ttft p50", "ttft_ms.p50"), ("p99 ms", "ttft_ms.p99"), ("tpot p50", "tpot_ms.p50"), ("p99 ms", "tpot_ms.p99"),
    ("total p99", "total_ms.p99"), ("req/s", "requests_per_s"), ("tokens/s", "tokens_per_s"), ("good %", "goodput_pct"),
    ("ok %", "ok_pct"),
)  # fmt: skip
_LINES = (("o", "#0068a9"), ("s", "#c04a00"), ("^", "#00795c"), ("D", "#8a4b9b"))  # as the page draws them
_PAGES, _DRAWINGS = (".html", ".htm"), (".png", ".svg")


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


def page(report: LoadReport) -> str:
    """One HTML file that needs no other and no network."""
    has_promise = report.slo.ttft_s is not None or report.slo.tpot_s is not None
    return load_page(report, _promise(report) if has_promise else "")


def check_plot(path: str, field: str = "--plot") -> None:
    """Raises RequestError where `save_plot` would, as far as that can be known before there is a report."""
    suffix = Path(path).suffix.lower()
    if suffix not in (*_PAGES, *(_DRAWINGS if field == "--plot" else ())):
        kinds = ".html, .png or .svg" if field == "--plot" else ".html"
        raise RequestError(f"{field} takes a {kinds} file, got {path!r}", field=field, value=path)
    if not Path(path).absolute().parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no such folder", field=field, value=path)
    if Path(path).exists() and not Path(path).is_file():
        raise RequestError(f"{path} cannot be written: it is no file", field=field, value=path)
    try:
        with tempfile.NamedTemporaryFile(dir=Path(path).absolute().parent, prefix=".safegen-", suffix=".tmp"):
            pass
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror or error}", field=field, value=path) from error
    if suffix in _DRAWINGS:
        _figure_class()


def save_plot(report: LoadReport, path: str, field: str = "--plot") -> None:
    """The suffix says what: .html is `page`; .png and .svg are drawn by matplotlib. Complete, or not at all."""
    check_plot(path, field)
    suffix = Path(path).suffix.lower()

    def write(temporary: Path) -> None:
        if suffix in _PAGES:
            temporary.write_text(page(report), encoding="utf-8", errors="backslashreplace")
        else:
            _figure(report).savefig(temporary, format=suffix.removeprefix("."))

    try:
        replace_file(Path(path).resolve(), write)
    except JobOutputError as error:
        raise RequestError(f"{path} cannot be written: {error.reason}", field=field, value=path) from error


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
    drawn = load_charts(report)
    figure = _figure_class()(figsize=(11, 3.2 * -(-len(drawn) // 2)), layout="constrained")
    places = figure.subplots(-(-len(drawn) // 2), 2, squeeze=False).flat
    for axes, chart in zip(places, drawn):
        for line, (marker, colour) in zip(chart.measured, _LINES):
            axes.plot(chart.x, line.y, marker=marker, color=colour, label=line.name)
        for name, bound in bounds_in_sight(chart):
            axes.axhline(bound, linestyle="--", color="black", label=name)
        if is_by_ratio(chart.x):
            axes.set_xscale("log")
        axes.set_xticks(chart.x, chart.names)
        axes.minorticks_off()
        axes.set(title=chart.title, xlabel=chart.x_title, ylabel=chart.unit)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


__all__ = ["check_plot", "page", "save_plot", "table"]
