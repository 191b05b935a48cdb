"""Drafts of what the grammar forces: keys, quotes, commas, the rest of a listed value.

The bytes that every legal continuation starts with are not tokens yet: a text has many spellings in tokens, and which
of them the model would take is the model's to say. So the bytes are tokenized as the tokenizer would, and submitted as
a one-hot draft. Where the model agrees, which it nearly always does, many tokens come out of one forward; where it does
not, its own choice stands, and what is committed is never tokenized again.

The last token of forced bytes is on a boundary: the tokenizer might have merged it with what follows, which is not
known. Whether the model then prefers a longer token depends on little more than the token itself (a comma and a quote
before a name, say), so its acceptance is measured by its id, and it is held back where that does not pay: the
speculator ends the draft before it. It is not held back on suspicion alone, since almost every token has some longer
one that begins with it and that the grammar allows, and holding back costs a forward for each forced piece of text.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids

from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft
from safegen.errors import SafegenError

_INSIDE = "inside"
_INSIDE_CHANCE, _BOUNDARY_CHANCE = 0.95, 0.8
_MAX_KNOWN = 4096
_MAX_CONTINUATION_BYTES = 3


class ForcedDrafter:
    """encode: ids of text that continues other text (`Tokenizer.encode_continuation`). token_bytes: of every id."""

    name = "forced"
    is_costly = False

    def __init__(self, encode: Callable[[str], list[int]], token_bytes: Ids[bytes | None]) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._known: dict[bytes, Draft] = {}

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._propose(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""

    def _propose(self, ask: Ask) -> Draft:
        constraint = ask.sequence.constraint
        if constraint is None:
            return NO_DRAFT
        if ask.prefix:
            constraint = constraint.fork()
            if constraint.advance(ask.prefix) is not None:
                return NO_DRAFT
        text = constraint.forced()
        if not text:
            return NO_DRAFT
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[text] = self._draft_of(text)
        return known

    def _draft_of(self, text: bytes) -> Draft:
        try:
            ids = self._encode(_whole_characters(text).decode())
        except (UnicodeDecodeError, SafegenError):  # begins inside a character, or text that only controls spell
            return NO_DRAFT
        spelled, num_bytes = [], 0
        for token_id in ids:
            piece = self._token_bytes[token_id] if 0 <= token_id < len(self._token_bytes) else None
            if not piece or not text.startswith(piece, num_bytes):
                break
            spelled.append(token_id)
            num_bytes += len(piece)
        if not spelled:
            return NO_DRAFT
        num_inside = len(spelled) - 1
        chances = (_INSIDE_CHANCE,) * num_inside + (_BOUNDARY_CHANCE,)
        return Draft(tuple(spelled), None, chances, (_INSIDE,) * num_inside + (spelled[-1],))


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
