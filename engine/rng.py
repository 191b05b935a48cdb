"""Counter-based random numbers: a draw is a pure function of (seed, sequence index, position, attempt, stream).

So a draw does not depend on what else is in the batch, on the order of rows, on preemption or on speculation (DESIGN
rule 5): nothing is stored and nothing is advanced. The attempt is how often the sequence has been retracted: what is
drawn again at a position gets a number of its own, and without retracts there is attempt 0 alone. Streams keep apart
what draws the output from what tests a sampled draft and from what drew it (engine/speculate). The function is
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which passes BigCrush; numpy's
own Philox is the oracle in the tests. `uniform` is computed natively, once a token; `philox4x64` is its readable twin.
"""

from __future__ import annotations

import os

from safegen.kernels.sampling import philox_uniform

_MASK = 2**64 - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10

OUTPUT, COIN, DRAFT = 0, 1, 2  # streams
_STREAM_SHIFT = 56  # of the attempt, which never comes near 2^56

Words = tuple[int, int, int, int]


def philox4x64(counter: Words, key: tuple[int, int]) -> Words:
    """Four random 64-bit words for a 256-bit counter and a 128-bit key, all as unsigned 64-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 64) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 64) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, index: int, position: int, attempt: int = 0, stream: int = OUTPUT) -> float:
    """A float64 in [0, 1): the upper 53 bits of the first word of philox4x64((position, index, attempt, 0), (seed, 0)).

    seed: any integer, taken modulo 2^64. index: which of the request's n sequences. position: output position of the
    token. attempt: how often the sequence has been retracted before. stream: OUTPUT, COIN or DRAFT; it stands in the
    highest bits of the attempt.
    """
    return philox_uniform(seed & _MASK, index, position, attempt | stream << _STREAM_SHIFT)


def fresh_seed() -> int:
    """A seed for a request that gave none, from the operating system."""
    return int.from_bytes(os.urandom(8), "little")
