"""The seam between the constraint machine and the engine. Nothing else of `grammars` is known to the engine.

A constraint belongs to one sequence. It moves by committed tokens (`advance`) and goes back only by its own `Retract`.
It fails closed: a row it cannot compute raises, it is never left open.

Tokens are counted from the constraint's beginning, which is the beginning of the output: the engine is given it fresh.
A *verified* node is one whose masks allow too much while it is open and that is checked when it closes. Where the check
fails, the constraint goes back to the token boundary at or before the node's start, excludes the text that failed from
the node's language, and says so by a `Retract`; where nothing is left of that language, it goes back to the parent's.
It may do so before the node closes: as soon as it is proved that no text leads on, the check fails for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


def words_per_row(vocab_size: int) -> int:
    """int32 words of one packed mask row: ceil(vocab_size / 32)."""
    return -(-vocab_size // WORD_BITS)


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Packed mask rows in the caller's buffer. words: [rows, ceil(vocab_size / 32)] int32, C-contiguous.

    Bit `t % 32` (least significant first) of word `t // 32` says whether token t is legal. Bits past the vocabulary
    and those of padded ids are always zero.
    """

    words: NDArray[np.int32]
    vocab_size: int
    handle: Any = field(default=None, init=False, repr=False, compare=False)  # what an implementation keeps of `words`

    @classmethod
    def allocate(cls, rows: int, vocab_size: int) -> MaskRows:
        return cls(np.zeros((rows, words_per_row(vocab_size)), dtype=np.int32), vocab_size)

    def bools(self, row: int) -> NDArray[np.bool_]:
        """Row as [vocab_size] bool: for tests and reference code."""
        bits = np.unpackbits(self.words[row].view(np.uint8), bitorder="little")
        return bits[: self.vocab_size].astype(np.bool_)


@dataclass(frozen=True, slots=True)
class Retract:
    """A verified node failed when it closed, or cannot but fail: the sequence goes back.

    kept_tokens: committed output tokens that stay; fewer than were advanced, the ids of this call included, and no
    fewer than were ever `settled`. forced_prefix: bytes after that token boundary which the next tokens must spell.
    pointer: schema position of the node that failed.
    """

    kept_tokens: int
    forced_prefix: bytes
    pointer: str


class ConstraintViolation(Exception):
    """A token was committed that the constraint does not allow. Always a bug of the caller."""


class NoCompletion(Exception):
    """No short completion is known from here: for a verified node that is open or yet to come no value that passes its
    check was found within the work allowed. The text may have to be taken back; where that is proved, it was."""


class BatchFill(Protocol):
    """`fill` for many constraints of one kind at once, each into the rows from its first one on; on several threads.

    A constraint that can be filled so has it as `batch_fill`. Returns what was raised for each, None where nothing was.
    """

    def __call__(
        self, constraints: Sequence[Any], drafts: Sequence[Sequence[int]], rows: MaskRows, first_rows: Sequence[int]
    ) -> list[Exception | None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """A constraint as a table that a device can run. State 0 is the first.

    masks: int32 [states, ceil(vocab_size / 32)], packed as in MaskRows: what is legal in each state. classes: int32
    [vocab_size], tokens that lead everywhere to the same states share one. targets: int32 [states, classes], the state
    after a token of that class; after an illegal one a state whose mask is empty.
    """

    masks: NDArray[np.int32]
    classes: NDArray[np.int32]
    targets: NDArray[np.int32]

    @property
    def num_bytes(self) -> int:
        return self.masks.nbytes + self.classes.nbytes + self.targets.nbytes


class TableConstraint(Protocol):
    """What a constraint has, beside the methods of `Constraint`, that a table says all about: it never goes back."""

    @property
    def token_table(self) -> TokenTable:
        """Shared by all constraints of the same language and vocabulary."""
        ...

    @property
    def table_state(self) -> int:
        """Where the committed tokens have led."""
        ...


class Constraint(Protocol):
    """Per-sequence constraint state. Called by one thread at a time; `fill` may run on a pool thread (GIL released)."""

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        """Write rows[i] = tokens legal after draft[:i], for i = 0..n, and return n, the number of legal drafts.

        rows[n] is the row at the first illegal draft, or the bonus row when all are legal; rows past n are all zero.
        rows needs len(draft) + 1 rows. Forks inside: the state is unchanged afterwards.
        """
        ...

    def advance(self, ids: Sequence[int]) -> Retract | None:
        """Commit tokens. A Retract says that the state is now an earlier one, and which.

        Raises ConstraintViolation when a token is illegal (the state is then as before the call), RetractsExhausted
        when a node failed and nothing is left to try.
        """
        ...

    def settled(self) -> int:
        """How many of the tokens advanced no later Retract can take back: all, unless a verified node is open. Never
        falls."""
        ...

    def forced(self) -> bytes:
        """Bytes that every legal continuation starts with (bounded; empty when there is a choice)."""
        ...

    def is_complete(self) -> bool:
        """The text is a whole answer and nothing may follow: fill() allows stop ids only."""
        ...

    def can_end(self) -> bool:
        """The text so far is a whole answer; a continuation may also be legal. Stop ids are legal exactly here."""
        ...

    def shortest_completion(self) -> tuple[int, ...]:
        """Tokens (stop id not included) that reach a whole answer in the fewest bytes; empty when it can end now.

        They pass the checks of verified nodes. Raises NoCompletion where none is known that does.
        """
        ...

    def fork(self) -> Constraint:
        """An independent copy in the same state; cheap."""
        ...
