"""What a drafter is: something that guesses the next tokens of a sequence.

A guess costs a row of the next forward and may save one forward. It never decides anything: `verify` draws or tests
every token by the sequence's own law, so a drafter that is wrong, late or broken costs speed alone. The speculator
checks what a drafter gives (ids, lengths, probabilities) and survives what it raises.

Two kinds of drafts. *One-hot* (`probs` is None): the ids are one guess, however it was made; a token is accepted iff
the draw from the target is that very token. *Sampled*: ids[i] was drawn from probs[i], with random numbers that nothing
else uses (`rng.uniform(..., stream=rng.DRAFT)`), and is accepted by the rejection rule. probs[i] must be that law
itself: masked and renormalised if the draft was drawn under a mask. An illegal id of a sampled draft stays in it, as a
token that will be rejected with its q; leaving it out would be biased. A one-hot draft may be cut anywhere.

A drafter may see its sampled draft treated as one-hot, which is exact too: so it is for requests with a seed of their
own, whose output is then the same token by token with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import Constraint, ConstraintViolation

if TYPE_CHECKING:
    from safegen.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens, the next first.

    probs: None, or [len(ids), vocabulary], the law that each id was drawn from. chances: how likely the drafter thinks
    each id is accepted once those before it are; None is no opinion. A chance may depend on its id: a sampled draft is
    then ended after that id, never before it. kinds: what to keep measured acceptance by, one an id, and of a tuple by
    its first entry too, for when it is new; None takes the drafter's chances, in eighths.
    """

    ids: tuple[int, ...]
    probs: NDArray[np.floating[Any]] | None = None
    chances: tuple[float, ...] | None = None
    kinds: tuple[Hashable, ...] | None = None


NO_DRAFT = Draft(())


class Worth(Protocol):
    """What a guess would be worth as the first token of a draft, for drafters that can tell its kind before they make
    it. kind and chance are those of `Draft`."""

    def pays(self, kind: Hashable, chance: float) -> bool: ...
    def left_out(self, kind: Hashable) -> None:
        """The draft was not made, since a token of this kind does not pay."""
        ...


class Ask(NamedTuple):
    """A draft is wanted after the sequence's committed tokens and `prefix` (what other drafters have guessed), of at
    most `room` tokens. The sequence and its constraint are only read; fork the constraint to move it. worth: None:
    whatever is guessed is welcome."""

    sequence: Sequence
    prefix: tuple[int, ...]
    room: int
    worth: Worth | None = None


class Drafter(Protocol):
    """Called by the engine's thread alone. name: of its statistics. is_costly: proposing takes a good part of a
    forward's time; then it is asked only where its guesses have paid, for as many tokens as are likely to. is_forced:
    it drafts what little is legal, so that its rows cost less than others."""

    @property
    def name(self) -> str: ...
    @property
    def is_costly(self) -> bool: ...
    @property
    def is_forced(self) -> bool: ...

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        """One draft an ask, in their order; an empty one where there is no guess.

        Committed tokens may have been taken back since the last call (a retract), and a sequence may have been away
        (preempted): what a drafter keeps of a sequence must be compared with its tokens as they are now.
        """
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended, in whatever way: forget it."""
        ...


@runtime_checkable
class BlockBorrower(Protocol):
    """A drafter that computes in the engine's own blocks, past what is computed of a sequence."""

    def attach(self, reserve: Callable[[Sequence, int], int], block_size: int) -> None:
        """Once, before the first `propose`. reserve: `Scheduler.reserve_draft`."""
        ...


@dataclass(frozen=True, slots=True)
class DraftPart:
    """Part of a sequence's draft, by one drafter. kinds: those of each id, from the broad to the narrow. expected: the
    estimated chance of each id."""

    drafter: str
    ids: tuple[int, ...]
    probs: NDArray[np.float64] | None
    kinds: tuple[tuple[Hashable, ...], ...]
    expected: tuple[float, ...]

    def cut(self, count: int) -> DraftPart:
        """Its first `count` tokens."""
        probs = None if self.probs is None else self.probs[:count]
        return DraftPart(self.drafter, self.ids[:count], probs, self.kinds[:count], self.expected[:count])


def legal_prefix(constraint: Constraint | None, prefix: Ids[int], ids: Ids[int]) -> int:
    """How many of `ids` the constraint allows, one after the other, after `prefix`; for one-hot drafts.

    Ends with a token that closes a verified node for which the check fails: what comes then is not known before it is
    committed.
    """
    if constraint is None:
        return len(ids)
    at_once: Callable[[Ids[int], Ids[int]], int] | None = getattr(constraint, "legal_prefix", None)
    if at_once is not None:
        return at_once(prefix, ids)
    fork, num_legal = constraint.fork(), 0
    try:
        if prefix and fork.advance(tuple(prefix)) is not None:
            return 0
        for token_id in ids:
            is_last = fork.advance((token_id,)) is not None
            num_legal += 1
            if is_last:
                break
    except (ConstraintViolation, RetractsExhausted):
        pass
    return num_legal
