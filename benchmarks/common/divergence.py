"""How far one model's next-token law is from another's: mean KL divergence, equal first choices, perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_ROWS_AT_ONCE = 64


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _chunks(num_rows: int) -> Iterable[slice]:
    return (slice(start, start + _ROWS_AT_ONCE) for start in range(0, num_rows, _ROWS_AT_ONCE))


def mean_kl(reference: Floats, other: Floats) -> tuple[float, float]:
    """(mean over the rows of KL(reference || other) in nats, share of rows with the same most likely token).

    reference, other: logits [rows, vocabulary].
    """
    if reference.shape != other.shape:
        raise ValueError(f"logits of different shapes: {reference.shape} and {other.shape}")
    total, same = 0.0, 0
    for rows in _chunks(len(reference)):
        p, q = log_softmax(reference[rows]), log_softmax(other[rows])
        total += float((np.exp(p) * (p - q)).sum())
        same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
    return total / len(reference), same / len(reference)


def perplexity(logits: Floats, windows: Sequence[Sequence[int]]) -> float:
    """exp of the mean negative log-likelihood of each window's tokens after its first.

    logits: [tokens of all windows, vocabulary]; row i is the law of the token after token i.
    """
    total, count, row = 0.0, 0, 0
    for window in windows:
        for part in _chunks(len(window) - 1):
            wanted = np.array(window[1:][part])
            laws = log_softmax(logits[row + part.start : row + part.start + len(wanted)])
            total -= float(laws[np.arange(len(wanted)), wanted].sum())
            count += len(wanted)
        row += len(window)
    return float(np.exp(total / count))
