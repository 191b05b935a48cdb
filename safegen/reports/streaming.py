"""Counts of a stream that may have no end, in memory that has one: latencies, lengths, and rates over time.

No value is kept. A quantile is the largest value of the cell in which the nearest rank lies: a value that has really
occurred, never below the true quantile. Latencies have cells of equal ratio (120 a decade), so theirs is at most 2 %
above it. Lengths have a cell each, which is exact, until there are more than MAX_LENGTHS different ones; then two
neighbouring cells become one, and again, and a quantile is the upper end of a cell. Time is cut in equal pieces that
double when there are too many.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

CELLS_PER_DECADE = 120
LOG_ERROR = 10 ** (1 / CELLS_PER_DECADE) - 1  # how far a quantile of latencies may be above the true one
MAX_LENGTHS = 4096
MAX_PIECES = 512
_FIRST_PIECE_S = 0.05
_LOWEST, _HIGHEST = 1e-6, 1e12  # values beyond are counted at the end of the scale
_MAX_BARS, _MIN_BARS = 32, 12
_CELLS_PER_BAR = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120)  # all divide a decade
_ROUND = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Bar:
    """How many values lie in [low, high)."""

    low: float
    high: float
    count: int


class LogHistogram:
    """Of values above zero, in cells of equal ratio. Exact: count, mean, smallest, largest."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0
        self._counts: Counter[int] = Counter()
        self._largest: dict[int, float] = {}  # of each cell

    def add(self, value: float) -> None:
        cell = math.floor(math.log10(min(max(value, _LOWEST), _HIGHEST)) * CELLS_PER_DECADE)
        self._counts[cell] += 1
        self._largest[cell] = max(value, self._largest.get(cell, 0.0))
        self.count += 1
        self.total += value
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float | None:
        """None: there are no values."""
        cell = _cell_of_rank(self._counts, self.count, share)
        return None if cell is None else self._largest[cell]

    def bars(self) -> list[Bar]:
        """12 to 32 bars of equal ratio around all values; none where there are none."""
        if not self._counts:
            return []
        low, high = min(self._counts), max(self._counts)
        width = next(each for each in _CELLS_PER_BAR if high // each - low // each < _MAX_BARS or each == 120)
        counts = _gathered(self._counts, width)
        return [
            Bar(10 ** (bar * width / CELLS_PER_DECADE), 10 ** ((bar + 1) * width / CELLS_PER_DECADE), counts[bar])
            for bar in _widened(low // width, high // width, None)
        ]


class LengthHistogram:
    """Of whole numbers from 0 on."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.largest = 0
        self.cell_width = 1
        self._counts: Counter[int] = Counter()

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def add(self, value: int) -> None:
        self._counts[value // self.cell_width] += 1
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        if len(self._counts) > MAX_LENGTHS:
            self._counts = _gathered(self._counts, 2)
            self.cell_width *= 2

    def quantile(self, share: float) -> int | None:
        """None: there are no values."""
        cell = _cell_of_rank(self._counts, self.count, share)
        return None if cell is None else min(self.largest, (cell + 1) * self.cell_width - 1)

    def bars(self) -> list[Bar]:
        """12 to 32 bars of equal width around all values; none where there are none."""
        if not self._counts:
            return []
        low, high = min(self._counts), max(self._counts)
        widths = (step * 10**power for power in range(20) for step in _ROUND)
        width = next(each for each in widths if high // each - low // each < _MAX_BARS)
        counts, unit = _gathered(self._counts, width), width * self.cell_width
        return [Bar(bar * unit, (bar + 1) * unit, counts[bar]) for bar in _widened(low // width, high // width, 0)]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rates between two moments, in seconds since the beginning."""

    start_s: float
    end_s: float
    rows_per_s: float
    tokens_per_s: float


class Timeline:
    """What came when: rows and their tokens, in at most MAX_PIECES equal pieces of time."""

    def __init__(self) -> None:
        self.piece_s = _FIRST_PIECE_S
        self._rows: list[int] = []
        self._tokens: list[int] = []

    def add(self, at_s: float, tokens: int) -> None:
        while (place := int(at_s / self.piece_s)) >= MAX_PIECES:
            self._rows, self._tokens = _paired(self._rows), _paired(self._tokens)
            self.piece_s *= 2
        missing = place + 1 - len(self._rows)
        if missing > 0:
            self._rows += [0] * missing
            self._tokens += [0] * missing
        self._rows[place] += 1
        self._tokens[place] += tokens

    def pieces(self, end_s: float, max_pieces: int) -> list[Piece]:
        """The time until end_s in at most so many equal pieces, the last one up to half longer or shorter; none where
        nothing came."""
        if not self._rows:
            return []
        num_cells = max(len(self._rows), math.ceil(end_s / self.piece_s))
        step = max(1, math.ceil(num_cells / max(1, max_pieces)))
        starts = list(range(0, num_cells, step))
        if len(starts) > 1 and end_s - starts[-1] * self.piece_s < step * self.piece_s / 2:
            starts.pop()
        pieces = []
        for number, start in enumerate(starts):
            is_last = number == len(starts) - 1
            start_s = start * self.piece_s
            until_s = max(end_s, start_s + self.piece_s / 2) if is_last else starts[number + 1] * self.piece_s
            cells = slice(start, None if is_last else starts[number + 1])
            seconds = until_s - start_s
            pieces.append(Piece(start_s, until_s, sum(self._rows[cells]) / seconds, sum(self._tokens[cells]) / seconds))
        return pieces


def _cell_of_rank(counts: Counter[int], total: int, share: float) -> int | None:
    """Where the smallest value lies that at least `share` of the values do not pass (nearest rank)."""
    rank, below = max(1, math.ceil(share * total - 1e-9)), 0
    for cell in sorted(counts):
        below += counts[cell]
        if below >= rank:
            return cell
    return None


def _gathered(counts: Counter[int], width: int) -> Counter[int]:
    gathered: Counter[int] = Counter()
    for cell, count in counts.items():
        gathered[cell // width] += count
    return gathered


def _widened(low: int, high: int, lowest: int | None) -> range:
    """Bars from low to high, with empty ones on both sides where they are few."""
    missing = max(0, _MIN_BARS - (high - low + 1))
    first = low - missing // 2
    if lowest is not None:
        first = max(lowest, first)
    return range(first, max(high, first + _MIN_BARS - 1) + 1)


def _paired(counts: list[int]) -> list[int]:
    return [sum(counts[place : place + 2]) for place in range(0, len(counts), 2)]
