"""A grammar's answer under bans that hold over its whole text, across terminals.

Two machines read the same tokens: one knows the grammar, the other the texts without a ban. A token is legal when both
allow it. Each is live by itself; both together need not be (a rule may end in a text that now completes a ban), and to
know that of every token would take the product of a pushdown machine with thousands of states. So liveness is kept by
a *certificate*: for the current state the way to a whole answer that both allow is known, and its next token is legal.
A committed token that leaves the certificate needs a new one; where none is found, the token is taken back at once (a
`Retract` of that token alone) and is illegal there from then on. What stays is settled: nothing is taken back later.

The certificate is the grammar's shortest completion where no ban stands in it, else the result of a search in the
product, cheapest completions first, of bounded work. It errs on the side of taking back: a state whose ways out are all
longer than the search looks is given up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np

from safegen._native import Program
from safegen.errors import GrammarError, RetractsExhausted
from safegen.grammars.constraint import WORD_BITS, ConstraintViolation, MaskRows, NoCompletion, Retract
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary

_MAX_LOOKED = 600  # states of one search
_MAX_BRANCHES = 80  # of one state
_MAX_REFUSED = 10_000  # tokens that were taken back at one place


class _Pair:
    """Both machines after the same tokens."""

    __slots__ = ("grammar", "text")

    def __init__(self, grammar: NativeConstraint, text: NativeConstraint) -> None:
        self.grammar = grammar
        self.text = text

    def fork(self) -> _Pair:
        return _Pair(self.grammar.fork(), self.text.fork())

    def can_end(self) -> bool:
        return self.grammar.can_end() and self.text.can_end()

    def after(self, ids: Sequence[int]) -> _Pair | None:
        """None where a ban would stand, or the grammar takes something back."""
        further = self.fork()
        try:
            further.text.advance(ids)
            return further if further.grammar.advance(ids) is None else None
        except (ConstraintViolation, RetractsExhausted):
            return None

    def legal(self, vocabulary: Vocabulary, rows: MaskRows) -> list[int]:
        """Legal tokens, stop ids left out; single bytes and short tokens first. rows: two of them, for scratch."""
        self.grammar.fill((), MaskRows(rows.words[:1], rows.vocab_size))
        self.text.fill((), MaskRows(rows.words[1:2], rows.vocab_size))
        rows.words[0] &= rows.words[1]
        ids = [int(token) for token in np.flatnonzero(rows.bools(0)) if int(token) not in vocabulary.stop_ids]
        return sorted(ids, key=lambda token: len(vocabulary.token_bytes[token] or b""))[:_MAX_BRANCHES]

    def straight_out(self) -> tuple[int, ...] | None:
        """The grammar's shortest completion, where no ban stands in it."""
        try:
            rest = self.grammar.shortest_completion()
        except NoCompletion:
            return None
        further = self.text.fork()
        try:
            further.advance(rest)
        except ConstraintViolation:
            return None
        return rest if further.can_end() else None


def _way_out(pair: _Pair, vocabulary: Vocabulary) -> tuple[int, ...] | None:
    """Tokens to a whole answer that both machines allow; None where none was found."""
    if pair.can_end():
        return ()
    straight = pair.straight_out()
    if straight is not None:
        return straight
    rows = MaskRows.allocate(2, vocabulary.size)
    order = itertools.count()
    open_states: list[tuple[int, int, _Pair, tuple[int, ...]]] = [(0, next(order), pair, ())]
    looked = 0
    while open_states and looked < _MAX_LOOKED:
        _, _, at, path = heapq.heappop(open_states)
        for token in at.legal(vocabulary, rows):
            looked += 1
            further = at.after((token,))
            if further is None:
                continue
            if further.can_end():
                return (*path, token)
            rest = further.straight_out()
            if rest is not None:
                return (*path, token, *rest)
            heapq.heappush(open_states, (len(path) + _still_needed(further), next(order), further, (*path, token)))
    return None


def _still_needed(pair: _Pair) -> int:
    try:
        return len(pair.grammar.shortest_completion())
    except NoCompletion:
        return 1000


def check_satisfiable(grammar: Program, text: Program, names: str) -> None:
    """Raises GrammarError where no answer without a ban is found."""
    tokens: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), None]
    vocabulary = Vocabulary(tokens, [256])
    pair = _Pair(NativeConstraint(grammar, vocabulary), NativeConstraint(text, vocabulary))
    if _way_out(pair, vocabulary) is None:
        raise GrammarError(f"Guard {names} leaves no text for the answer: none of the grammar without a ban was found.")


class BanProduct:
    """Constraint state of one sequence: `grammar`, and `text` over the whole answer. One thread at a time."""

    __slots__ = ("_certificate", "_now", "_refused", "_rows", "_text", "_tokens", "_vocabulary")

    def __init__(self, grammar: Program, text: Program, vocabulary: Vocabulary, *, cache_bytes: int = 64 << 20) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._now = _Pair(
            NativeConstraint(grammar, vocabulary, cache_bytes=cache_bytes),
            NativeConstraint(text, vocabulary, cache_bytes=cache_bytes),
        )
        self._tokens: tuple[int, ...] = ()
        self._refused: frozenset[int] = frozenset()  # tokens that were taken back here
        self._rows = MaskRows.allocate(1, vocabulary.size)
        certificate = _way_out(self._now, vocabulary)
        if certificate is None:
            raise GrammarError("This vocabulary spells no answer of the grammar without a ban.")
        self._certificate = certificate

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        pair, certificate = self._now, self._certificate
        rows.words[: len(draft) + 1] = 0
        for place in range(len(draft) + 1):
            row = rows.words[place]
            self._fill_row(pair, MaskRows(rows.words[place : place + 1], rows.vocab_size))
            if place == 0:
                for token in self._refused:
                    row.view(np.uint32)[token // WORD_BITS] &= np.uint32(0xFFFFFFFF ^ (1 << (token % WORD_BITS)))
            if place == len(draft):
                break
            token = draft[place]
            further = pair.after((token,)) if self._is_set(row, token) else None
            found = None if further is None else self._certified(further, certificate, (token,))
            if further is None or found is None:
                return place
            pair, certificate = further, found
        return len(draft)

    def _fill_row(self, pair: _Pair, row: MaskRows) -> None:
        pair.grammar.fill((), row)
        pair.text.fill((), self._rows)
        row.words[0] &= self._rows.words[0]

    def advance(self, ids: Sequence[int]) -> Retract | None:
        states = [(self._now, self._certificate)]
        for place, token in enumerate(ids):
            if place == 0 and token in self._refused:
                raise ConstraintViolation(f"token {token} is not allowed: no answer without a ban goes on with it")
            pair, certificate = states[-1]
            further = pair.fork()
            further.text.advance((token,))
            back = further.grammar.advance((token,))
            if back is not None:
                return self._gone_back(further, back, (*self._tokens, *ids[: place + 1]))
            found = () if token in self._vocabulary.stop_ids else self._certified(further, certificate, (token,))
            if found is None:
                return self._taken_back(states, ids, place)
            states.append((further, found))
        if ids:
            self._keep(*states[-1], (*self._tokens, *ids))
        return None

    def _certified(self, pair: _Pair, certificate: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...] | None:
        """The way out of a state that `ids` led to; the known one where that begins so."""
        if certificate[: len(ids)] == ids:
            return certificate[len(ids) :]
        return _way_out(pair, self._vocabulary)

    def _keep(self, pair: _Pair, certificate: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        self._now, self._certificate, self._tokens, self._refused = pair, certificate, tokens, frozenset()

    def _taken_back(self, states: list[tuple[_Pair, tuple[int, ...]]], ids: Sequence[int], place: int) -> Retract:
        refused = (self._refused if place == 0 else frozenset()) | {ids[place]}
        if len(refused) > _MAX_REFUSED:
            raise RetractsExhausted("too many tokens led to no answer without a ban")
        self._keep(*states[place], (*self._tokens, *ids[:place]))
        self._refused = frozenset(refused)
        return Retract(len(self._tokens), b"", "")

    def _gone_back(self, further: _Pair, back: Retract, tokens: tuple[int, ...]) -> Retract:
        """The grammar itself took tokens back: the other machine reads what is left once more."""
        kept = tokens[: back.kept_tokens]
        further.text = NativeConstraint(self._text, self._vocabulary)
        further.text.advance(kept)
        found = _way_out(further, self._vocabulary)
        if found is None:
            raise RetractsExhausted("no answer without a ban is left", pointer=back.pointer)
        self._keep(further, found, kept)
        return back

    def settled(self) -> int:
        return self._now.grammar.settled()

    def forced(self) -> bytes:
        return self._now.grammar.forced()

    def can_end(self) -> bool:
        return self._now.can_end()

    def is_complete(self) -> bool:
        if not self.can_end():
            return False
        rows = MaskRows.allocate(2, self._vocabulary.size)
        return self._now.grammar.is_complete() or not set(self._now.legal(self._vocabulary, rows)) - self._refused

    def shortest_completion(self) -> tuple[int, ...]:
        """The grammar's own, where no ban stands in it; else the way that is known, perhaps not the shortest."""
        if self.can_end():
            return ()
        straight = self._now.straight_out()
        return self._certificate if straight is None else straight

    def text(self) -> bytes:
        """The bytes committed so far."""
        return self._now.grammar.text()

    def fork(self) -> BanProduct:
        twin = BanProduct.__new__(BanProduct)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._now = self._now.fork()
        twin._rows = MaskRows.allocate(1, self._vocabulary.size)
        return twin

    @staticmethod
    def _is_set(row: np.ndarray[tuple[int, ...], np.dtype[np.int32]], token: int) -> bool:
        return 0 <= token < row.size * WORD_BITS and bool(row[token // WORD_BITS] >> (token % WORD_BITS) & 1)
