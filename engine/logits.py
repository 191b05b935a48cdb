"""The one logits pipeline: from a row of logits to the law that its token is drawn from.

One order for every row, of a plain step and of a verified draft alike:

    logit bias -> penalties (repetition, frequency, presence) -> min-tokens -> constraint mask
    -> temperature -> top-k -> top-p -> min-p -> law

The constraint mask comes last of what decides legality, so nothing can bring a masked token back; where min-tokens
would leave no legal token, the constraint wins. It fails closed: an empty mask raises EmptyMask, and so does a row
whose every legal token has been biased away. Ties are broken by the lowest id, everywhere.

Each row is worked on alone, in float32 for scores and float64 for probabilities, so a result does not depend on the
rows beside it. A greedy row that nothing touches costs one argmax; with a mask, one argmax and one bit where the
model's favourite is legal. Repetition penalty counts prompt and output, the other two output alone (as in vLLM and
OpenAI).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.engine.request import SamplingParams
from safegen.errors import EngineError
from safegen.grammars.constraint import WORD_BITS

Floats = NDArray[np.floating[Any]]
_NUCLEUS_FIRST_LOOK = 512


class MissingMask(EngineError):
    """A constrained row reached sampling without a mask. Always a bug; the row ends instead of running
    unconstrained."""


class EmptyMask(EngineError):
    """No token is legal for a row."""


class NonFiniteLogits(EngineError):
    """The model's logits are NaN or infinite where a token would be chosen."""


@dataclass(frozen=True, slots=True)
class Law:
    """A probability law over tokens. ids: [k] int64, ascending. probs: [k] float64, all > 0, sum 1."""

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
    """What the pipeline makes of a row. scores: [vocab] float32 after the mask (-inf is illegal), before temperature;
    None when the fast path had no need of them. greedy: the law is the highest score alone, temperature being 0."""

    law: Law
    scores: NDArray[np.float32] | None
    greedy: bool


class LogitsPipeline:
    """The pipeline of one request, with its settings laid out as arrays once. Holds no state of any sequence."""

    def __init__(
        self, params: SamplingParams, prompt_ids: tuple[int, ...], stop_ids: frozenset[int], vocab_size: int
    ) -> None:
        """vocab_size: length of the rows. Ids at or above it are left out: no row holds them."""
        self._params = params
        self._vocab_size = vocab_size
        bias = {token: value for token, value in params.logit_bias.items() if token < vocab_size}
        self._bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self._stop_ids = np.array(sorted(token for token in stop_ids if token < vocab_size), dtype=np.int64)
        self._repeats = params.repetition_penalty != 1.0
        self.needs_counts = bool(self._repeats or params.presence_penalty or params.frequency_penalty)
        self._prompt_ids = np.unique(np.array(prompt_ids if self._repeats else (), dtype=np.int64))
        self._fast = not (self.needs_counts or bias or params.temperature or params.logprobs is not None)

    def target(self, row: NDArray[np.float32], history: History, mask: NDArray[np.int32] | None) -> Target:
        """row: [vocab] float32 logits, not changed. mask: packed words of the constraint's row, None if unconstrained.

        Raises EmptyMask or NonFiniteLogits.
        """
        if self._fast and history.num_output_tokens >= self._params.min_tokens:
            best = int(row.argmax())
            legal = mask is None or bool((int(mask[best // WORD_BITS]) >> (best % WORD_BITS)) & 1)
            if legal and np.isfinite(row[best]):
                return Target(Law.one_hot(best), None, greedy=True)
        scores = self._scores(row, history, mask)
        return Target(self._law(scores), scores, greedy=self._params.temperature == 0.0)

    # --- legality and scores --------------------------------------------------------------------------------------

    def _scores(
        self, row: NDArray[np.float32], history: History, mask: NDArray[np.int32] | None
    ) -> NDArray[np.float32]:
        scores = row.astype(np.float32)
        scores[self._bias_ids] += self._bias_values
        if self.needs_counts:
            self._penalise(scores, history.output_counts)
        held_back = self._stop_ids if history.num_output_tokens < self._params.min_tokens else self._stop_ids[:0]
        if mask is None:
            scores[held_back] = -np.inf
        else:
            scores[~self._legal(mask, held_back)] = -np.inf
        best = scores.max()
        if best == -np.inf:
            raise EmptyMask("every legal token has logit -inf: logit_bias or the model forbids all of them")
        if not np.isfinite(best):
            raise NonFiniteLogits(f"the model's logits hold {best}; the weights or the kernels are broken")
        return scores

    def _legal(self, mask: NDArray[np.int32], held_back: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The mask as [vocab] bool, without the stop ids that min-tokens holds back unless only those are left."""
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=self._vocab_size)
        legal = bits.view(np.bool_)
        if held_back.size and legal[held_back].any():
            without = legal.copy()
            without[held_back] = False
            legal = without if without.any() else legal
        if not legal.any():
            raise EmptyMask("the constraint allows no token here: its mask is empty")
        return legal

    def _penalise(self, scores: NDArray[np.float32], output_counts: Mapping[int, int]) -> None:
        params = self._params
        ids = np.fromiter(output_counts.keys(), dtype=np.int64, count=len(output_counts))
        counts = np.fromiter(output_counts.values(), dtype=np.float64, count=len(output_counts))
        if self._repeats:
            seen = np.union1d(self._prompt_ids, ids)
            seen = seen[seen < self._vocab_size]
            values = scores[seen].astype(np.float64)
            penalty = params.repetition_penalty
            scores[seen] = np.where(values > 0, values / penalty, values * penalty)
        lowered = scores[ids] - (params.frequency_penalty * counts + params.presence_penalty)
        scores[ids] = lowered

    # --- law ------------------------------------------------------------------------------------------------------

    def _law(self, scores: NDArray[np.float32]) -> Law:
        params = self._params
        if params.temperature == 0.0:
            return Law.one_hot(int(scores.argmax()))
        ids = np.flatnonzero(scores > -np.inf)
        if 0 < params.top_k < ids.size:
            ids = ids[_highest(scores[ids], params.top_k)]
        exact = scores[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the highest to exp(-inf) = 0
            weights = np.exp((exact - exact.max()) / params.temperature)
        if params.top_p < 1.0:
            kept = _nucleus(weights, params.top_p)
            ids, weights = ids[kept], weights[kept]
        kept = weights >= max(params.min_p, np.finfo(np.float64).tiny)
        ids, weights = ids[kept], weights[kept]
        return Law(ids, weights / weights.sum())


def _highest(values: Floats, count: int) -> NDArray[np.int64]:
    """Places of the `count` highest values, ascending; of equal ones the first."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Places, ascending, of the smallest set of highest weights whose share is at least top_p; of equal ones the first.

    A nucleus is mostly small: the few highest are looked at first, all of them only when those do not suffice.
    """
    wanted = top_p * weights.sum()
    for count in (min(_NUCLEUS_FIRST_LOOK, weights.size), weights.size):
        places = _highest(weights, count)
        places = places[np.argsort(-weights[places], kind="stable")]
        cumulative = np.cumsum(weights[places])
        if cumulative[-1] >= wanted or count == weights.size:
            break
    return np.sort(places[: int(np.searchsorted(cumulative, wanted, side="left")) + 1])
