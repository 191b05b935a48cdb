"""From states to a table for a device: rows of masks, and where each token leads.

Tokens that lead to the same states from everywhere are one class, so a table has a column a class instead of one a
token: a few dozen for most regexes.

Two states are added to each table: after a stop id, where only stop ids are legal, and a dead one with an empty mask,
to which everything illegal leads, and everything after it; an empty mask is an error, never an open row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.grammars.constraint import TokenTable, words_per_row
from safegen.grammars.vocabulary import Vocabulary

Ways = tuple[tuple[int, int], ...]  # (token, state), ascending


def table_of_states(
    vocabulary: Vocabulary, masks: list[NDArray[np.int32]], moves: list[Ways], finals: Sequence[bool]
) -> TokenTable:
    """masks, moves, finals: of each state, stop ids in the masks alone."""
    stopped, dead = len(masks), len(masks) + 1
    stops = sorted(vocabulary.stop_ids)
    columns: dict[int, list[tuple[int, int]]] = {}
    for state, (ways, is_final) in enumerate(zip(moves, finals)):
        for token, target in (*ways, *((stop, stopped) for stop in stops if is_final)):
            columns.setdefault(token, []).append((state, target))
    classes = np.zeros(vocabulary.size, dtype=np.int32)  # class 0 leads nowhere
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    for token, column in columns.items():
        classes[token] = numbers.setdefault(tuple(column), len(numbers) + 1)
    targets = np.full((dead + 1, len(numbers) + 1), dead, dtype=np.int32)
    for column_key, number in numbers.items():
        for state, target in column_key:
            targets[state, number] = target
    ends = [packed_row(stops, vocabulary.size), packed_row([], vocabulary.size)]
    return TokenTable(np.stack([*masks, *ends]), classes, targets)


def packed_row(tokens: Any, vocab_size: int) -> NDArray[np.int32]:
    """One mask row that allows these tokens."""
    bits = np.zeros(words_per_row(vocab_size) * 32, dtype=np.bool_)
    bits[np.asarray(tokens, dtype=np.int64)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


__all__ = ["Ways", "packed_row", "table_of_states"]
