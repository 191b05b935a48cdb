"""A constraint with verified nodes over a finite language, which is given as a set of texts.

Nodes are bracketed: `[...]` holds single-byte items, which must differ; `(...)` holds such arrays, which must differ.
Neither is in the masks: a node is checked at its closing bracket. On failure its text is removed from the language,
wherever it would stand as a node, and the state goes back to the token boundary at or before the node's start, or the
parent's, if nothing of the language is left there. Everything is by brute force over the set of prefixes, so that it
can be checked by eye.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product

from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import WORD_BITS, Constraint, ConstraintViolation, MaskRows, NoCompletion, Retract
from tests.support.fake_backend import FAKE_VOCAB

OPENING, CLOSING = b"[(", b"])"
Texts = frozenset[bytes]


def nodes_of(text: bytes) -> list[tuple[int, int]]:
    """(start, end) of each closed node, in the order in which they close."""
    open_at, found = [], []
    for place, byte in enumerate(text):
        if byte in OPENING:
            open_at.append(place)
        elif byte in CLOSING:
            found.append((open_at.pop(), place + 1))
    return found


def open_nodes(text: bytes) -> list[int]:
    """Starts of the nodes that are open after text, outermost first."""
    starts: list[int] = []
    for place, byte in enumerate(text):
        if byte in OPENING:
            starts.append(place)
        elif byte in CLOSING:
            starts.pop()
    return starts


def passes(node: bytes) -> bool:
    """The check of one node: its items, or its arrays, differ."""
    inner = node[1:-1]
    parts = [inner[a:b] for a, b in nodes_of(inner)] if node[:1] == b"(" else [bytes([byte]) for byte in inner]
    return len(set(parts)) == len(parts)


def holds(text: bytes) -> bool:
    return all(passes(text[start:end]) for start, end in nodes_of(text))


def arrays(items: str, lengths: Iterable[int]) -> list[bytes]:
    return [b"[" + "".join(found).encode() + b"]" for length in lengths for found in product(items, repeat=length)]


# A small language, in tokens that begin nodes, end them and cross their edges, as a fake backend's vocabulary.
LONE_ARRAYS = frozenset(b"x" + array for array in arrays("ab", [1, 2, 3]))
_PIECES = [b"x", b"[", b"a", b"b", b"]", b"[a", b"b]", b"aa", b"x["]
LONE_TOKENS: list[bytes | None] = [None, *_PIECES, *[None] * (FAKE_VOCAB - 1 - len(_PIECES))]


@cache
def live_texts(language: Texts, failed: Texts) -> Texts:
    """The texts none of whose nodes is known to have failed."""
    return frozenset(text for text in language if not any(text[a:b] in failed for a, b in nodes_of(text)))


@cache
def live_prefixes(language: Texts, failed: Texts) -> Texts:
    return frozenset(text[:end] for text in live_texts(language, failed) for end in range(len(text) + 1))


@cache
def right_texts(language: Texts) -> Texts:
    return frozenset(text for text in language if holds(text))


class VerifiedConstraint:
    """token_bytes: bytes of each id, None for those without text. Every byte of the language is a token by itself."""

    def __init__(self, language: Texts, token_bytes: Sequence[bytes | None], stop_ids: frozenset[int]) -> None:
        self.language, self.token_bytes, self.stop_ids = language, token_bytes, stop_ids
        self.failed: Texts = frozenset()
        self.ends: list[int] = []  # of each committed token, in bytes
        self.text = b""
        self.required = b""  # what the text must be a beginning of, or begin with
        self.num_settled = 0

    def _fits(self, text: bytes) -> bool:
        agrees = text.startswith(self.required) or self.required.startswith(text)
        return agrees and text in live_prefixes(self.language, self.failed)

    @property
    def _ahead(self) -> bytes:
        """What the answer begins with: the text, or what it is bound to become."""
        return self.text if self.text.startswith(self.required) else self.required

    def legal(self) -> set[int]:
        ids = {number for number, piece in enumerate(self.token_bytes) if piece and self._fits(self.text + piece)}
        return ids | self.stop_ids if self.can_end() else ids

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        state, words = self.fork(), rows.words.view("uint32")
        words[: len(draft) + 1] = 0
        for number, token_id in enumerate([*draft, None]):
            legal = state.legal()
            for legal_id in legal:
                words[number, legal_id // WORD_BITS] |= 1 << (legal_id % WORD_BITS)
            if token_id is None or token_id not in legal or token_id in self.stop_ids:
                return number
            try:
                if state.advance([token_id]) is not None:
                    return number + 1  # what comes after a retract is not known before it is committed
            except RetractsExhausted:
                return number + 1
        raise AssertionError("unreachable")

    def advance(self, ids: Sequence[int]) -> Retract | None:
        for token_id in ids:
            piece, num_before = self.token_bytes[token_id], len(self.text)
            if not piece or not self._fits(self.text + piece):
                raise ConstraintViolation(f"token {token_id} is not legal after {self.text!r}")
            self.text += piece
            self.ends.append(len(self.text))
            for start, end in nodes_of(self.text):
                if end > num_before and not passes(self.text[start:end]):
                    return self._retract(start, end)
        self.num_settled = max(self.num_settled, self._num_out_of_reach())
        return None

    def _retract(self, start: int, end: int) -> Retract:
        node = self.text[start:end]
        self.failed |= {node}
        live = live_prefixes(self.language, self.failed)
        while self.text[:start] not in live:
            if not start:
                raise RetractsExhausted("nothing is left", pointer="/root")
            start = _parent(self.text, start)
        self.required = self.text[:start]
        kept = sum(1 for place in self.ends if place <= start)
        del self.ends[kept:]
        self.text = self.text[: self.ends[-1] if self.ends else 0]
        self.num_settled = max(self.num_settled, self._num_out_of_reach())
        return Retract(kept, self.required[len(self.text) :], f"/{node[:1].decode()}")

    def _num_out_of_reach(self) -> int:
        """Tokens before the outermost open node, or before the parent that the end of the language would lead to."""
        start = min(open_nodes(self._ahead), default=len(self._ahead))
        while start and not any(text.startswith(self._ahead[:start]) for text in right_texts(self.language)):
            start = _parent(self._ahead, start)
        return sum(1 for place in self.ends if place <= start)

    def settled(self) -> int:
        return self.num_settled

    def forced(self) -> bytes:
        return self.required[len(self.text) :]

    def can_end(self) -> bool:
        return self.text.startswith(self.required) and self.text in live_texts(self.language, self.failed)

    def is_complete(self) -> bool:
        live = live_prefixes(self.language, self.failed)
        return self.can_end() and not any(self.text + bytes([byte]) in live for byte in range(256))

    def shortest_completion(self) -> tuple[int, ...]:
        right = [text for text in right_texts(self.language) if text.startswith(self._ahead)]
        if not right:
            raise NoCompletion("every text from here fails")
        text = min(right, key=lambda text: (len(text), text))
        return tuple(self.token_bytes.index(text[place : place + 1]) for place in range(len(self.text), len(text)))

    def fork(self) -> VerifiedConstraint:
        twin = VerifiedConstraint(self.language, self.token_bytes, self.stop_ids)
        twin.failed, twin.text, twin.required = self.failed, self.text, self.required
        twin.ends, twin.num_settled = list(self.ends), self.num_settled
        return twin


def _parent(text: bytes, start: int) -> int:
    """Start of the node that encloses place `start`, 0 if none does."""
    return max(open_nodes(text[:start]), default=0)


def _conforms(constraint: VerifiedConstraint) -> Constraint:
    return constraint
