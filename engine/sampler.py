"""Drawing a token from a law, and reporting its log-probabilities.

A draw is the inverse of the cumulative law at one uniform number, in float64, in order of token id: the smallest id
whose cumulative probability exceeds u. The comparison is strict, so a token of probability zero is never drawn, not
even at u = 0. The uniform number comes from `engine.rng` by (seed, index, position), never from shared state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safegen.engine.logits import Law, Target
from safegen.engine.request import TokenLogprobs


def draw(law: Law, uniform: float) -> int:
    """The token of `law` at `uniform` in [0, 1)."""
    if law.ids.size == 1:
        return int(law.ids[0])
    cumulative = np.cumsum(law.probs)
    place = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return int(law.ids[min(place, law.ids.size - 1)])


def token_logprobs(row: NDArray[np.float32], target: Target, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of a drawn token.

    raw: of the model's own row. constrained: of the law the token was drawn from; for a greedy row, whose law is one
    token, of the scores after the mask at temperature 1. num_top: entries of the top lists, best first, equal ones by
    id.
    """
    raw = _log_softmax(row.astype(np.float64))
    law = target.law
    if target.greedy and target.scores is not None:
        ids = np.flatnonzero(target.scores > -np.inf)
        logs = _log_softmax(target.scores[ids].astype(np.float64))
    else:
        ids, logs = law.ids, np.log(law.probs)
    return TokenLogprobs(
        token_id=token_id,
        raw=float(raw[token_id]),
        constrained=float(logs[np.searchsorted(ids, token_id)]),
        top_raw=_top(np.arange(raw.size), raw, num_top),
        top_constrained=_top(ids, logs, num_top),
    )


def _log_softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = values - values.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def _top(ids: NDArray[np.int64], logs: NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    order = np.argsort(-logs, kind="stable")[:count]
    return tuple((int(ids[place]), float(logs[place])) for place in order)
