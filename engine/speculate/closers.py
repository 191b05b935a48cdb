"""How answers close their values: which token ends one, by the field that it is the value of.

A small model spells the end of a value in its own way: a quote and a comma in one token, a quote alone and a comma and
quote after it, a quote and a brace for the last field. Which of them depends on little more than the field, so it is
counted by field. A field is known by the last token of its key: the last one before a colon that is no punctuation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Ids
from typing import NamedTuple

from safegen.engine.speculate.base import Ask, legal_prefix
from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import Constraint, ConstraintViolation

_MAX_COUNTED = 4096  # fields of types
_MAX_CLOSERS = 4
_CLOSE = b'",:]}'
_ENDS = (b".", b",", b";", b":", b"(", b")", b"!", b"?", b'"', b"'", b"\n", b"")
_NO_FIELD = -1
_Field = tuple[int, int]


class Standing(NamedTuple):
    """What output is in the middle of. field: the last token of its key. text: the last token but punctuation."""

    field: int = _NO_FIELD
    text: int = _NO_FIELD


class Closers:
    """token_bytes: of every id."""

    def __init__(self, token_bytes: Ids[bytes | None]) -> None:
        pieces = [(token_id, piece) for token_id, piece in enumerate(token_bytes) if piece]
        self._closing = {token_id for token_id, piece in pieces if piece[:1] in _CLOSE and not piece.strip(_CLOSE)}
        self._after_key = {token_id for token_id, piece in pieces if token_id in self._closing and b":" in piece}
        self._ending = {token_id for token_id, piece in pieces if piece.strip()[:1] in _ENDS}
        self._counts: dict[_Field, Counter[int]] = {}
        self._best: dict[_Field, tuple[int, ...]] = {}  # the most frequent ones of what has been counted

    def after(self, ids: Ids[int], standing: Standing) -> Standing:
        """Where the output stands after further ids."""
        field, text = standing
        for token_id in ids:
            if token_id in self._after_key:
                field = text
            elif token_id not in self._closing:
                text = token_id
        return Standing(field, text)

    def count(self, type_key: int | None, ids: Ids[int], standing: Standing) -> Standing:
        """Note the closing tokens among ids that come after something else; the first id is only looked back at.
        Returns where the output stands after them."""
        if type_key is not None and not self._closing.isdisjoint(ids):
            for place in range(1, len(ids)):
                token_id = ids[place]
                if token_id in self._closing and ids[place - 1] not in self._closing:
                    self._note(type_key, standing.field, token_id)
                standing = self.after((token_id,), standing)
            return standing
        return self.after(ids[1:], standing)

    def _note(self, type_key: int, field: int, token_id: int) -> None:
        if len(self._counts) > _MAX_COUNTED:
            self._counts.clear()
            self._best.clear()
        for place in {(type_key, field), (type_key, _NO_FIELD)}:
            self._counts.setdefault(place, Counter())[token_id] += 1
            self._best.pop(place, None)

    def is_ending(self, token_id: int) -> bool:
        """Text may go on with it where a value ends."""
        return token_id in self._ending

    def is_closing(self, token_id: int) -> bool:
        return token_id in self._closing

    def close(self, ask: Ask, found: tuple[int, ...], num_legal: int, field: int) -> tuple[int, ...]:
        """The legal part of what was found up to where a value may end, and a token that ends it; all of the legal part
        where none is known."""
        constraint = ask.sequence.constraint
        ends = (place for place, token_id in enumerate(found[:num_legal]) if token_id in self._ending)
        place = next(ends, num_legal)
        if constraint is None or place >= ask.room:
            return found[:num_legal]
        before = (*ask.prefix, *found[:place])
        if place and not num_legal > place and _is_forced_after(constraint, before):
            return found[:place]
        for token_id in self._most_frequent(ask.sequence.request.type_key or 0, field):
            if legal_prefix(constraint, before, (token_id,)):
                return (*found[:place], token_id)
        return found[:num_legal]

    def _most_frequent(self, type_key: int, field: int) -> tuple[int, ...]:
        place = (type_key, field) if (type_key, field) in self._counts else (type_key, _NO_FIELD)
        counts = self._counts.get(place)
        if counts is None:
            return ()
        best = self._best.get(place)
        if best is None:
            best = self._best[place] = tuple(token_id for token_id, _ in counts.most_common(_MAX_CLOSERS))
        return best


def _is_forced_after(constraint: Constraint, ids: Ids[int]) -> bool:
    """Whether what follows these ids is forced. Legal ones may be taken back all the same, for good too: a guard's
    constraint looks at what they spell."""
    fork = constraint.fork()
    try:
        return fork.advance(ids) is None and bool(fork.forced())
    except (ConstraintViolation, RetractsExhausted):
        return False
