"""Redaction while decoding: a match inside a JSON value is taken back, and a placeholder that fits is forced instead.

`RedactingConstraint` wraps the constraint of one sequence. It reads along the decoded values; when guards with
on_fail="redact" have found a match in one, it goes back to the token boundary at or before the match and forces the
bytes up to the match and a placeholder. What fits is not guessed: the wrapped constraint is moved along each candidate,
and since its masks are live, one that it takes can still become a valid value. So what comes out parses and validates,
and the model goes on from the placeholder. In this order are tried: the guard's placeholder and reserved values at the
match; the same as the whole value; the schema's declared default; the shortest legal value in which no guard finds
anything; null. Where none fits, the answer ends as blocked (`NoPlaceholder`).

A value that is found again where a placeholder was forced (the model goes on as before) is closed right behind it.

Tokens are settled as far as no guard may still claim them, and the token of a value's opening quote with the first of
them, so that the whole value can be replaced while nothing of it is decided. Only inline guards work here: the engine's
thread waits for nothing. Property names, free text and answers that are no JSON are the output stage's.
"""

from __future__ import annotations

import copy
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import (
    WORD_BITS,
    Constraint,
    ConstraintViolation,
    MaskRows,
    NoCompletion,
    Retract,
)
from safegen.guards.base import Allow, GuardView
from safegen.guards.placeholders import candidates, declared_fallback
from safegen.guards.stream import Forced
from safegen.guards.units import spelled
from safegen.guards.value_track import Redaction, Track, ValueWatch
from safegen.guards.watch import Decision

_ANCHOR_TOKENS = 8
_END_OF_NUMBER = ",]} \n\r\t"


class NoPlaceholder(RetractsExhausted):
    """A match had to be replaced and nothing fits in its place. decision: the match."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(f"no placeholder fits at {decision.place}", pointer=str(decision.place))


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The state after num_tokens tokens, from which a later one is reached again."""

    num_tokens: int
    constraint: Constraint
    track: Track


class RedactingConstraint:
    """Constraint state of one sequence. inner: fresh. One thread at a time."""

    def __init__(self, inner: Constraint, redaction: Redaction) -> None:
        self._redaction = redaction
        self._inner = inner
        self._track = Track(redaction)
        self._anchor = _Anchor(0, inner.fork(), self._track.copy())
        self._tokens: list[int] = []
        self._ends: list[int] = []  # byte offset behind each token
        self._forced: tuple[int, ...] = ()  # tokens of a placeholder that are still to come
        self._num_settled = 0
        self._attempts: dict[int, int] = {}  # byte offset of a match -> how often one was replaced there

    # --- the seam -----------------------------------------------------------------------------------------------------

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        if not self._forced:
            return self._inner.fill(draft, rows)
        rows.words[: len(draft) + 1] = 0
        for place, token_id in enumerate(self._forced):
            rows.words.view("uint32")[place, token_id // WORD_BITS] = 1 << (token_id % WORD_BITS)
            if place == len(draft) or draft[place] != token_id:
                return place
        num_forced, ahead = len(self._forced), self._inner.fork()
        ahead.advance(self._forced)
        return num_forced + ahead.fill(draft[num_forced:], MaskRows(rows.words[num_forced:], rows.vocab_size))

    @property
    def legal_prefix(self) -> Callable[[Sequence[int], Sequence[int]], int] | None:
        """(prefix, ids): see NativeConstraint. Guesses are judged without the guards: what these take back is lost."""
        return None if self._forced else getattr(self._inner, "legal_prefix", None)

    def advance(self, ids: Sequence[int]) -> Retract | None:
        for token_id in ids:
            retract = self._advance(token_id)
            if retract is not None:
                return retract
        return None

    def settled(self) -> int:
        self._num_settled = max(self._num_settled, min(self._inner.settled(), self._num_unclaimed()))
        return self._num_settled

    def forced(self) -> bytes:
        return b"".join(map(self._bytes, self._forced)) if self._forced else self._inner.forced()

    def is_complete(self) -> bool:
        return not self._forced and self._inner.is_complete()

    def can_end(self) -> bool:
        return not self._forced and self._inner.can_end()

    def shortest_completion(self) -> tuple[int, ...]:
        if not self._forced:
            return self._inner.shortest_completion()
        ahead = self._inner.fork()
        ahead.advance(self._forced)
        return (*self._forced, *ahead.shortest_completion())

    def fork(self) -> RedactingConstraint:
        twin = copy.copy(self)
        twin._inner = self._inner.fork()
        twin._track = self._track.copy()
        twin._tokens, twin._ends, twin._attempts = list(self._tokens), list(self._ends), dict(self._attempts)
        return twin

    # --- moving on ----------------------------------------------------------------------------------------------------

    def _advance(self, token_id: int) -> Retract | None:
        if self._forced and token_id != self._forced[0]:
            raise ConstraintViolation(f"token {token_id} is not allowed: a placeholder is being forced")
        if self._track.value is None and len(self._tokens) - self._anchor.num_tokens >= _ANCHOR_TOKENS:
            self._anchor = _Anchor(len(self._tokens), self._inner.fork(), self._track.copy())
        retract = self._inner.advance((token_id,))
        if retract is not None:
            self._back_to(retract.kept_tokens)
            return retract
        self._forced = self._forced[1:]
        piece = self._bytes(token_id)
        self._tokens.append(token_id)
        self._ends.append(self._num_bytes + len(piece))
        for value, closed in self._track.feed(piece):
            decision = value.found(closed=closed)
            if decision is not None:
                return self._replace(value, decision)
        return None

    def _num_unclaimed(self) -> int:
        value = self._track.value
        if value is None:
            return len(self._tokens)
        return bisect_right(self._ends, value.frontier_byte)

    @property
    def _num_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _bytes(self, token_id: int) -> bytes:
        return self._redaction.vocabulary.token_bytes[token_id] or b""

    def _back_to(self, num_tokens: int) -> None:
        """Follow the wrapped constraint, which has taken output back by itself."""
        self._forced = ()
        del self._tokens[num_tokens:], self._ends[num_tokens:]
        track = Track(self._redaction)
        num_bytes = self._num_bytes
        track.exempt = [span for span in self._track.exempt if span[1] <= num_bytes]
        for _ in track.feed(b"".join(map(self._bytes, self._tokens))):
            pass
        self._track = track
        self._anchor = _Anchor(num_tokens, self._inner.fork(), track.copy())

    # --- replacing ----------------------------------------------------------------------------------------------------

    def _replace(self, value: ValueWatch, decision: Decision) -> Retract:
        """Go back to the match and force what fits. Raises NoPlaceholder."""
        states: dict[int, tuple[int, bytes, Constraint] | None] = {}
        for option in self._options(value, decision):
            if option.at not in states:
                states[option.at] = self._state_before(option.at)
            state = states[option.at]
            if state is None:
                continue
            kept, between, base = state
            ids = tuple(self._redaction.vocabulary.native.longest_match(between + option.text.encode()))
            if ids and _goes_on(base.fork(), ids):
                self._force(option, kept, base, ids, decision)
                return Retract(kept, between + option.text.encode(), str(decision.place))
        raise NoPlaceholder(decision)

    def _options(self, value: ValueWatch, decision: Decision) -> Iterator[_Option]:
        begin, start = value.begin, value.begin if not value.is_string else value.byte_of(decision.start)
        if value.is_string:
            end = '"' if self._attempts.get(start, 0) else ""  # found again: the model would go on as it did before
            raws = [spelled(text, "string") for text in candidates(decision.rule, decision.replacement)]
            yield from (_Option(start, raw + end, start, raw, is_reserved=True) for raw in raws)
            yield from (_Option(begin, f'"{raw}"', begin + 1, raw, is_reserved=True) for raw in raws)
        default = declared_fallback(self._redaction.schema_text, value.place.steps)
        if default is not None:
            quote = default.startswith('"')
            yield _Option(begin, default, begin + quote, default[1:-1] if quote else default, is_reserved=True)
        yield from self._shortest(value, start)
        yield _Option(begin, "null", begin, "null")

    def _shortest(self, value: ValueWatch, start: int) -> Iterator[_Option]:
        """The shortest legal rest of the value, if no guard finds anything in the value that it makes."""
        state = self._state_before(start)
        if state is None:
            return
        _, between, base = state
        try:
            ids = self._redaction.vocabulary.native.longest_match(between)
            if base.advance(ids) is not None:
                return
            rest = b"".join(map(self._bytes, base.shortest_completion())).decode()
            text = _first_string(rest) if value.is_string else _first_number(rest)
            made = json.loads(f'"{text}"') if value.is_string else text
        except (ConstraintViolation, RetractsExhausted, NoCompletion, ValueError):
            return
        whole = value.text[: bisect_left(value.starts, start)] + made if value.is_string else made
        found = self._redaction.look(value.entries, GuardView(whole, str(value.place)))
        if all(finding.verdict == Allow() for finding in found):
            yield _Option(start, text + '"' if value.is_string else text, start, text)

    def _state_before(self, at: int) -> tuple[int, bytes, Constraint] | None:
        """(tokens that stay, committed bytes from there to `at`, the wrapped constraint after those tokens); None where
        more than may be taken back would have to be."""
        kept = bisect_right(self._ends, at)
        anchor = self._anchor
        if kept < max(self._num_settled, anchor.num_tokens):
            return None
        base = anchor.constraint.fork()
        base.advance(self._tokens[anchor.num_tokens : kept])
        begin = self._ends[kept - 1] if kept else 0
        return kept, b"".join(map(self._bytes, self._tokens[kept:]))[: at - begin], base

    def _force(self, option: _Option, kept: int, base: Constraint, ids: tuple[int, ...], decision: Decision) -> None:
        start = option.value_at
        self._attempts[start] = self._attempts.get(start, 0) + 1
        track = self._anchor.track.copy()
        track.exempt = [span for span in self._track.exempt if span[1] <= option.at]
        if option.is_reserved:
            track.exempt.append((start, start + len(option.value.encode())))
        for _ in track.feed(b"".join(map(self._bytes, self._tokens[self._anchor.num_tokens : kept]))):
            pass
        self._redaction.claims.forced[start, option.value] = Forced(
            replace(decision, during_decoding=True), option.is_reserved
        )
        self._inner, self._track, self._forced = base, track, ids
        del self._tokens[kept:], self._ends[kept:]


@dataclass(frozen=True, slots=True)
class _Option:
    """What may be forced. at: byte offset from which. text: as it is written, quotes included. value_at, value: where
    the characters of the value itself begin, and they. is_reserved: guards do not look at it again."""

    at: int
    text: str
    value_at: int
    value: str
    is_reserved: bool = False


def _goes_on(constraint: Constraint, ids: Sequence[int]) -> bool:
    try:
        return constraint.advance(ids) is None
    except (ConstraintViolation, RetractsExhausted):
        return False


def _first_string(rest: str) -> str:
    """Text up to the quote that closes a string which is open at its beginning."""
    place = 0
    while rest[place : place + 1] != '"':
        if place >= len(rest):
            raise ValueError("the string does not close")
        place += 2 if rest[place] == "\\" else 1
    return rest[:place]


def _first_number(rest: str) -> str:
    end = next((place for place, char in enumerate(rest) if char in _END_OF_NUMBER), len(rest))
    return rest[:end]
