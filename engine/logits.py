"""The one logits pipeline: from a row of logits to the law that its token is drawn from.

One order for every row, of a plain step and of a verified draft alike:

    logit bias -> penalties (repetition, frequency, presence) -> min-tokens -> constraint mask
    -> temperature -> top-k -> top-p -> min-p -> law

The constraint mask comes last of what decides legality, so nothing can bring a masked token back; where min-tokens
would leave no legal token, the constraint wins. It fails closed: an empty mask raises EmptyMask, and so does a row
whose every legal token has been biased away. Where one id is legal, its score is not looked at: a backend that takes
masks did not compute it. Ties are broken by the lowest id, everywhere.

This is the law, written to be read. Rows that need no bias, penalties, min-tokens or log-probabilities are drawn by its
native twin (`plain_settings`, kernels/sampling.py), which tests hold to it.

Each row is worked on alone, in float32 for scores and float64 for probabilities, so a result does not depend on the
rows beside it. A greedy row that nothing touches costs one argmax; with a mask, one argmax and one bit where the
model's favourite is legal. Repetition penalty counts prompt and output, the other two output alone (as in vLLM and
OpenAI).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.engine.request import SamplingParams
from safegen.errors import EngineError
from safegen.grammars.constraint import WORD_BITS
from safegen.kernels.sampling import SampleSettings

_TINY = float(np.finfo(np.float64).tiny)
Floats = NDArray[np.floating[Any]]


class MissingMask(EngineError):
    """A constrained row reached sampling without a mask. Always a bug; the row ends instead of running
    unconstrained."""


class EmptyMask(EngineError):
    """No token is legal for a row."""


class NonFiniteLogits(EngineError):
    """The model's logits are NaN or infinite where a token would be chosen."""


@dataclass(frozen=True, slots=True)
class Law:
    """A probability law over tokens. ids: [k] int64, ascending. probs: [k] float64, all > 0, sum 1 but for rounding."""

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    @classmethod
    def one_hot(cls, token_id: int) -> Law:
        return cls(np.array([token_id], dtype=np.int64), np.ones(1))


@dataclass(frozen=True, slots=True)
class History:
    """What was committed before a row's position. output_counts: token id -> times it is in the output."""

    num_output_tokens: int
    output_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """What the pipeline makes of a row.

    ids, scores: the legal tokens, ascending, and their scores before temperature; None when the fast path had no need
    of them. They and the law are valid until the next row. greedy: the law is the highest score alone.
    """

    law: Law
    ids: NDArray[np.int64] | None
    scores: NDArray[np.float32] | None
    greedy: bool


class RowBuffers:
    """Vocabulary-sized arrays that all pipelines of an engine share, one row after the other.

    A fresh array of this size costs more in page faults than the arithmetic in it.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.all_ids = np.arange(vocab_size, dtype=np.int64)
        self.all_ids.flags.writeable = False
        self.scores = np.empty(vocab_size, dtype=np.float32)
        self.weights = np.empty(vocab_size, dtype=np.float64)


class LogitsPipeline:
    """The pipeline of one request, with its settings laid out as arrays once. Holds no state of any sequence."""

    def __init__(
        self, params: SamplingParams, prompt_ids: tuple[int, ...], stop_ids: frozenset[int], buffers: RowBuffers
    ) -> None:
        """Ids at or above the buffers' vocab_size are left out: no row holds them."""
        vocab_size = buffers.vocab_size
        self._params = params
        self._buffers = buffers
        bias = {token: value for token, value in params.logit_bias.items() if token < vocab_size}
        self._bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self._forbidden = frozenset(token for token, value in bias.items() if value == -math.inf)
        self._stop_ids = np.array(sorted(token for token in stop_ids if token < vocab_size), dtype=np.int64)
        self._held_ids = frozenset(self._stop_ids.tolist())
        self._repeats = params.repetition_penalty != 1.0
        self.needs_counts = bool(self._repeats or params.presence_penalty or params.frequency_penalty)
        counted = {token for token in prompt_ids if token < vocab_size} if self._repeats else ()
        self._prompt_ids = np.array(sorted(counted), dtype=np.int64)
        self._fast = not (self.needs_counts or bias or params.temperature or params.logprobs is not None)
        self._settings: SampleSettings | None = None
        if not (self.needs_counts or bias or params.logprobs is not None):
            self._settings = SampleSettings(
                params.temperature, min(params.top_k, vocab_size), params.top_p, params.min_p
            )

    def plain_settings(self, num_output_tokens: int) -> SampleSettings | None:
        """Of a row that nothing but its mask and the sampling parameters decide about: it may be drawn natively, by
        the same law, without `target`. None for the others.

        A greedy row may come to a stop id that min-tokens holds back (`holds_back`): only then is it not its token.
        """
        if num_output_tokens < self._params.min_tokens and self._params.temperature != 0.0:
            return None
        return self._settings

    def holds_back(self, token_id: int, num_output_tokens: int) -> bool:
        """Whether the token is a stop id that comes before min-tokens."""
        return num_output_tokens < self._params.min_tokens and token_id in self._held_ids

    def target(self, row: NDArray[np.float32], history: History, mask: NDArray[np.int32] | None) -> Target:
        """row: [vocab] float32 logits, not changed. mask: packed words of the constraint's row, None if unconstrained.

        Raises EmptyMask or NonFiniteLogits.
        """
        if self._fast and history.num_output_tokens >= self._params.min_tokens:
            best = int(row.argmax())
            legal = mask is None or bool((int(mask[best // WORD_BITS]) >> (best % WORD_BITS)) & 1)
            if legal and np.isfinite(row[best]):
                return Target(Law.one_hot(best), None, None, greedy=True)
        scores = self._adjusted(row, history.output_counts)
        ids = self._legal_ids(history, mask)
        if ids.size == 1 and self._params.logprobs is None and int(ids[0]) not in self._forbidden:
            return Target(Law.one_hot(int(ids[0])), None, None, greedy=self._params.temperature == 0.0)
        if ids is not self._buffers.all_ids:
            scores = scores[ids]
        law = self._law(ids, scores, _highest_score(scores))
        return Target(law, ids, scores, greedy=self._params.temperature == 0.0)

    # --- scores -------------------------------------------------------------------------------------------------------

    def _adjusted(self, row: NDArray[np.float32], output_counts: Mapping[int, int]) -> NDArray[np.float32]:
        """The row after bias and penalties: itself if there are none."""
        if not (self.needs_counts or self._bias_ids.size):
            return row
        scores = self._buffers.scores
        scores[:] = row
        scores[self._bias_ids] += self._bias_values
        if self.needs_counts:
            self._penalise(scores, output_counts)
        return scores

    def _penalise(self, scores: NDArray[np.float32], output_counts: Mapping[int, int]) -> None:
        params = self._params
        ids = np.fromiter(output_counts.keys(), dtype=np.int64, count=len(output_counts))
        counts = np.fromiter(output_counts.values(), dtype=np.float64, count=len(output_counts))
        if self._repeats:
            seen = np.union1d(self._prompt_ids, ids)
            values = scores[seen].astype(np.float64)
            penalty = params.repetition_penalty
            scores[seen] = np.where(values > 0, values / penalty, values * penalty)
        scores[ids] -= params.frequency_penalty * counts + params.presence_penalty

    # --- legality -----------------------------------------------------------------------------------------------------

    def _legal_ids(self, history: History, mask: NDArray[np.int32] | None) -> NDArray[np.int64]:
        """Ids that the mask allows, without the stop ids that min-tokens holds back unless only those are left."""
        ids = self._buffers.all_ids
        if mask is not None:
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=self._buffers.vocab_size)
            ids = np.flatnonzero(bits)
        if not ids.size:
            raise empty_mask()
        if history.num_output_tokens < self._params.min_tokens and self._stop_ids.size:
            without = ids[~np.isin(ids, self._stop_ids)]
            ids = without if without.size else ids
        return ids

    # --- law ----------------------------------------------------------------------------------------------------------

    def _law(self, ids: NDArray[np.int64], scores: NDArray[np.float32], best: np.float32) -> Law:
        params = self._params
        if params.temperature == 0.0:
            return Law.one_hot(int(ids[scores.argmax()]))
        if 0 < params.top_k < ids.size:
            places = _highest(scores, params.top_k)
            ids, scores = ids[places], scores[places]
        weights = self._buffers.weights[: ids.size]
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the highest to exp(-inf) = 0
            np.subtract(scores, best, out=weights, dtype=np.float64)
            np.divide(weights, params.temperature, out=weights)
            np.exp(weights, out=weights)
        if params.top_p < 1.0:
            places = _nucleus(weights, params.top_p)
            ids, weights = ids[places], weights[places]
        above = weights >= max(params.min_p, _TINY)
        if not above.all():
            ids, weights = ids[above], weights[above]
        return Law(ids, np.divide(weights, weights.sum(), out=weights))


def _highest_score(scores: NDArray[np.float32]) -> np.float32:
    best: np.float32 = scores.max()
    if not np.isfinite(best):
        raise unusable(float(best))
    return best


def empty_mask() -> EmptyMask:
    return EmptyMask("the constraint allows no token here: its mask is empty")


def unusable(best: float) -> EngineError:
    """What is raised for a row whose highest legal score, `best`, is no finite number."""
    if best == -math.inf:
        return EmptyMask("every legal token has logit -inf: logit_bias or the model forbids all of them")
    return NonFiniteLogits(f"the model's logits hold {best}; the weights or the kernels are broken")


def _highest(values: Floats, count: int) -> NDArray[np.int64]:
    """Places of the `count` highest values, ascending; of equal ones the first."""
    return _first_above(values, np.partition(values, values.size - count)[values.size - count], count)


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Places, ascending, of the smallest set of highest weights whose share is at least top_p; of equal ones the first.

    Weights below (1 - top_p) / size of the sum have less than 1 - top_p together, so the nucleus lies above that line,
    and only what lies above (half of) it is sorted.
    """
    total = weights.sum()
    head = weights[weights >= 0.5 * (1.0 - top_p) * total / weights.size]
    ranked = np.sort(head)[::-1]
    count = min(int(np.searchsorted(np.cumsum(ranked), top_p * total, side="left")) + 1, ranked.size)
    return _first_above(weights, ranked[count - 1], count)


def _first_above(values: Floats, threshold: np.floating[Any], count: int) -> NDArray[np.int64]:
    """Places, ascending, of the values above the threshold, and of the first equal ones, `count` in all."""
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))
