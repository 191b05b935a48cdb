"""What a drafted token is worth: the chance that it is accepted, against the time that its row costs.

A step that computes n rows takes about a + b * n seconds; both are learned from the steps as they run, for they differ
with batch, model and machine. Rows within what a grammar forces cost less, since the head is computed for legal tokens
alone: they have a b of their own. Where the engine makes r tokens a second, a further row is worth computing iff the
chance that it yields a token is above b * r: the tokens that the same time would yield without it. (That is
Dinkelbach's rule for the ratio tokens / time: r is measured with the drafts, so the threshold rises to where nothing
more can be gained.) r is that of as many sequences as the step has: when a batch runs out, few share a and
drafts grow.
At batch 1 the weights are read once for all rows and b * r is small; where the arithmetic is the limit it comes near 1,
and only what is all but certain is drafted. A draft's i-th token yields something iff all tokens up to it are accepted,
so a draft ends where the product of the chances falls below the threshold.

Chances are measured by kind of guess (drafter, its own kinds, output type) with exponential forgetting, from the
opinion of the drafter on, and corrected for the sequence by how it has done against what was expected of it. A kind
that is never tried drifts back to the drafter's opinion, so that it is tried again some time.

The choice depends on time, and so differs from run to run. The output does not: see verify.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_PRIOR_WEIGHT, _BROAD_WEIGHT = 3.0, 12.0  # broad kinds hold much that differs, and a few misses tell little of it
_KEEP_TRIAL = 0.98
_KEEP_UNTRIED = 0.99
_KEEP_STEP = 0.97
_KEEP_SEQUENCE = 0.95
_SEQUENCE_WEIGHT = 3.0
_MIN_STEPS = 4.0
_FIRST_THRESHOLD = 0.4
_LOWEST_THRESHOLD, _HIGHEST_THRESHOLD = 0.1, 0.97
_OUTLIER = 2.5
_LEAST_SLOPE = 0.3  # of the guess
_MOST_WIDE = 1.5  # of the mean row's seconds
_MAX_KINDS = 16_384


@dataclass(slots=True)
class _Trials:
    accepted: float = 0.0
    tried: float = 0.0


class Acceptance:
    """Measured chances of a token's acceptance, given that those before it were accepted."""

    def __init__(self) -> None:
        self._trials: dict[Hashable, _Trials] = {}

    def chance(self, kind: Hashable, opinion: float, weight: float = _PRIOR_WEIGHT) -> float:
        """weight: trials that the opinion counts for."""
        trials = self._trials.get(kind)
        if trials is None:
            return opinion
        return (trials.accepted + weight * opinion) / (trials.tried + weight)

    def chance_within(self, kinds: tuple[Hashable, ...], opinion: float) -> float:
        """Of the last of some kinds, each within the one before, whose chance is the opinion that it begins with."""
        for kind in kinds[:-1]:
            opinion = self.chance(kind, opinion, _BROAD_WEIGHT)
        return self.chance(kinds[-1], opinion)

    def tried(self, kind: Hashable, accepted: bool) -> None:
        trials = self._trials.get(kind)
        if trials is None:
            if len(self._trials) >= _MAX_KINDS:
                self._trials.clear()
            trials = self._trials[kind] = _Trials()
        trials.accepted = trials.accepted * _KEEP_TRIAL + accepted
        trials.tried = trials.tried * _KEEP_TRIAL + 1.0

    def untried(self, *kinds: Hashable) -> None:
        """Kinds that were left out because of their chance."""
        for kind in kinds:
            trials = self._trials.get(kind)
            if trials is not None:
                trials.accepted *= _KEEP_UNTRIED
                trials.tried *= _KEEP_UNTRIED


@dataclass(slots=True)
class Luck:
    """How a sequence does with one drafter against what was expected: tokens accepted, and the sum of their chances."""

    accepted: float = 0.0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        return (self.accepted + _SEQUENCE_WEIGHT) / (self.expected + _SEQUENCE_WEIGHT)

    def tried(self, accepted: bool, expected: float) -> None:
        self.accepted = self.accepted * _KEEP_SEQUENCE + accepted
        self.expected = self.expected * _KEEP_SEQUENCE + expected


class StepCost:
    """Seconds of a step by its rows, and tokens a second by its sequences, of the steps that only decode."""

    def __init__(self) -> None:
        self._weight = self._sequences = self._rows = self._narrow = self._seconds = self._tokens = 0.0
        self._rows2 = self._narrow2 = self._rows_narrow = self._rows_seconds = self._narrow_seconds = 0.0

    def measured(self, num_sequences: int, num_rows: int, num_tokens: int, seconds: float, num_narrow: int = 0) -> None:
        """num_narrow: rows among num_rows for which few tokens are legal, as within what a grammar forces."""
        if self._weight > 1.0:  # a step that something else held up tells nothing of rows
            seconds = min(
                seconds, _OUTLIER * self._seconds / self._weight * max(1.0, num_rows * self._weight / self._rows)
            )
        rows, narrow = float(num_rows), float(num_narrow)
        self._weight = self._weight * _KEEP_STEP + 1.0
        self._sequences = self._sequences * _KEEP_STEP + num_sequences
        self._rows = self._rows * _KEEP_STEP + rows
        self._narrow = self._narrow * _KEEP_STEP + narrow
        self._seconds = self._seconds * _KEEP_STEP + seconds
        self._tokens = self._tokens * _KEEP_STEP + num_tokens
        self._rows2 = self._rows2 * _KEEP_STEP + rows * rows
        self._narrow2 = self._narrow2 * _KEEP_STEP + narrow * narrow
        self._rows_narrow = self._rows_narrow * _KEEP_STEP + rows * narrow
        self._rows_seconds = self._rows_seconds * _KEEP_STEP + rows * seconds
        self._narrow_seconds = self._narrow_seconds * _KEEP_STEP + narrow * seconds

    @property
    def row_seconds(self) -> tuple[float, float]:
        """Seconds that a further row costs, and a further narrow one: the slopes of a plane through the steps, held to
        a cautious guess, the same for both, while the steps all have about as many rows of each."""
        weight = self._weight
        rows, narrow, seconds = self._rows / weight, self._narrow / weight, self._seconds / weight
        guess, hold = seconds / (rows + 3.0), 0.02 * rows * rows + 0.1
        aa = max(0.0, self._rows2 / weight - rows * rows) + hold
        bb = max(0.0, self._narrow2 / weight - narrow * narrow) + hold
        ab = self._rows_narrow / weight - rows * narrow
        a = self._rows_seconds / weight - rows * seconds + hold * guess
        b = self._narrow_seconds / weight - narrow * seconds
        determinant = aa * bb - ab * ab  # above 0: hold is on the diagonal
        slope, saved = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
        if saved > 0.0:  # a narrow row is no dearer than another
            slope, saved = a / aa, 0.0
        dearest = seconds / rows
        wide = min(max(slope, _LEAST_SLOPE * guess), _MOST_WIDE * dearest)
        return wide, min(max(slope + saved, _LEAST_SLOPE * guess), dearest, wide)

    def price(self, num_sequences: int) -> Price:
        """Of a step of so many sequences: as many tokens and rows each as of late, and what a step takes anyway."""
        if self._weight < _MIN_STEPS or self._seconds <= 0.0:
            return Price(_FIRST_THRESHOLD, _FIRST_THRESHOLD, 0.0)
        wide_s, narrow_s = self.row_seconds
        for_rows_s = min(wide_s * (self._rows - self._narrow) + narrow_s * self._narrow, self._seconds)
        share = num_sequences * self._weight / self._sequences
        rate = self._tokens * share / (self._seconds - for_rows_s + for_rows_s * share)
        return Price(_bounded(wide_s * rate), _bounded(narrow_s * rate), rate)


@dataclass(frozen=True, slots=True)
class Price:
    """wide, narrow: the chance of a token above which its row pays. rate: tokens that a second yields without it."""

    wide: float
    narrow: float
    rate: float


def _bounded(threshold: float) -> float:
    return min(max(threshold, _LOWEST_THRESHOLD), _HIGHEST_THRESHOLD)
