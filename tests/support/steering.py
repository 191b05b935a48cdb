"""A backend whose logits always steer toward certain texts, wherever the output stands.

It looks for the longest ending of the output that begins one of the texts and likes best what goes on with it; then
what begins the others; then a quote and the characters of JSON, so that values come to their ends. Where all of that is
illegal the fake backend's pseudo-random logits decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from safegen.engine.speculate.base import Ask, Draft
from tests.support.drafters import FunctionDrafter
from tests.support.sdk_fakes import STOP, TOKEN_BYTES, TellingBackend

_STRUCTURE = {b'"': 8.0, b",": 6.0, b":": 6.0, b"{": 5.0, b"[": 5.0}


def begun(output: bytes, text: bytes) -> int:
    """How many bytes of the text the output ends with."""
    return next(size for size in range(min(len(output), len(text) - 1), -1, -1) if output.endswith(text[:size]))


class SteeringBackend(TellingBackend):
    """texts: what it steers to. The output is what follows the last newline that is no part of it."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self._texts = [text.encode() for text in texts]

    def prefer(self, row: NDArray[np.float32], ids: list[int]) -> None:
        self._steer(row, b"".join(TOKEN_BYTES[token] or b"" for token in ids).rpartition(b"\n")[2])

    def _steer(self, row: NDArray[np.float32], output: bytes) -> None:
        for text in self._texts:
            size = begun(output, text)
            for token, piece in enumerate(TOKEN_BYTES):
                if piece and text[size:].startswith(piece):
                    row[token] += 30 + 10 * size + len(piece)
        for piece, liking in _STRUCTURE.items():
            row[piece[0]] += liking
        row[STOP] -= 5


def drafting(texts: Sequence[str]) -> FunctionDrafter:
    """Drafts what is steered to, whether it is legal or not."""
    wanted = [text.encode() for text in texts]

    def propose(ask: Ask) -> Draft:
        sequence = ask.sequence
        ids = [*sequence.output_ids(0, sequence.num_output_tokens), *ask.prefix]
        output = b"".join(TOKEN_BYTES[token] or b"" for token in ids)
        text = max(wanted, key=lambda each: begun(output, each))
        return Draft(tuple((text[begun(output, text) :] + text)[:12]))

    return FunctionDrafter(propose, "ngram")  # a name that requests take drafts of
