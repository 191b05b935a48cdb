"""A small vocabulary with what makes token masks hard: single bytes, halves of characters, tokens across boundaries."""

from __future__ import annotations

import random

from safegen.grammars.vocabulary import Vocabulary

PIECES = ["ab", "aba", "bc", "abc", "01", "10", "12", "a0", "--", " a", "é", "éa", "aé", "😀", "😀😀", "_a", "\n\n"]
HALVES = ["é".encode()[:1], "😀".encode()[:2], "😀".encode()[2:], "aé".encode()[:2], "éb".encode()[1:]]


def small_vocabulary(seed: int = 0, *, more: int = 60) -> Vocabulary:
    """256 single bytes, fixed and random pieces, halves of multi-byte characters, and one stop id, the last."""
    rng = random.Random(seed)
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += [*(piece.encode() for piece in PIECES), *HALVES]
    tokens += ["".join(rng.choices("ab01_ -é\n", k=rng.randrange(2, 5))).encode() for _ in range(more)]
    tokens += [None, b"ab", None]  # a padded id, a text that two ids have, the stop id
    return Vocabulary(tokens, [len(tokens) - 1])
