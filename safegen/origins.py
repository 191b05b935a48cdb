"""Where the text of a stream came from, token by token: forced, drafted or sampled (engine/origins.py says what is
what). For streams that ask (`CallOptions.token_origins`).

Text is what is shown, so a token counts for as much of it as has been shown: what is held back, for a stop string or a
guard, is not told of. Where a guard has edited the text nothing is told from there on: the tokens behind it would tell
what it took out, as log-probabilities would.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from safegen.engine.origins import Origin


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The next num_chars characters of a delta. origin: of the token that they are of; None: not told. is_rest: its
    beginning was in an earlier delta."""

    num_chars: int
    origin: Origin | None
    is_rest: bool = False


@dataclass(slots=True)
class _Piece:
    text: str
    origin: Origin
    is_rest: bool = False


class OriginTrack:
    """Of one sample. token_bytes: of every id, None for those that are no text."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending: deque[_Piece] = deque()
        self._is_lost = False

    def feed(self, token_ids: Sequence[int], origins: Sequence[Origin]) -> None:
        """Committed tokens. A character that several spell is of the last of them."""
        for token_id, origin in zip(token_ids, origins, strict=True):
            text = self._decoder.decode(self._token_bytes[token_id] or b"")
            if text:
                self._pending.append(_Piece(text, origin))

    def take(self, shown: str, *, is_edited: bool) -> tuple[TokenSpan, ...]:
        """The spans of text that is shown. is_edited: a guard has replaced something, here or before."""
        self._is_lost = self._is_lost or is_edited
        spans: list[TokenSpan] = []
        place = 0
        while place < len(shown) and not self._is_lost and self._pending:
            piece = self._pending[0]
            num_chars = min(len(piece.text), len(shown) - place)
            if shown[place : place + num_chars] != piece.text[:num_chars]:
                break
            spans.append(TokenSpan(num_chars, piece.origin, piece.is_rest))
            place += num_chars
            if num_chars == len(piece.text):
                self._pending.popleft()
            else:
                piece.text, piece.is_rest = piece.text[num_chars:], True
        if place < len(shown):
            self._is_lost = True
            spans.append(TokenSpan(len(shown) - place, None))
        return tuple(spans)
