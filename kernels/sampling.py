"""Drawing tokens on the CPU: one native call for all plain rows of a step, without a look at masked ids.

The law is that of `engine/logits.py` and `engine/sampler.py`, which stay the oracle; the native code (sampling.hpp)
only does less for it. Arguments are numpy arrays and plain integers, so that this module needs no torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safegen._native import cpu_sample
from safegen._native import cpu_uniform as philox_uniform

__all__ = ["FAULT_KINDS", "Draw", "DrawFault", "SampleSettings", "draw_tokens", "philox_uniform"]

FaultKind = Literal["empty mask", "all forbidden", "non-finite"]
FAULT_KINDS: dict[int, FaultKind] = {1: "empty mask", 2: "all forbidden", 3: "non-finite"}


class SampleSettings(NamedTuple):
    """What a draw depends on beside logits and mask. temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class Draw(NamedTuple):
    """One token to draw. row: of the logits. mask_row: of the words, None where nothing is forbidden. uniform: in
    [0, 1)."""

    settings: SampleSettings
    row: int
    mask_row: int | None
    uniform: float


class DrawFault(NamedTuple):
    """Why a draw has no token. "all forbidden": the highest legal logit is -inf. score: the highest legal logit."""

    kind: FaultKind
    score: float


def draw_tokens(
    logits: NDArray[np.float32],
    vocab_size: int,
    words: NDArray[np.int32] | None,
    draws: list[Draw],
    maxima: NDArray[np.float32] | None = None,
) -> tuple[list[int], dict[int, DrawFault]]:
    """One token id a draw; and by their place in `draws` those that failed, whose id means nothing.

    logits: [rows, >= vocab_size] float32; those of illegal ids do not count and may be anything, as may all of a row in
    which one id is legal. words: [mask rows, ceil(vocab_size / 32)] int32, bits packed as in
    `grammars.constraint.MaskRows`. maxima: [rows, >= ceil(vocab_size / 64)], the highest of each 64 logits if that is
    known, NaN where one of them is none. Raises ValueError for arrays and rows that do not fit.
    """
    ids, faults = cpu_sample(logits, vocab_size, words, draws, maxima)
    return ids, {place: DrawFault(FAULT_KINDS[kind], score) for place, kind, score in faults}
