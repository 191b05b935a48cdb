"""From token ids to text, as a stream may show it: whole code points, and nothing a stop string may still claim.

Works on bytes, since a code point and a stop string may both be cut anywhere by token borders. The text of a result
is the concatenation of what was released here, so a stream and a plain call cannot differ. What remains of a torn
code point when the output ends (a truncated answer) is dropped.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one sequence. token_bytes: bytes of each id, None for tokens that are not text."""

    def __init__(self, token_bytes: Sequence[bytes | None], stop: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stop = [text.encode() for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = b""
        self._num_released_bytes = 0

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take committed tokens; returns the text that is now certain."""
        self._held += b"".join(self._token_bytes[token] or b"" for token in token_ids)
        return self._release(len(self._held) - self._claimed())

    def finish(self, num_text_bytes: int) -> str:
        """The output has ended and its first num_text_bytes bytes are the answer; returns the rest of the text."""
        return self._release(max(0, num_text_bytes - self._num_released_bytes))

    def _release(self, num_bytes: int) -> str:
        released, self._held = self._held[:num_bytes], self._held[num_bytes:]
        self._num_released_bytes += len(released)
        return self._decoder.decode(released)

    def _claimed(self) -> int:
        """Bytes from the earliest place on where a stop string stands, or may yet stand, in the held text."""
        claimed = 0
        for stop in self._stop:
            found = self._held.find(stop)
            if found >= 0:
                claimed = max(claimed, len(self._held) - found)
                continue
            for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
                if self._held.endswith(stop[:length]):
                    claimed = max(claimed, length)
                    break
        return claimed
