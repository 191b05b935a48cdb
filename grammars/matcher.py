"""The native machine behind the `Constraint` seam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from safegen._native import LimitExceeded, MaskBuffer, Matcher, Program, Violation, fill_batch
from safegen.errors import EngineError, RetractsExhausted, SchemaError
from safegen.grammars.constraint import BatchFill, ConstraintViolation, MaskRows, NoCompletion, Retract
from safegen.grammars.vocabulary import Vocabulary

__all__ = ["LimitExceeded", "NativeConstraint", "Program"]


def buffer_of(rows: MaskRows) -> MaskBuffer:
    buffer: MaskBuffer | None = rows.handle
    if buffer is None:
        buffer = MaskBuffer(rows.words)
        object.__setattr__(rows, "handle", buffer)
    return buffer


def _fill_batch(
    constraints: Sequence[Any], drafts: Sequence[Sequence[int]], rows: MaskRows, first_rows: Sequence[int]
) -> list[Exception | None]:
    faults = fill_batch([each._matcher for each in constraints], drafts, buffer_of(rows), first_rows)
    return [None if fault is None else EngineError(f"the mask could not be computed: {fault}") for fault in faults]


class NativeConstraint:
    """Constraint state of one sequence over a compiled program. One thread at a time; the GIL is released inside.

    cache_bytes bounds the mask cache that all constraints of this program and vocabulary share; the first one made
    sets it.
    """

    __slots__ = ("_matcher",)

    def __init__(self, program: Program, vocabulary: Vocabulary, *, cache_bytes: int = 64 << 20) -> None:
        try:
            self._matcher = Matcher(program, vocabulary.native, cache_bytes=cache_bytes)
        except (ValueError, LimitExceeded) as error:
            raise SchemaError(str(error)) from error

    @classmethod
    def _of(cls, matcher: Matcher) -> NativeConstraint:
        constraint = cls.__new__(cls)
        constraint._matcher = matcher
        return constraint

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        buffer = buffer_of(rows)
        return self._matcher.fill(draft, buffer) if draft else self._matcher.fill_next(buffer)

    @property
    def batch_fill(self) -> BatchFill | None:
        return _fill_batch if type(self) is NativeConstraint else None  # a subclass may fill in its own way

    @property
    def legal_prefix(self) -> Callable[[Sequence[int], Sequence[int]], int] | None:
        """(prefix, ids): how many of ids are legal one after the other after the prefix, none if that is not, up to the
        first with which the constraint would go back. None where a subclass moves in its own way."""
        return self._matcher.legal_prefix if type(self) is NativeConstraint else None

    def advance(self, ids: Sequence[int]) -> Retract | None:
        try:
            back = self._matcher.advance(ids)
        except Violation as error:
            raise ConstraintViolation(str(error)) from error
        except LimitExceeded as error:
            raise RetractsExhausted(str(error)) from error
        return None if back is None else Retract(*back)

    def settled(self) -> int:
        """How many of the committed tokens no later retract takes back."""
        return self._matcher.settled()

    def forced(self) -> bytes:
        return self._matcher.forced()

    def is_complete(self) -> bool:
        return self._matcher.is_complete()

    def can_end(self) -> bool:
        return self._matcher.can_end()

    def shortest_completion(self) -> tuple[int, ...]:
        try:
            return tuple(self._matcher.shortest_completion())
        except LimitExceeded as error:
            raise NoCompletion(str(error)) from error

    def text(self) -> bytes:
        """The bytes committed so far."""
        return self._matcher.text()

    def fork(self) -> NativeConstraint:
        return self._of(self._matcher.fork())
