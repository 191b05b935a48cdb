"""Drawing a token from a law, and reporting its log-probabilities.

A draw is the inverse of the cumulative law at one uniform number, in float64, in order of token id: the smallest id
whose cumulative probability exceeds u. The sum runs over blocks of ids first, then within one block, so that a large
vocabulary costs one pass; the comparison is strict. The uniform number comes from `engine.rng` by (seed, index,
position), never from shared state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safegen.engine.logits import Law, Target
from safegen.engine.request import TokenLogprobs

_BLOCK_IDS = 512


def draw(law: Law, uniform: float) -> int:
    """The token of `law` at `uniform` in [0, 1)."""
    num_ids = law.ids.size
    if num_ids == 1:
        return int(law.ids[0])
    blocks = np.cumsum(np.add.reduceat(law.probs, np.arange(0, num_ids, _BLOCK_IDS)))
    wanted = uniform * blocks[-1]
    block = min(int(np.searchsorted(blocks, wanted, side="right")), blocks.size - 1)
    start = block * _BLOCK_IDS
    within = np.cumsum(law.probs[start : start + _BLOCK_IDS])
    rest = wanted - blocks[block - 1] if block else wanted
    return int(law.ids[start + min(int(np.searchsorted(within, rest, side="right")), within.size - 1)])


def token_logprobs(row: NDArray[np.float32], target: Target, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of a drawn token.

    raw: of the model's own row. constrained: of the law the token was drawn from; for a greedy row, whose law is one
    token, of the scores after the mask at temperature 1. num_top: entries of the top lists, best first, equal ones by
    id.
    """
    raw = _log_softmax(row.astype(np.float64))
    law = target.law
    if target.greedy and target.ids is not None and target.scores is not None:
        ids, logs = target.ids, _log_softmax(target.scores.astype(np.float64))
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
