"""Charts as SVG that is as wide as its place and keeps the size of its text: positions across are percentages.

    bar_chart    counts of values in ranges: a histogram, with marks such as a median
    area_chart   one measurement over time, in steps
    line_chart   one or several measurements over x, with a bound to hold
    share_chart  parts of a whole, in one bar

A colour is never the only sign: lines have markers of their own shapes, bounds are dashed and named, bars and parts say
what they are when they are pointed at. Each drawing is one image with a text in its place (`alt`); what it shows stands
in a table beside it, which is `page`'s part. The style is the page's (`page.css`), by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from safegen.reports.scales import number, short_number, value_ticks

HEIGHT = 190  # of the plot; ticks stand below it
_TOP = 18  # room for the names of marks
_FULL_HEIGHT = HEIGHT + 24
_INSET = 0.04  # of a line chart's points from its sides
_NEAR, _NEAR_ON_PHONES = 0.085, 0.2  # ticks closer than that, as a share of the width, are left out
_WIDE_RATIO = 8  # from here on x is a scale of ratios
_BOUND_IN_SIGHT = 3  # a bound so many times above all values is told in words
_MARKERS = (
    '<circle r="4"/>',
    '<rect x="-3.6" y="-3.6" width="7.2" height="7.2"/>',
    '<path d="M0 -5.2 5 3.8 -5 3.8Z"/>',
    '<path d="M0 -5.4 5.4 0 0 5.4 -5.4 0Z"/>',
)


@dataclass(frozen=True, slots=True)
class Tick:
    """at: from 0 (left) to 1. text: as it is written below."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """start, end: from 0 to 1. tip: what it says when it is pointed at."""

    start: float
    end: float
    value: float
    tip: str


@dataclass(frozen=True, slots=True)
class Part:
    """css_class: of its colour. tip: what it says when it is pointed at."""

    value: float
    css_class: str
    tip: str


@dataclass(frozen=True, slots=True)
class Line:
    """y: one value an x of the chart; None where there is none. dashed: a bound, not a measurement."""

    name: str
    y: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over x. x: where the points are, increasing or not; names: what is written there."""

    title: str
    x_title: str
    x: Sequence[float]
    names: Sequence[str]
    lines: Sequence[Line]
    unit: str = ""

    @property
    def measured(self) -> list[Line]:
        return [line for line in self.lines if not line.dashed]

    @property
    def bounds(self) -> list[tuple[str, float]]:
        """Names and values of dashed lines."""
        return [(line.name, line.y[0]) for line in self.lines if line.dashed and line.y and line.y[0] is not None]


def bar_chart(bars: Sequence[DrawnBar], ticks: Sequence[Tick], alt: str, marks: Sequence[Tick] = ()) -> str:
    """marks: vertical lines with names, such as a median."""
    values = value_ticks(max((bar.value for bar in bars), default=0.0), whole=True)
    parts = [*_grid(values), *_x_ticks(ticks)]
    for bar in bars:
        if bar.value <= 0:
            continue
        height = max(1.0, HEIGHT - _y(bar.value, values[-1]))  # one row of a million is seen too
        parts.append(
            f'<rect class="bar" x="{_percent(bar.start)}" width="{_percent(bar.end - bar.start)}" '
            f'y="{HEIGHT - height:.1f}" height="{height:.1f}"><title>{escape(bar.tip)}</title></rect>'
        )
    return _svg([*parts, *_marks(marks)], alt)


def area_chart(steps: Sequence[DrawnBar], ticks: Sequence[Tick], alt: str) -> str:
    """A line in steps, one right of the other, over a filled ground."""
    values = value_ticks(max((step.value for step in steps), default=0.0))
    parts = [*_grid(values), *_x_ticks(ticks)]
    if steps:
        corners = [f"{1000 * x:.1f} {_y(step.value, values[-1]):.1f}" for step in steps for x in (step.start, step.end)]
        line, left, right = "L".join(corners), 1000 * steps[0].start, 1000 * steps[-1].end
        ground = f"M{left:.1f} {HEIGHT}L{line}L{right:.1f} {HEIGHT}Z"
        parts.append(_stretched(f'<path class="area" d="{ground}"/><path class="line s0" d="M{line}"/>'))
    parts += [
        f'<rect class="feel" x="{_percent(step.start)}" width="{_percent(step.end - step.start)}" y="{_TOP}" '
        f'height="{HEIGHT - _TOP}"><title>{escape(step.tip)}</title></rect>'
        for step in steps
    ]
    return _svg(parts, alt)


def line_chart(chart: Chart, alt: str) -> str:
    bounds = bounds_in_sight(chart)
    values = value_ticks(max([_largest(chart), *(bound for _, bound in bounds)]))
    places = x_places(chart.x)
    parts = [*_grid(values), *_x_ticks([Tick(at, name) for at, name in zip(places, chart.names)])]
    for name, bound in bounds:
        y = _y(bound, values[-1])
        below = y < _TOP + 8
        parts.append(f'<line class="bound" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="mark" x="2" y="{y + (14 if below else -5):.1f}">{escape(name)}</text>')
    for place, line in enumerate(chart.measured):
        parts += _drawn(line, place, places, chart, values[-1])
    return _svg(parts, alt)


def bounds_in_sight(chart: Chart) -> list[tuple[str, float]]:
    """Those that would not press all measurements to the ground."""
    largest = _largest(chart)
    return [(name, bound) for name, bound in chart.bounds if bound <= _BOUND_IN_SIGHT * largest or not largest]


def share_chart(parts: Sequence[Part], alt: str) -> str:
    """Parts in their order, each wide enough to be seen."""
    shown = [part for part in parts if part.value > 0]
    whole = sum(part.value for part in shown)
    widths = [max(0.006, part.value / whole) for part in shown]
    drawn, start = [], 0.0
    for part, width in zip(shown, widths):
        share = width / sum(widths)
        drawn.append(
            f'<rect class="{part.css_class}" x="{_percent(start)}" width="{_percent(share)}" height="22">'
            f"<title>{escape(part.tip)}</title></rect>"
        )
        if start:
            drawn.append(f'<line class="cut" x1="{_percent(start)}" x2="{_percent(start)}" y1="0" y2="22"/>')
        start += share
    return f'<svg class="shares" role="img" width="100%" height="22" aria-label="{escape(alt)}">{"".join(drawn)}</svg>'


def legend_marker(place: int) -> str:
    """The sign of a line chart's line in a legend."""
    return (
        f'<svg class="key" width="30" height="14" aria-hidden="true"><line class="line s{place % 4}" x1="1" x2="29" '
        f'y1="7" y2="7"/><g class="dot s{place % 4}" transform="translate(15 7)">{_MARKERS[place % 4]}</g></svg>'
    )


def x_places(x: Sequence[float]) -> list[float]:
    """Where points lie from 0 to 1: at their distances, or by their ratios where these are large."""
    low, high = min(x, default=0.0), max(x, default=0.0)
    if not high > low:
        return [0.5] * len(x)
    if is_by_ratio(x):
        shares = [math.log(each / low) / math.log(high / low) for each in x]
    else:
        shares = [(each - low) / (high - low) for each in x]
    return [_INSET + (1 - 2 * _INSET) * share for share in shares]


def is_by_ratio(x: Sequence[float]) -> bool:
    """Whether values are so far apart that a scale of differences would heap up the small ones."""
    low, high = min(x, default=0.0), max(x, default=0.0)
    return low > 0 and high / low > _WIDE_RATIO


def _drawn(line: Line, number_: int, places: Sequence[float], chart: Chart, top: float) -> list[str]:
    """The line through its points, in order of x, then their markers; a gap where there is no value."""
    order = sorted(range(len(places)), key=lambda place: places[place])
    path, is_down = [], False
    for place in order:
        value = line.y[place]
        if value is not None:
            path.append(f"{'L' if is_down else 'M'}{1000 * places[place]:.1f} {_y(value, top):.1f}")
        is_down = value is not None
    css_class = f"s{number_ % len(_MARKERS)}"
    drawn = [_stretched(f'<path class="line {css_class}" d="{"".join(path)}"/>')] if path else []
    for place in order:
        value = line.y[place]
        if value is not None:
            tip = f"{chart.names[place]} {chart.x_title}: {line.name} {number(value)} {chart.unit}".strip()
            drawn.append(
                f'<svg class="dot {css_class}" x="{_percent(places[place])}" y="{_y(value, top):.1f}" '
                f'overflow="visible">{_MARKERS[number_ % len(_MARKERS)]}<title>{escape(tip)}</title></svg>'
            )
    return drawn


def _largest(chart: Chart) -> float:
    return max((value for line in chart.measured for value in line.y if value is not None), default=0.0)


def _svg(parts: Sequence[str], alt: str) -> str:
    drawn = "\n".join(parts)
    named = f'role="img" aria-label="{escape(alt)}"'
    return f'<svg class="plot" {named} width="100%" height="{_FULL_HEIGHT}">\n{drawn}\n</svg>'


def _stretched(drawn: str) -> str:
    """In a frame of its own, 1000 wide, that is stretched to the width of the plot; strokes keep theirs."""
    return f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none">{drawn}</svg>'


def _grid(values: Sequence[float]) -> list[str]:
    """Lines across with their values left of the plot."""
    parts = []
    for value in values:
        y = _y(value, values[-1])
        kind = "grid" if value else "ground"
        parts.append(f'<line class="{kind}" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="-8" y="{y + 4:.1f}" text-anchor="end">{short_number(value)}</text>')
    return parts


def _x_ticks(ticks: Sequence[Tick]) -> list[str]:
    """Those that have room; on narrow screens fewer (class "wide")."""
    parts, last, last_on_phones = [], -1.0, -1.0
    for tick in sorted(ticks, key=lambda each: each.at):
        if tick.at - last < _NEAR:
            continue
        last = tick.at
        is_wide = tick.at - last_on_phones < _NEAR_ON_PHONES
        last_on_phones = last_on_phones if is_wide else tick.at
        at, kind = _percent(tick.at), "tick wide" if is_wide else "tick"
        anchor = "start" if tick.at < 0.02 else "end" if tick.at > 0.98 else "middle"
        parts.append(f'<line class="notch" x1="{at}" x2="{at}" y1="{HEIGHT}" y2="{HEIGHT + 4}"/>')
        parts.append(
            f'<text class="{kind}" x="{at}" y="{HEIGHT + 18}" text-anchor="{anchor}">{escape(tick.text)}</text>'
        )
    return parts


def _marks(marks: Sequence[Tick]) -> list[str]:
    """Lines from the ground up; the name of one that is too near to the next is left to the numbers below."""
    parts: list[str] = []
    ordered = sorted(marks, key=lambda mark: mark.at)
    for place, mark in enumerate(ordered):
        at = _percent(mark.at)
        parts.append(f'<line class="marker" x1="{at}" x2="{at}" y1="{_TOP - 2}" y2="{HEIGHT}"/>')
        if place + 1 == len(ordered) or ordered[place + 1].at - mark.at > _NEAR_ON_PHONES / 2:
            anchor = "start" if mark.at < 0.06 else "end" if mark.at > 0.94 else "middle"
            parts.append(
                f'<text class="mark" x="{at}" y="{_TOP - 6}" text-anchor="{anchor}">{escape(mark.text)}</text>'
            )
    return parts


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP) * (1 - value / top)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


__all__ = [
    "Chart",
    "DrawnBar",
    "Line",
    "Part",
    "Tick",
    "area_chart",
    "bar_chart",
    "bounds_in_sight",
    "is_by_ratio",
    "legend_marker",
    "line_chart",
    "share_chart",
    "x_places",
]
