"""Which drafted tokens become output. The one verifier of all drafts, and of rows without one.

Let p be a row's law after the whole logits pipeline (mask, bias, penalties with the drafted tokens before it in the
history, min-tokens, temperature, top-k, top-p, min-p), and x the drafted token.

    one-hot   draw y from p; y is the output, and drafting goes on iff y = x.
    sampled   x was drawn from q, u is uniform on [0, 1): x is the output iff u * q(x) < p(x); else y, drawn from
              max(0, p - q) normalised, is, and drafting ends.

Both give p. One-hot: the output is a draw from p by construction, whatever x is. Sampled: y comes out with probability
min(p(y), q(y)) + R * max(0, p(y) - q(y)) / sum max(0, p - q), where R = 1 - sum min(p, q) is the probability of a
rejection; that is sum max(0, p - q), so y has probability p(y), for any q. The comparison is strict: with u = 0 a
masked token (p = 0) must not pass. Row i is used only when the tokens before it are those that it was computed after;
so position by position the output has the law of sequential sampling, and the product is that of the constrained
target.

A one-hot draw takes the number of its (seed, position, attempt), as a row without a draft does. So an output is the
same, token by token, with and without one-hot drafts.

Rows may end early (`RowsEnd`): past an illegal draft, past a verified node's end, past anything that is decided by the
tokens before it alone. Then what was verified stands, and the next step draws the next token.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from safegen.engine.logits import Law
from safegen.engine.speculate.base import DraftPart


class RowsEnd(Exception):
    """There is no usable row at this offset; never raised for offset 0, whose row must be there."""


class TargetRows(Protocol):
    """The rows of one sequence in one step, and its random numbers. offset: how many drafted tokens come before.

    Asked in rising order. A law need only be valid until the next row is asked for.
    """

    def draw(self, offset: int) -> int:
        """A token of the row's law, by the number of its position."""
        ...

    def law(self, offset: int) -> Law: ...

    def draw_from(self, law: Law, offset: int) -> int:
        """A token of another law, by the same number."""
        ...

    def coin(self, offset: int) -> float:
        """A number in [0, 1) that nothing else uses."""
        ...


def verify(parts: Ids[DraftPart], rows: TargetRows) -> Iterator[int]:
    """The output tokens, each as soon as it is decided: the accepted drafted ones, and one more if its row is there."""
    offset = 0
    try:
        for part in parts:
            for place, token_id in enumerate(part.ids):
                probs = None if part.probs is None else part.probs[place]
                decided = rows.draw(offset) if probs is None else _test(token_id, probs, rows, offset)
                yield decided
                if decided != token_id:
                    return
                offset += 1
        yield rows.draw(offset)
    except RowsEnd:
        return


def _test(token_id: int, probs: NDArray[np.float64], rows: TargetRows, offset: int) -> int:
    """The rejection rule. (A rejected token cannot come back: its residual is 0, for p < q there.)"""
    law = rows.law(offset)
    if rows.coin(offset) * probs[token_id] < probability(law, token_id):
        return token_id
    return rows.draw_from(residual(law, probs), offset)


def probability(law: Law, token_id: int) -> float:
    place = int(np.searchsorted(law.ids, token_id))
    return float(law.probs[place]) if place < law.ids.size and law.ids[place] == token_id else 0.0


def residual(law: Law, probs: NDArray[np.float64]) -> Law:
    """max(0, p - q) normalised; p itself where rounding leaves nothing."""
    rest = law.probs - probs[law.ids]
    above = rest > 0.0
    if not above.any():
        return law
    return Law(law.ids[above], rest[above] / rest[above].sum())
