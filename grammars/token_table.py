"""Small finite languages as tables for a device (`TokenTable`); regexes have theirs from fsm.py.

No automaton is needed: the native machine itself is walked over all texts of a language that has few of them (choices,
and flat schemas of enums, booleans and short numbers), and what has the same rows and leads to the same places is
merged, from the ends backwards. So each row is the native machine's own. A language with a free string in it is no
small one: its rows allow most of the vocabulary, which ends the walk at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from safegen.grammars.constraint import MaskRows, Retract, TokenTable
from safegen.grammars.matcher import NativeConstraint, Program
from safegen.grammars.table_states import Ways, table_of_states
from safegen.grammars.vocabulary import Vocabulary

MAX_TEXTS = 4096
_MAX_LEGAL = 2048  # tokens of one row: more is no small language
_MAX_TOKENS = 128  # of one answer: a walk is that deep
_DEADLINE_S = 2.0


def explored(program: Program, vocabulary: Vocabulary, *, max_texts: int = MAX_TEXTS) -> TokenTable | None:
    """None for a language with more than max_texts beginnings or answers of more than 128 tokens, and for one whose
    constraint may take something back."""
    walk = _Walk(vocabulary, max_texts)
    try:
        walk.visit(NativeConstraint(program, vocabulary), b"", 0)
    except _NotSmall:
        return None
    # A walk makes the ends first: turned round, the first state is state 0.
    last = len(walk.masks) - 1
    moves = [tuple((token, last - target) for token, target in ways) for ways in reversed(walk.moves)]
    return table_of_states(vocabulary, walk.masks[::-1], moves, walk.finals[::-1])


class _NotSmall(Exception):
    """The language does not fit a table."""


class _Walk:
    """All texts of a language, depth first; a state is made when everything after it is."""

    def __init__(self, vocabulary: Vocabulary, max_texts: int) -> None:
        self.masks: list[NDArray[np.int32]] = []
        self.moves: list[Ways] = []
        self.finals: list[bool] = []
        self._vocabulary = vocabulary
        self._max_texts, self._deadline_s = max_texts, time.monotonic() + _DEADLINE_S
        self._rows = MaskRows.allocate(1, vocabulary.size)
        self._by_text: dict[bytes, int] = {}
        self._by_shape: dict[tuple[bytes, Ways], int] = {}
        self._num_visits = 0

    def visit(self, constraint: NativeConstraint, text: bytes, num_tokens: int) -> int:
        """The state of a constraint that has come by a text. What may come depends on the text alone, not on its
        tokens."""
        known = self._by_text.get(text)
        if known is not None:
            return known
        self._num_visits += 1
        is_late = self._num_visits > self._max_texts or time.monotonic() > self._deadline_s
        if is_late or num_tokens > _MAX_TOKENS or constraint.settled() != num_tokens:
            raise _NotSmall
        constraint.fill((), self._rows)
        row = self._rows.words[0].copy()
        legal = np.flatnonzero(self._rows.bools(0)).tolist()
        if len(legal) > _MAX_LEGAL:
            raise _NotSmall
        stops = self._vocabulary.stop_ids
        ways = tuple((token, self._after(constraint, text, token, num_tokens)) for token in legal if token not in stops)
        state = self._by_text[text] = self._state(row, ways, constraint.can_end())
        return state

    def _after(self, constraint: NativeConstraint, text: bytes, token: int, num_tokens: int) -> int:
        after = constraint.fork()
        if after.advance((token,)) is not None:
            raise _NotSmall
        return self.visit(after, text + (self._vocabulary.token_bytes[token] or b""), num_tokens + 1)

    def _state(self, row: NDArray[np.int32], ways: Ways, is_final: bool) -> int:
        shape = (row.tobytes(), ways)
        if shape not in self._by_shape:
            self._by_shape[shape] = len(self.masks)
            self.masks.append(row)
            self.moves.append(ways)
            self.finals.append(is_final)
        return self._by_shape[shape]


class TabledConstraint(NativeConstraint):
    """A native constraint of a small language that is also run as a table. Rows are the table's."""

    __slots__ = ("_state", "token_table")

    def __init__(self, program: Program, vocabulary: Vocabulary, table: TokenTable) -> None:
        super().__init__(program, vocabulary)
        self.token_table = table
        self._state = 0

    @property
    def table_state(self) -> int:
        return self._state

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        table, state = self.token_table, self._state
        for place, token in enumerate(draft):
            rows.words[place] = table.masks[state]
            if not (int(table.masks[state, token >> 5]) >> (token & 31)) & 1:
                rows.words[place + 1 : len(draft) + 1] = 0
                return place
            state = int(table.targets[state, table.classes[token]])
        rows.words[len(draft)] = table.masks[state]
        return len(draft)

    def advance(self, ids: Sequence[int]) -> Retract | None:
        back = super().advance(ids)
        assert back is None  # of a language that is walked as a table nothing is taken back
        for token in ids:
            self._state = int(self.token_table.targets[self._state, self.token_table.classes[token]])
        return None

    def fork(self) -> TabledConstraint:
        copied = TabledConstraint.__new__(TabledConstraint)
        copied._matcher, copied.token_table, copied._state = self._matcher.fork(), self.token_table, self._state
        return copied


__all__ = ["MAX_TEXTS", "TabledConstraint", "explored"]
