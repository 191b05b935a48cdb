"""Line charts as SVG text, with nothing but the standard library: enough for a page that opens anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_COLOURS = ("#1f6feb", "#d1451b", "#2da44e", "#8250df")


@dataclass(frozen=True, slots=True)
class Line:
    """y: one value an x of the chart; None where there is none. dashed: a bound, not a measurement."""

    name: str
    y: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """x: names of the points, in order, at equal distances."""

    title: str
    x_title: str
    x: Sequence[str]
    lines: Sequence[Line]


def svg(chart: Chart) -> str:
    """The chart as an <svg> element."""
    top = _ceiling(max((value for line in chart.lines for value in line.y if value is not None), default=1.0))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{_LEFT}" y="18">{escape(chart.title)}</text>',
    ]
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for place, name in enumerate(chart.x):
        x = _x(place, len(chart.x))
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(chart.x_title)}</text>'
    )
    for number, line in enumerate(chart.lines):
        parts += _drawn(line, _COLOURS[number % len(_COLOURS)], top, len(chart.x))
        x = _WIDTH - _RIGHT - 110 * (len(chart.lines) - number)
        parts.append(f'<rect x="{x}" y="{_TOP - 24}" width="10" height="10" fill="{_COLOURS[number % 4]}"/>')
        parts.append(f'<text class="tick" x="{x + 14}" y="{_TOP - 15}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>"])


def _drawn(line: Line, colour: str, top: float, count: int) -> list[str]:
    points = [(_x(place, count), _y(value, top)) for place, value in enumerate(line.y) if value is not None]
    if not points:
        return []
    if line.dashed and len(points) == 1:
        points = [(float(_LEFT), points[0][1]), (float(_WIDTH - _RIGHT), points[0][1])]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    drawn = [f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{path}"/>']
    if not line.dashed:
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return drawn


def _x(place: int, count: int) -> float:
    width = _WIDTH - _LEFT - _RIGHT
    return _LEFT + width * (place + 0.5) / max(1, count)


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _ceiling(value: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value)


__all__ = ["Chart", "Line", "svg"]
