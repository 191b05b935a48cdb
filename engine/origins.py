"""Where each output token came from, for requests that ask (`Request.wants_origins`); others pay a test of None for it.

    forced    the constraint left no other text: the token lies within the bytes that every legal continuation starts
              with, or is part of the shortest completion near the limit
    drafted   guessed by a drafter, and accepted by the target's law
    sampled   drawn from the target's law

The first that holds, in this order. So what is forced does not depend on whether it was drafted too.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Literal

from safegen.grammars.constraint import Constraint

Origin = Literal["forced", "drafted", "sampled"]


def origin_of(
    constraint: Constraint | None, token_id: int, guess: int | None, token_bytes: Ids[bytes | None]
) -> Origin:
    """Of a token that is about to be committed. guess: what was drafted in its place, None if nothing was.

    A token without text of its own (a control token that a marker is written with) spells what is forced, where
    something is.
    """
    if constraint is not None:
        forced = constraint.forced()
        if forced and forced.startswith(token_bytes[token_id] or b""):
            return "forced"
    return "drafted" if token_id == guess else "sampled"


class Origins:
    """Of one sequence's output tokens, those that are taken back again left out."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[Origin] = []

    def note(self, origin: Origin, num_output_tokens: int) -> None:
        """The output has come to so many tokens; the new ones are of this origin."""
        self._noted += [origin] * (num_output_tokens - len(self._noted))

    def cut(self, kept_tokens: int) -> None:
        del self._noted[kept_tokens:]

    def between(self, start: int, stop: int) -> tuple[Origin, ...]:
        return tuple(self._noted[start:stop])
