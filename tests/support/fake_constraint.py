"""A constraint over token bytes whose language is small enough to check by eye: balanced brackets.

Text = one item; item = "(" item* ")" | "x". With `max_depth` the nesting is bounded. `is_complete` holds once the item
is closed; `shortest_completion` is one closing bracket a level.
"""

from __future__ import annotations

from collections.abc import Sequence

from safegen.grammars.constraint import WORD_BITS, Constraint, ConstraintViolation, MaskRows, Retract


class BracketConstraint:
    """open_id, close_id, atom_id: token ids of "(", ")" and "x". stop_ids are legal once the item is closed."""

    def __init__(self, open_id: int, close_id: int, atom_id: int, stop_ids: frozenset[int], max_depth: int = 6) -> None:
        self.open_id, self.close_id, self.atom_id = open_id, close_id, atom_id
        self.stop_ids = stop_ids
        self.max_depth = max_depth
        self.depth = 0
        self.started = False
        self.num_fills = 0
        self.num_advanced = 0

    def legal(self) -> set[int]:
        if self.is_complete():
            return set(self.stop_ids)
        ids = {self.atom_id}
        if self.depth < self.max_depth:
            ids.add(self.open_id)
        if self.depth:
            ids.add(self.close_id)
        return ids

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        self.num_fills += 1
        state = self.fork()
        for number, token_id in enumerate([*draft, None]):
            legal = state.legal()
            for legal_id in legal:
                rows.words[number, legal_id // WORD_BITS] |= 1 << (legal_id % WORD_BITS)
            if token_id is None or token_id not in legal:
                return number
            if token_id in self.stop_ids:
                return number + 1
            state.advance([token_id])
        raise AssertionError("unreachable")

    def advance(self, ids: Sequence[int]) -> Retract | None:
        for token_id in ids:
            if token_id not in self.legal() or token_id in self.stop_ids:
                raise ConstraintViolation(f"token {token_id} is not legal")
            self.started = True
            self.depth += (token_id == self.open_id) - (token_id == self.close_id)
            self.num_advanced += 1
        return None

    def settled(self) -> int:
        return self.num_advanced

    def forced(self) -> bytes:
        return b""

    def is_complete(self) -> bool:
        return self.started and self.depth == 0

    def can_end(self) -> bool:
        return self.is_complete()

    def shortest_completion(self) -> tuple[int, ...]:
        return (self.close_id,) * self.depth if self.started else (self.atom_id,)

    def fork(self) -> BracketConstraint:
        twin = BracketConstraint(self.open_id, self.close_id, self.atom_id, self.stop_ids, self.max_depth)
        twin.depth, twin.started, twin.num_advanced = self.depth, self.started, self.num_advanced
        return twin


def is_balanced(text: str) -> bool:
    """The oracle: text is exactly one item."""
    depth = 0
    for place, char in enumerate(text):
        depth += {"(": 1, ")": -1, "x": 0}[char]
        if depth <= 0 and place < len(text) - 1:
            return False
    return bool(text) and depth == 0


def _conforms(constraint: BracketConstraint) -> Constraint:
    return constraint
