"""The table of a token-level automaton: rows, transitions, and as bytes for a file.

A table that comes from a file is believed nothing: its shape is checked here, its rows are made again from its
transitions, and `agrees` holds each of them against the native machine, as it does for a table that was just made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen._native import Program
from safegen.grammars.array_file import pack_arrays, unpack_arrays
from safegen.grammars.constraint import ConstraintViolation, MaskRows, TokenTable
from safegen.grammars.matcher import LimitExceeded, NativeConstraint
from safegen.grammars.table_states import packed_row, table_of_states
from safegen.grammars.vocabulary import Vocabulary

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Transitions:
    """A trimmed deterministic automaton over token ids; state 0 is the first.

    Transitions of state s are tokens[offsets[s]:offsets[s + 1]], ascending, with their targets. closings: of each state
    the first token of the shortest way to an end, -1 at an end. texts: of each state, one that leads there.
    """

    offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    is_final: NDArray[np.bool_]
    closings: NDArray[np.int32]
    texts: tuple[bytes, ...]

    @property
    def num_states(self) -> int:
        return len(self.is_final)

    def next_state(self, state: int, token: int) -> int | None:
        begin, end = self.offsets[state], self.offsets[state + 1]
        place = begin + int(np.searchsorted(self.tokens[begin:end], token))
        return int(self.targets[place]) if place < end and self.tokens[place] == token else None

    def packed(self) -> bytes:
        ends = np.cumsum([0, *map(len, self.texts)], dtype=np.int64)
        joined = np.frombuffer(b"".join(self.texts), dtype=np.uint8)
        finals = self.is_final.astype(np.uint8)
        return pack_arrays([self.offsets, self.tokens, self.targets, finals, self.closings, ends, joined])

    @classmethod
    def unpacked(cls, content: bytes, vocabulary: Vocabulary) -> Transitions | None:
        """None when the content is no automaton over this vocabulary."""
        arrays = unpack_arrays(content)
        kinds = ["int64", "int32", "int32", "uint8", "int32", "int64", "uint8"]
        if arrays is None or [array.dtype.name for array in arrays] != kinds or any(a.ndim != 1 for a in arrays):
            return None
        offsets, tokens, targets, finals, closings, ends, joined = arrays
        if not _is_cut(offsets, len(finals), len(tokens)) or not _is_cut(ends, len(finals), len(joined)):
            return None
        texts = tuple(joined[begin:end].tobytes() for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist()))
        found = cls(offsets, tokens, targets, finals.astype(np.bool_), closings, texts)
        return found if found._is_sound(vocabulary) else None

    def _is_sound(self, vocabulary: Vocabulary) -> bool:
        if not self.num_states or len(self.tokens) != len(self.targets) or len(self.closings) != self.num_states:
            return False
        usable = np.array([bool(text) for text in vocabulary.token_bytes], dtype=np.bool_)
        usable[sorted(vocabulary.stop_ids)] = False
        if not _within(self.tokens, vocabulary.size) or not _within(self.targets, self.num_states):
            return False
        rises = np.diff(self.tokens) > 0
        starts = self.offsets[1:-1]
        rises[starts[(starts > 0) & (starts < len(self.tokens))] - 1] = True  # between two states anything may be
        return bool(usable[self.tokens].all() and rises.all()) and self._ways_end()

    def _ways_end(self) -> bool:
        """Every state's way along `closings` reaches an end."""
        after = np.arange(self.num_states)
        for state, token in enumerate(self.closings.tolist()):
            target = None if token == NO_TOKEN else self.next_state(state, token)
            if (target is None) != bool(self.is_final[state]):
                return False
            after[state] = state if target is None else target
        for _ in range(self.num_states.bit_length()):  # 2, 4, 8 ... steps at once
            after = after[after]
        return bool(self.is_final[after].all())


def _is_cut(ends: NDArray[Any], parts: int, length: int) -> bool:
    """ends: where so many parts of a sequence of that length begin, and the length last."""
    return len(ends) == parts + 1 and ends[0] == 0 and ends[-1] == length and bool((np.diff(ends) >= 0).all())


def _within(values: NDArray[Any], size: int) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < size)


@dataclass(frozen=True)
class TokenFsm:
    """An automaton bound to a vocabulary. masks: [states, ceil(vocab_size / 32)] int32, packed as in MaskRows, stop ids
    included. stop_row: what may follow a stop id. program: the native machine's, of the same language."""

    vocabulary: Vocabulary
    program: Program
    transitions: Transitions
    masks: NDArray[np.int32]
    stop_row: NDArray[np.int32]

    @classmethod
    def over(cls, vocabulary: Vocabulary, program: Program, transitions: Transitions) -> TokenFsm:
        stop_row = packed_row(sorted(vocabulary.stop_ids), vocabulary.size)
        offsets, tokens = transitions.offsets, transitions.tokens
        rows = [
            packed_row(tokens[offsets[state] : offsets[state + 1]], vocabulary.size)
            for state in range(transitions.num_states)
        ]
        masks = np.stack(rows)
        masks[transitions.is_final] |= stop_row
        return cls(vocabulary, program, transitions, masks, stop_row)

    @property
    def num_states(self) -> int:
        return self.transitions.num_states

    @cached_property
    def token_table(self) -> TokenTable:
        """For a device."""
        ways = self.transitions
        tokens, targets = ways.tokens.tolist(), ways.targets.tolist()
        cuts = ways.offsets.tolist()
        moves = [tuple(zip(tokens[begin:end], targets[begin:end])) for begin, end in zip(cuts, cuts[1:])]
        return table_of_states(self.vocabulary, list(self.masks), moves, ways.is_final.tolist())

    def dense(self) -> NDArray[np.int32]:
        """[states, vocab_size] next states, -1 where there is none."""
        ways = self.transitions
        table = np.full((self.num_states, self.vocabulary.size), -1, dtype=np.int32)
        sources = np.repeat(np.arange(self.num_states), np.diff(ways.offsets))
        table[sources, ways.tokens] = ways.targets
        return table

    def agrees(self) -> bytes | None:
        """None when each state's row is the native machine's after the same text; else a text where they differ."""
        rows = MaskRows.allocate(1, self.vocabulary.size)
        for state, text in enumerate(self.transitions.texts):
            twin = NativeConstraint(self.program, self.vocabulary)
            ids = self.vocabulary.native.longest_match(text)
            try:
                twin.advance(ids)
                twin.fill([], rows)
            except (ConstraintViolation, LimitExceeded):
                return text
            if self._reached(ids) != state or not np.array_equal(rows.words[0], self.masks[state]):
                return text
        return None

    def _reached(self, ids: Sequence[int]) -> int | None:
        state: int | None = 0
        for token in ids:
            state = None if state is None else self.transitions.next_state(state, token)
        return state
