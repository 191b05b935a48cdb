"""Free reasoning, an end marker, then a strict answer; with a cap on the tokens of the reasoning.

One native program holds `start reasoning end answer`, so the switch from free to strict is a state of the machine like
any other: masks, drafts, forced bytes and completions are exact over it, also where a token straddles the marker. The
marker is matched on bytes and the first one counts. The native machine knows no tokens, though, so the cap is held
here: a count, and what must come next once it is reached.

At the cap only one text may follow, up to the end marker: the rest of the marker where the reasoning ends in a
beginning of it, else the marker, after the bytes that complete an unfinished character. The legal tokens are those of
the native row that agree with that text. Its single bytes are always among them, so a capped row is never empty over a
vocabulary that has them, and the shortest completion of the machine is the same text. A ban may forbid the reasoning to
end where the cap is reached, behind a banned word that only goes on as another one; then the cap is passed, by the
shortest completion of the machine, up to where the marker may stand.

A token counts if it holds bytes after the start marker and the end marker is not complete with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from safegen._native import Builder, Program
from safegen.grammars.bans import Bans
from safegen.grammars.constraint import WORD_BITS, ConstraintViolation, MaskRows, NoCompletion, Retract
from safegen.grammars.markers import Wrap, starting_with, up_to_marker
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary

_MAX_CONTINUATION_BYTES = 3


@dataclass(frozen=True, slots=True)
class ThinkSyntax:
    """start: what the answer begins with; may be empty. end: what ends the reasoning. max_tokens: None is no cap."""

    start: bytes
    end: bytes
    max_tokens: int | None = None

    def wrap(self, bans: Bans | None = None) -> Wrap:
        """Puts the reasoning in front of an answer's node. bans: what must not stand in the reasoning."""

        def with_reasoning(builder: Builder, answer: int) -> int:
            reasoning = builder.concat([builder.literal(self.start), up_to_marker(builder, self.end, bans)])
            return builder.sequence([builder.lexeme(reasoning), answer])

        return with_reasoning


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Where the text stands before the end marker. num_start_bytes: those of the start marker still to come. tail: the
    last bytes of the reasoning, as many as a marker or a character could have begun in. num_tokens: counted so far.
    is_given: a retract forces what comes next, through the end marker, so the cap is of no matter."""

    num_start_bytes: int
    tail: bytes = b""
    num_tokens: int = 0
    is_given: bool = False

    def after(self, piece: bytes, syntax: ThinkSyntax) -> Reasoning | None:
        """None once the end marker is complete."""
        if len(piece) <= self.num_start_bytes:
            return replace(self, num_start_bytes=self.num_start_bytes - len(piece))
        text = self.tail + piece[self.num_start_bytes :]
        if syntax.end in text:
            return None
        kept = max(len(syntax.end) - 1, _MAX_CONTINUATION_BYTES)
        return Reasoning(0, text[-kept:], self.num_tokens + 1, self.is_given)

    def closing(self, syntax: ThinkSyntax) -> Closing:
        """The way to the end marker, for when the cap is reached."""
        start = syntax.start[len(syntax.start) - self.num_start_bytes :]
        begun = next((size for size in range(len(syntax.end) - 1, 0, -1) if self.tail.endswith(syntax.end[:size])), 0)
        missing = 0 if begun else _missing_continuation_bytes(self.tail)
        return Closing(missing, start + syntax.end[begun:])


@dataclass(frozen=True, slots=True)
class Closing:
    """The only text that may come next: some UTF-8 continuation bytes, then `text`."""

    num_continuation_bytes: int
    text: bytes

    def agrees(self, piece: bytes) -> bool:
        """Whether a token's bytes are a beginning of it, or go beyond it."""
        free, rest = piece[: self.num_continuation_bytes], piece[self.num_continuation_bytes :]
        return all(0x80 <= byte < 0xC0 for byte in free) and (rest.startswith(self.text) or self.text.startswith(rest))


@dataclass(frozen=True)
class ThinkProgram:
    """A compiled type with reasoning. program: `start reasoning end answer`. Immutable but for a cache; thread-safe."""

    program: Program
    syntax: ThinkSyntax
    _closings: dict[Closing, Program] = field(default_factory=dict, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def closing_program(self, closing: Closing) -> Program:
        """The texts that start with a closing: there are at most as many as the markers have bytes, and a few."""
        with self._lock:
            if closing not in self._closings:
                builder = Builder()
                expr = starting_with(builder, closing.num_continuation_bytes, closing.text)
                self._closings[closing] = builder.build(builder.lexeme(expr))
            return self._closings[closing]


class ThinkConstraint:
    """Constraint state of one sequence with reasoning. One thread at a time.

    begun: the prompt ends with the start marker, so that the answer begins inside the reasoning.
    """

    __slots__ = (
        "_before_switch", "_cache_bytes", "_compiled", "_machine", "_num_advanced", "_num_prompted", "_reasoning",
        "_switched_at", "_vocabulary",
    )  # fmt: skip

    def __init__(
        self, compiled: ThinkProgram, vocabulary: Vocabulary, *, begun: bool = False, cache_bytes: int = 64 << 20
    ) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._cache_bytes = cache_bytes
        self._machine = NativeConstraint(compiled.program, vocabulary, cache_bytes=cache_bytes)
        start = compiled.syntax.start
        prompted = vocabulary.native.longest_match(start) if begun and start else []
        self._machine.advance(prompted)
        self._num_prompted = self._num_advanced = len(prompted)  # the machine counts the start marker of the prompt
        self._reasoning: Reasoning | None = Reasoning(0 if prompted else len(start))
        self._before_switch: Reasoning | None = None
        self._switched_at = 0  # number of the token that completed the end marker

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        num_legal = self._machine.fill(draft, rows)
        reasoning = self._reasoning
        for place in range(num_legal + 1):
            if reasoning is None:
                break
            if self._is_capped(reasoning):
                self._close(rows.words[place], reasoning, draft[:place])
                if place < num_legal and not _is_set(rows.words[place], draft[place]):
                    rows.words[place + 1 : num_legal + 1] = 0
                    return place
            if place < num_legal:
                reasoning = reasoning.after(self._bytes(draft[place]), self._compiled.syntax)
        return num_legal

    def advance(self, ids: Sequence[int]) -> Retract | None:
        syntax = self._compiled.syntax
        reasoning, switch = self._reasoning, (self._switched_at, self._before_switch)
        for number, token_id in enumerate(ids, self._num_advanced):
            if reasoning is None:
                break
            piece = self._bytes(token_id)
            if self._is_capped(reasoning) and not self._closes(reasoning, ids[: number - self._num_advanced], token_id):
                raise ConstraintViolation(f"token {token_id} is not allowed: the reasoning has reached its token limit")
            after = reasoning.after(piece, syntax)
            if after is None:
                switch = (number, reasoning)
            reasoning = after
        retract = self._machine.advance(ids)
        self._num_advanced += len(ids)
        self._reasoning, (self._switched_at, self._before_switch) = reasoning, switch
        return None if retract is None else self._retracted(retract)

    def _retracted(self, retract: Retract) -> Retract:
        """Only nodes of the answer are verified, so at the furthest the token that straddled the marker is undone. Its
        bytes through the marker are forced, cut into other tokens perhaps, more than the cap would let pass."""
        self._num_advanced = retract.kept_tokens
        if self._before_switch is not None and retract.kept_tokens <= self._switched_at:
            self._reasoning = replace(self._before_switch, is_given=True)
        return replace(retract, kept_tokens=retract.kept_tokens - self._num_prompted)

    def settled(self) -> int:
        return self._machine.settled() - self._num_prompted

    def forced(self) -> bytes:
        if self._reasoning is None or not self._is_capped(self._reasoning):
            return self._machine.forced()
        closing = self._reasoning.closing(self._compiled.syntax)
        if closing.num_continuation_bytes:
            return b""
        try:
            self._ahead(self._vocabulary.native.longest_match(closing.text))
        except ConstraintViolation:  # a ban forbids it
            return self._machine.forced()
        return closing.text

    def is_complete(self) -> bool:
        return self._machine.is_complete()

    def can_end(self) -> bool:
        return self._machine.can_end()

    def shortest_completion(self) -> tuple[int, ...]:
        return self._machine.shortest_completion()

    def fork(self) -> ThinkConstraint:
        twin = ThinkConstraint.__new__(ThinkConstraint)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._machine = self._machine.fork()
        return twin

    def _is_capped(self, reasoning: Reasoning) -> bool:
        limit = self._compiled.syntax.max_tokens
        return limit is not None and reasoning.num_tokens >= limit and not reasoning.is_given

    def _closes(self, reasoning: Reasoning, before: Sequence[int], token_id: int) -> bool:
        """Whether a capped row has the token, which comes after those `before`."""
        if reasoning.closing(self._compiled.syntax).agrees(self._bytes(token_id)):
            return True
        rows = MaskRows.allocate(1, self._vocabulary.size)
        self._ahead(before).fill((), rows)
        self._close(rows.words[0], reasoning, before)
        return _is_set(rows.words[0], token_id)

    def _close(self, row: NDArray[np.int32], reasoning: Reasoning, before: Sequence[int]) -> None:
        """Leave in the row after the tokens `before` those that agree with the closing; where a ban forbids all of
        them, the one that leads on to where the reasoning may end."""
        program = self._compiled.closing_program(reasoning.closing(self._compiled.syntax))
        rows = MaskRows.allocate(1, self._vocabulary.size)
        NativeConstraint(program, self._vocabulary, cache_bytes=self._cache_bytes).fill((), rows)
        closing = row & rows.words[0]
        if not closing.any() and row.any():
            try:
                first = self._ahead(before).shortest_completion()[0]
            except NoCompletion:  # none is at hand; the reasoning goes on as it may
                return
            closing.view("uint32")[first // WORD_BITS] = 1 << (first % WORD_BITS)
        row[:] = closing

    def _ahead(self, before: Sequence[int]) -> NativeConstraint:
        if not before:
            return self._machine
        machine = self._machine.fork()
        machine.advance(before)
        return machine

    def _bytes(self, token_id: int) -> bytes:
        known = 0 <= token_id < self._vocabulary.size
        return (self._vocabulary.token_bytes[token_id] or b"") if known else b""


def _missing_continuation_bytes(tail: bytes) -> int:
    """How many bytes the last, unfinished UTF-8 character of a valid beginning lacks."""
    for distance, byte in enumerate(reversed(tail[-_MAX_CONTINUATION_BYTES:])):
        if byte >= 0xC0:
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return length - 1 - distance
        if byte < 0x80:
            return 0
    return 0


def _is_set(row: NDArray[np.int32], token_id: int) -> bool:
    return bool(row[token_id // WORD_BITS] >> (token_id % WORD_BITS) & 1)
