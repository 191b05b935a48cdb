"""Charts: values stand where they belong, every drawing says in words what it shows, and colours can be told apart."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

import safegen.reports.page
from safegen.reports.charts import (
    HEIGHT,
    Chart,
    DrawnBar,
    Line,
    Part,
    Tick,
    area_chart,
    bar_chart,
    bounds_in_sight,
    line_chart,
    share_chart,
    x_places,
)
from safegen.reports.scales import (
    clock,
    duration_ticks,
    milliseconds,
    number,
    percent,
    ratio_ticks,
    short_number,
    span_ticks,
    value_ticks,
)

STYLE = Path(safegen.reports.page.__file__).with_name("page.css").read_text()


def share(text: str | None) -> float:
    assert text is not None and text.endswith("%")
    return float(text[:-1]) / 100


def test_bars_stand_where_they_belong_and_as_high_as_they_are() -> None:
    bars = [DrawnBar(0.0, 0.5, 100, "a"), DrawnBar(0.5, 0.75, 50, "b"), DrawnBar(0.75, 1.0, 0, "c")]
    root = ElementTree.fromstring(bar_chart(bars, [Tick(0.5, "half")], "what it shows", [Tick(0.25, "median")]))
    drawn = root.findall("rect")
    assert [(share(bar.get("x")), share(bar.get("width"))) for bar in drawn] == [(0.0, 0.5), (0.5, 0.25)]
    high, low = (float(bar.get("height", "")) for bar in drawn)
    assert high == pytest.approx(2 * low, rel=0.01) and float(drawn[0].get("y", "")) == pytest.approx(HEIGHT - high)
    assert root.get("role") == "img" and root.get("aria-label") == "what it shows"
    assert [bar.findtext("title") for bar in drawn] == ["a", "b"]
    assert "median" in [text.text for text in root.findall("text")]


def test_one_row_of_a_million_is_seen() -> None:
    root = ElementTree.fromstring(bar_chart([DrawnBar(0, 0.5, 1e6, ""), DrawnBar(0.5, 1, 1, "")], [], ""))
    assert float(root.findall("rect")[1].get("height", "")) >= 1


def test_a_line_goes_through_its_values_and_leaves_gaps() -> None:
    chart = Chart("t", "x", [1, 2, 3, 4], ["1", "2", "3", "4"], [Line("l", [0.0, 50.0, None, 100.0])], "ms")
    root = ElementTree.fromstring(line_chart(chart, "alt"))
    dots = [(share(dot.get("x")), float(dot.get("y", ""))) for dot in root.iter("svg") if dot.get("x")]
    assert len(dots) == 3 and [x for x, _ in dots] == sorted(x for x, _ in dots)
    (_, bottom), (_, middle), (_, top) = dots
    assert middle == pytest.approx((bottom + top) / 2, abs=0.2), "50 of 100"
    path = next(element.get("d", "") for element in root.iter("path") if "line" in element.get("class", ""))
    assert path.count("M") == 2 and path.count("L") == 1


def test_a_bound_is_drawn_where_it_is_unless_it_would_press_all_else_to_the_ground() -> None:
    near = Chart("t", "x", [1, 2], ["1", "2"], [Line("l", [40.0, 90.0]), Line("promised", [100.0, 100.0], dashed=True)])
    assert bounds_in_sight(near) == [("promised", 100.0)]
    root = ElementTree.fromstring(line_chart(near, ""))
    (bound,) = (line for line in root.findall("line") if line.get("class") == "bound")
    assert float(bound.get("y1", "")) < min(float(dot.get("y", "")) for dot in root.iter("svg") if dot.get("x"))
    far = Chart("t", "x", [1], ["1"], [Line("l", [40.0]), Line("promised", [5000.0], dashed=True)])
    assert bounds_in_sight(far) == [] and "promised" not in line_chart(far, "")


def test_x_is_a_scale_of_ratios_where_they_are_large() -> None:
    assert x_places([1, 2, 3]) == pytest.approx([0.04, 0.5, 0.96])
    assert x_places([1, 4, 16]) == pytest.approx([0.04, 0.5, 0.96])
    assert x_places([5]) == [0.5] and x_places([]) == []


def test_steps_and_shares_cover_their_width() -> None:
    steps = [DrawnBar(0.0, 0.5, 3.0, "<first>"), DrawnBar(0.5, 1.0, 0.0, "second")]
    root = ElementTree.fromstring(area_chart(steps, [], "rates"))
    assert [title.text for title in root.iter("title")] == ["<first>", "second"]
    parts = [Part(9_999, "ok", "ok"), Part(1, "error", "error"), Part(0, "blocked", "none")]
    drawn = ElementTree.fromstring(share_chart(parts, "9,999 ok")).findall("rect")
    widths = [share(part.get("width")) for part in drawn]
    assert len(widths) == 2 and sum(widths) == pytest.approx(1, abs=1e-3) and widths[1] > 0.004


def test_hostile_names_make_no_markup() -> None:
    chart = Chart("t", "<x>", [1], ["<1>"], [Line("<l>", [1.0]), Line("<b>", [1.0], dashed=True)])
    for drawn in (
        line_chart(chart, '"<a>'), bar_chart([DrawnBar(0, 1, 1, "<t>")], [Tick(0, "<k>")], '"', [Tick(0, "<m>")]),
        share_chart([Part(1, "ok", "<p>")], '"'), area_chart([DrawnBar(0, 1, 1, "<t>")], [Tick(0, "<k>")], '"'),
    ):  # fmt: skip
        ElementTree.fromstring(drawn)
        assert not re.search(r"<[a-z]>", drawn)


def test_ticks_are_round_numbers_around_or_within() -> None:
    assert value_ticks(87) == [0, 50, 100] or value_ticks(87)[-1] >= 87
    assert value_ticks(3, whole=True) == [0, 1, 2, 3]
    assert value_ticks(0) == [0, 1] and value_ticks(0.07)[-1] >= 0.07
    for largest in (1e-9, 0.3, 1, 17, 999, 1001, 123_456_789):
        ticks = value_ticks(largest)
        assert ticks[0] == 0 and ticks[-1] >= largest and 2 <= len(ticks) <= 5
        assert ticks[-2] < largest
    assert span_ticks(100, 160) == [100, 120, 140, 160]
    assert ratio_ticks(1, 10_000) == [1, 10, 100, 1000, 10_000]
    assert ratio_ticks(8, 120) == [10, 20, 50, 100]
    for low, high in ((0.9, 1.1), (100, 150), (1, 9), (1e-6, 1e12), (0.3, 45_000)):
        ticks = ratio_ticks(low, high)
        assert 2 <= len(ticks) <= 7 and all(low <= tick <= high * (1 + 1e-9) for tick in ticks)
    assert duration_ticks(130) == [0, 30, 60, 90, 120]
    assert duration_ticks(86_400 * 9)[1] == 2 * 86_400
    for seconds in (0.02, 1.0, 7.0, 59, 61, 3600, 50_000, 1e7):
        assert 2 <= len(duration_ticks(seconds)) <= 6


def test_numbers_read_as_people_write_them() -> None:
    assert [number(value) for value in (12_345.0, 123.4, 12.34, 0.1234)] == ["12,345", "123", "12.3", "0.123"]
    assert [short_number(value) for value in (0, 1500, 20_000, 2_500_000, 0.25)] == [
        "0",
        "1,500",
        "20k",
        "2.5M",
        "0.25",
    ]
    assert [percent(value) for value in (0, 1, 0.5, 0.99999, 0.00001)] == [
        "0 %",
        "100 %",
        "50 %",
        "> 99.9 %",
        "< 0.1 %",
    ]
    told = [milliseconds(value) for value in (0, 0.25, 12.3, 999.9, 1500, 65_000)]
    assert told == ["0 ms", "0.25 ms", "12.3 ms", "1 s", "1.5 s", "1:05"]
    assert [clock(value) for value in (4.25, 59.99, 185, 7385)] == ["4.25 s", "1:00", "3:05", "2:03:05"]


# --- the style --------------------------------------------------------------------------------------------------------


def schemes() -> list[dict[str, str]]:
    """The colours of light, dark and paper."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    light = dict(re.findall(r"--(\w+): (#\w+)", blocks[0]))
    return [light, *({**light, **dict(re.findall(r"--(\w+): (#\w+)", block))} for block in blocks[1:])]


def luminance(colour: str) -> float:
    digits = colour[1:7] if len(colour) >= 7 else "".join(2 * digit for digit in colour[1:4])
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_in_light_dark_and_on_paper() -> None:
    assert len(schemes()) == 3
    for colours in schemes():
        for ground in ("ground", "sheet"):
            for text in ("ink", "soft"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
            for drawn in ("blue", "orange", "green", "purple", "ochre", "black", "good", "bad"):
                assert contrast(colours[drawn], colours[ground]) >= 3, (drawn, ground)


def seen(colour: str, kind: str) -> tuple[float, float, float]:
    """A colour as people without red or green cones see it (Viénot, Brettel and Mollon 1999), in linear light."""
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    )
    if kind == "protan":
        return 0.11238 * red + 0.88762 * green, 0.11238 * red + 0.88762 * green, 0.00401 * (red - green) + blue
    if kind == "deutan":
        return 0.29275 * red + 0.70725 * green, 0.29275 * red + 0.70725 * green, -0.02234 * (red - green) + blue
    return red, green, blue


def test_the_lines_of_a_chart_are_told_apart_without_red_or_green() -> None:
    for colours in schemes():
        for kind in ("all", "protan", "deutan"):
            for one, other in combinations([colours[name] for name in ("blue", "orange", "green")], 2):
                distance = max(
                    abs(a ** (1 / 2.2) - max(b, 0) ** (1 / 2.2)) for a, b in zip(seen(one, kind), seen(other, kind))
                )
                assert distance > 0.15, (kind, one, other)


def test_the_style_asks_for_nothing() -> None:
    assert not re.search(r"url\(|@import|https?:|@font-face", STYLE)
