"""Histograms and timelines of streams: exact where they say so, and near the truth elsewhere, in bounded memory."""

from __future__ import annotations

import math
import random
import sys

import pytest

from safegen.reports.streaming import (
    LOG_ERROR,
    MAX_LENGTHS,
    MAX_PIECES,
    LengthHistogram,
    LogHistogram,
    Timeline,
)

SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0)


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_quantile_of_latencies_is_never_too_low_and_at_most_two_percent_too_high(seed: int) -> None:
    draws = random.Random(seed)
    values = [draws.lognormvariate(4, 1 + seed) for _ in range(3000)]
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    for share in SHARES:
        true, told = nearest_rank(values, share), histogram.quantile(share)
        assert told is not None and true <= told <= true * (1 + LOG_ERROR) * (1 + 1e-12)
        assert told in values
    assert (histogram.count, histogram.largest) == (3000, max(values))
    assert histogram.mean == pytest.approx(sum(values) / 3000)
    assert LOG_ERROR < 0.02


def test_bars_hold_every_value_once_and_share_their_edges() -> None:
    draws = random.Random(1)
    for spread in (0.0001, 0.3, 2.0, 3.5):
        histogram, values = LogHistogram(), [draws.lognormvariate(3, spread) for _ in range(2000)]
        for value in values:
            histogram.add(value)
        bars = histogram.bars()
        assert 12 <= len(bars) <= 32
        assert all(left.high == right.low for left, right in zip(bars, bars[1:]))
        for bar in bars:  # an edge is a value of ours, up to the last bits of its power of ten
            inside = sum(bar.low * (1 + 1e-12) <= value < bar.high * (1 - 1e-12) for value in values)
            assert inside == bar.count


@pytest.mark.parametrize("value", [1e-9, 0.001, 1.0, 999.999, 1e15])
def test_one_value_is_its_own_quantile(value: float) -> None:
    histogram = LogHistogram()
    histogram.add(value)
    assert [histogram.quantile(share) for share in SHARES] == [value] * len(SHARES)
    assert sum(bar.count for bar in histogram.bars()) == 1


def test_nothing_has_no_quantile_and_no_bars() -> None:
    assert LogHistogram().quantile(0.5) is None and LengthHistogram().quantile(0.5) is None
    assert LogHistogram().bars() == [] == LengthHistogram().bars()
    assert LogHistogram().mean == 0 == LengthHistogram().mean
    assert Timeline().pieces(10.0, 60) == []


def test_lengths_are_exact_up_to_so_many_different_ones() -> None:
    draws = random.Random(2)
    values = [draws.randrange(MAX_LENGTHS) for _ in range(20_000)]
    histogram = LengthHistogram()
    for value in values:
        histogram.add(value)
    assert [histogram.quantile(share) for share in SHARES] == [nearest_rank(list(values), share) for share in SHARES]
    assert histogram.cell_width == 1 and histogram.mean == pytest.approx(sum(values) / len(values))


def test_more_lengths_than_that_make_wider_cells_and_lose_none() -> None:
    histogram = LengthHistogram()
    for value in range(0, 131_072, 2):
        histogram.add(value)
    assert histogram.count == 65_536 == sum(bar.count for bar in histogram.bars())
    median = histogram.quantile(0.5)
    assert median is not None and 65_534 <= median <= 65_534 + histogram.cell_width
    assert histogram.quantile(1.0) == 131_070 == histogram.largest
    assert 12 <= len(histogram.bars()) <= 32


def test_length_bars_are_whole_numbers_wide_and_begin_at_zero_at_the_least() -> None:
    for values in ([0], [3, 3, 4], [1000, 1003], list(range(500))):
        histogram = LengthHistogram()
        for value in values:
            histogram.add(value)
        bars = histogram.bars()
        assert bars[0].low >= 0 and all(bar.low == int(bar.low) for bar in bars)
        assert sum(bar.count for bar in bars) == len(values)
        for bar in bars:
            assert bar.count == sum(bar.low <= value < bar.high for value in values)


@pytest.mark.parametrize("seconds", [0.01, 3.0, 100.0, 86_400.0 * 10])
def test_rates_over_time_add_up_to_what_came(seconds: float) -> None:
    draws, timeline = random.Random(3), Timeline()
    moments = sorted(draws.uniform(0, seconds) for _ in range(5000))
    for at_s in moments:
        timeline.add(at_s, 7)
    pieces = timeline.pieces(seconds, 60)
    assert 1 <= len(pieces) <= 60
    assert pieces[0].start_s == 0 and all(left.end_s == right.start_s for left, right in zip(pieces, pieces[1:]))
    assert sum(piece.rows_per_s * (piece.end_s - piece.start_s) for piece in pieces) == pytest.approx(5000)
    assert sum(piece.tokens_per_s * (piece.end_s - piece.start_s) for piece in pieces) == pytest.approx(35_000)
    assert pieces[-1].end_s == pytest.approx(seconds, abs=timeline.piece_s)


def test_a_pause_and_a_burst_are_seen_where_they_were() -> None:
    timeline = Timeline()
    for second in (*range(10), *range(50, 60)):
        for _ in range(20 if second >= 50 else 5):
            timeline.add(second + 0.5, 10)
    pieces = timeline.pieces(60.0, 6)
    assert [round(piece.rows_per_s) for piece in pieces] == [5, 0, 0, 0, 0, 20]
    assert [round(piece.tokens_per_s) for piece in pieces] == [50, 0, 0, 0, 0, 200]


def test_memory_does_not_grow_with_the_stream() -> None:
    draws = random.Random(4)
    latencies, lengths, timeline = LogHistogram(), LengthHistogram(), Timeline()
    for number in range(60_000):
        latencies.add(draws.lognormvariate(4, 3))
        lengths.add(draws.randrange(1_000_000))
        timeline.add(number * 11.0, 5)
    assert len(latencies._counts) <= 120 * 18  # decades of the scale
    assert len(lengths._counts) <= MAX_LENGTHS
    assert len(timeline._rows) <= MAX_PIECES
    assert sys.getsizeof(lengths._counts) < 1 << 20
