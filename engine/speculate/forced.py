"""Drafts of what the grammar forces: keys, quotes, commas, the rest of a listed value.

The bytes that every legal continuation starts with are not tokens yet: a text has many spellings in tokens, and which
of them the model would take is the model's to say. So the bytes are tokenized as the tokenizer would, and submitted as
a one-hot draft. Where the model agrees, which it nearly always does, many tokens come out of one forward; where it does
not, its own choice stands, and what is committed is never tokenized again. How a model did spell a forced text is
remembered, and proposed from then on (a small model may like `":` and `"` better than the canonical `":"`).

The last token of forced bytes is on a boundary: the tokenizer might have merged it with what follows, which is not
known. Whether the model then prefers a longer token depends on little more than the token itself (a comma and a quote
before a name, say), so its acceptance is measured by its id, and it is held back where that does not pay: the
speculator ends the draft before it. It is not held back on suspicion alone, since almost every token has some longer
one that begins with it and that the grammar allows, and holding back costs a forward for each forced piece of text.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft
from safegen.errors import RetractsExhausted, SafegenError

_INSIDE, _BOUNDARY = "inside", "boundary"
_INSIDE_CHANCE, _BOUNDARY_CHANCE = 0.97, 0.9
_MAX_KNOWN = 4096
_MAX_CONTINUATION_BYTES = 3


class ForcedDrafter:
    """encode: ids of text that continues other text (`Tokenizer.encode_continuation`). token_bytes: of every id."""

    name = "forced"
    is_costly = False
    is_forced = True

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Ids[bytes | None]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._known: dict[bytes, Draft] = {}
        self._num_spellings = 0
        self._pending: dict[Sequence, _Pending] = {}

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._propose(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._learn(sequence)
        self._pending.pop(sequence, None)

    def _propose(self, ask: Ask) -> Draft:
        constraint = ask.sequence.constraint
        if constraint is None:
            return NO_DRAFT
        if not ask.prefix:
            self._learn(ask.sequence)
        if ask.prefix:
            constraint = constraint.fork()
            try:
                if constraint.advance(ask.prefix) is not None:
                    return NO_DRAFT
            except RetractsExhausted:  # so would the sequence end
                return NO_DRAFT
        text = constraint.forced()
        if not text:
            return NO_DRAFT
        if not ask.prefix and ask.sequence not in self._pending:
            sequence = ask.sequence
            self._pending[sequence] = _Pending(text, sequence.num_output_tokens, sequence.num_retracts)
        known = self._known.get(text)
        if known is None:
            known = self._remember(text, self._canonical(text))
        return known

    def _remember(self, text: bytes, ids: Ids[int]) -> Draft:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._num_spellings += 1
        num_inside = max(0, len(ids) - 1)
        chances = (_INSIDE_CHANCE,) * num_inside + (_BOUNDARY_CHANCE,)
        inside = tuple((_INSIDE, self._num_spellings, place) for place in range(num_inside))
        draft = Draft(tuple(ids), None, chances, inside + tuple((_BOUNDARY, token_id) for token_id in ids[-1:]))
        self._known[text] = draft
        return draft

    def _learn(self, sequence: Sequence) -> None:
        """How the text that was forced last was spelled, once all of it was."""
        pending = self._pending.get(sequence)
        if pending is None:
            return
        if pending.num_retracts != sequence.num_retracts:
            del self._pending[sequence]
            return
        inside, num_bytes = list[int](), 0
        for token_id in sequence.output_ids(pending.start, sequence.num_output_tokens):
            num_bytes += len(self._token_bytes[token_id] or b"")
            if num_bytes <= len(pending.text):
                inside.append(token_id)
            if num_bytes >= len(pending.text):
                del self._pending[sequence]
                known = self._known.get(pending.text)
                if known is not None and inside and tuple(inside) != known.ids:
                    self._remember(pending.text, inside)
                return

    def _canonical(self, text: bytes) -> list[int]:
        """As the tokenizer would have it, as far as its tokens spell the text."""
        try:
            ids = self._encode(_whole_characters(text).decode())
        except (UnicodeDecodeError, SafegenError):  # begins inside a character, or text that only controls spell
            return []
        spelled, num_bytes = list[int](), 0
        for token_id in ids:
            piece = self._token_bytes[token_id] if 0 <= token_id < len(self._token_bytes) else None
            if not piece or not text.startswith(piece, num_bytes):
                break
            spelled.append(token_id)
            num_bytes += len(piece)
        return spelled


@dataclass(frozen=True, slots=True)
class _Pending:
    """A text that was forced after `start` output tokens, and is still to be seen spelled."""

    text: bytes
    start: int
    num_retracts: int


def _whole_characters(text: bytes) -> bytes:
    """Without the beginning of a character that it ends in."""
    for place in range(len(text) - 1, max(-1, len(text) - 1 - _MAX_CONTINUATION_BYTES - 1), -1):
        byte = text[place]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return text if place + length <= len(text) else text[:place]
    return text
