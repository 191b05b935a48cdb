"""Round numbers for axes, and numbers as people read them."""

from __future__ import annotations

import math

_STEPS = (1, 2, 5, 10)


def round_step(span: float, max_steps: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten of which max_steps span at least `span`."""
    if not span > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / max_steps))
    return next((step * power for step in _STEPS if step * power * max_steps >= span * (1 - 1e-9)), 10 * power)


def value_ticks(largest: float, max_steps: int = 4, *, whole: bool = False) -> list[float]:
    """From zero to the first round number that is not below `largest`. whole: integers alone."""
    step = round_step(largest, max_steps)
    if whole:
        step = max(1.0, step)
    return (
        [_tidy(number * step) for number in range(math.ceil(largest / step - 1e-9) + 1)] if largest > 0 else [0, step]
    )


def span_ticks(low: float, high: float, max_steps: int = 5) -> list[float]:
    """Round numbers within [low, high]."""
    step = round_step(high - low, max_steps)
    return [
        _tidy(number * step)
        for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]  # fmt: skip


def ratio_ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round numbers within [low, high] for a scale of ratios: powers of ten, or 1, 2 and 5 times those, or, in a narrow
    span, as on a scale of differences."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    within = [
        [value for power in range(first, last + 1) for step in steps if low <= (value := step * 10.0**power) <= high]
        for steps in ((1, 2, 5), (1, 3), (1,))
    ]
    for ticks in within:
        if 3 <= len(ticks) <= max_ticks:
            return ticks
    if len(within[-1]) > max_ticks:
        return within[-1][:: math.ceil(len(within[-1]) / max_ticks)]
    return span_ticks(low, high, max_ticks - 2)


def duration_ticks(high_s: float, max_steps: int = 5) -> list[float]:
    """Moments from zero on that a clock would name, in seconds."""
    for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400):
        if high_s <= 2:
            return span_ticks(0.0, high_s, max_steps)
        if high_s / step <= max_steps:
            return [float(number * step) for number in range(int(high_s / step) + 1)]
    return [float(day * 86400) for day in span_ticks(0.0, high_s / 86400, max_steps)]


def _tidy(value: float) -> float:
    """Without the dust of binary fractions."""
    return float(f"{value:.12g}")


def number(value: float) -> str:
    """With a precision that suits its size: 12,345 and 123 and 12.3 and 0.123."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def short_number(value: float) -> str:
    """For the ticks of an axis: 1500 is 1.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:.4g}{letter}"
    return f"{value:,.6g}"


def percent(share: float) -> str:
    """Never 0 % or 100 % of what is a little more or less."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def milliseconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value < 1:
        return f"{value:.2g} ms" if value else "0 ms"
    if value < 1e3:
        return f"{value:.3g} ms" if value < 999.5 else "1 s"
    if value < 6e4:
        return f"{value / 1e3:.3g} s"
    return clock(value / 1e3)


def clock(seconds: float) -> str:
    """As 250 ms, 4.2 s, 3:05 (minutes) or 2:03:05 (hours)."""
    if seconds < 1:
        return milliseconds(1e3 * seconds)
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 59.95 else "1:00"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
