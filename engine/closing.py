"""The budget-aware close: at every moment a whole answer that still fits is known, if it can be.

A `Closing` is such an answer: the first `num_kept` output tokens, then `completion`. Mostly num_kept is all of the
output. It is less while a verified node is open for which the constraint finds no completion: then the last closing
before that stays. Its num_kept tokens are never fewer than those settled, so that a close may take the others back.

Let m be the token limit. Once a closing has num_tokens <= m, there is one ever after, and the output is a whole answer:

- a drawn token after which the shortest completion makes more than m is put aside, and the closing is committed
  instead, which ends the sequence; a single token may open a structure of any length, so that it is asked for after
  every token, except where the token is the first of the known completion;
- where no completion is known after a token, the old closing is as good as before, and what the limit then comes to;
- after a retract to fewer tokens than num_kept, the tokens taken back up to num_kept followed by the completion are an
  answer of the same length, which spells the forced bytes and, because it passes, is none of the texts that failed. It
  is kept where the constraint's own shortest completion (fewest bytes, perhaps more tokens) does not fit.

One case breaks the chain: a token settles text past num_kept, but no completion is known after it (a node that comes
later has no value at hand). Then the closing is committed if the limit is near, else given up until there is another.

Finding that there is no completion at hand may cost far more than finding one. While no closing is known, twice as many
tokens go by after each such answer in a row, at most 64, until the constraint is asked again.

Nothing of this takes a fork: when a token is put aside its sequence ends, and the constraint's state is not used again.
If the shortest completion does not fit even at the start, the sequence is cut at the limit; where even the longest
tokens could not spell it in time it is not asked for again, since a token shortens the rest by no more bytes than it
has, and asking costs time in the length of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from safegen.grammars.constraint import Constraint, NoCompletion

_SPARE_TOKENS = 16
_MAX_PAUSE_TOKENS = 64


class Closing(NamedTuple):
    """A whole answer: the first num_kept output tokens followed by `completion`."""

    num_kept: int
    completion: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.num_kept + len(self.completion)

    def follow(self, token_id: int, num_output_tokens: int) -> Closing | None:
        """The same answer after token_id, the next one of num_output_tokens; None if that is not on its way."""
        if self.num_kept == num_output_tokens and self.completion[:1] == (token_id,):
            return Closing(self.num_kept + 1, self.completion[1:])
        return None

    def back_to(self, kept_tokens: int, dropped: tuple[int, ...]) -> Closing:
        """The same answer where only kept_tokens of the output are left, and `dropped` came after them."""
        if self.num_kept <= kept_tokens:
            return self
        return Closing(kept_tokens, dropped[: self.num_kept - kept_tokens] + self.completion)


def ask(constraint: Constraint, num_output_tokens: int) -> Closing | None:
    """The constraint's shortest completion of its state, which is that after num_output_tokens; None if unknown."""
    try:
        return Closing(num_output_tokens, tuple(constraint.shortest_completion()))
    except NoCompletion:
        return None


@dataclass(slots=True)
class Patience:
    """When to ask again. num_unknown: answers in a row that none is known; num_skipped: tokens since the last one."""

    num_unknown: int = 0
    num_skipped: int = 0

    def ask(self, constraint: Constraint, num_output_tokens: int) -> Closing | None:
        """As `ask`; None also while it is not yet time to ask."""
        if self.num_unknown and self.num_skipped < min(2**self.num_unknown, _MAX_PAUSE_TOKENS) - 1:
            self.num_skipped += 1
            return None
        found = ask(constraint, num_output_tokens)
        self.num_unknown, self.num_skipped = (self.num_unknown + 1, 0) if found is None else (0, 0)
        return found


def is_out_of_reach(closing: Closing | None, token_bytes: Sequence[bytes | None], max_bytes: int) -> bool:
    """The shortest completion, asked for at the start, has more than max_bytes bytes."""
    return closing is not None and sum(len(token_bytes[token] or b"") for token in closing.completion) > max_bytes


def fits(closing: Closing | None, max_tokens: int) -> bool:
    return closing is not None and closing.num_tokens <= max_tokens


def is_worse(latest: Closing | None, known: Closing | None, max_tokens: int) -> bool:
    """The latest closing does not fit, but the known one does."""
    return latest is not None and fits(known, max_tokens) and not fits(latest, max_tokens)


def is_near(known: Closing, num_output_tokens: int, max_tokens: int) -> bool:
    """There may be no room to find another answer in: not even for one twice as long as the rest of the known one."""
    return max_tokens - num_output_tokens <= 2 * len(known.completion) + _SPARE_TOKENS
