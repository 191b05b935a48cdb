"""Bytes of committed tokens to text, incrementally.

A token may end inside a UTF-8 code point (byte-level BPE, byte fallback), so text can only be emitted up to the last
whole code point. `push` holds back at most three bytes; bytes that no continuation can make valid become U+FFFD, at
the same places and in the same number as `bytes.decode(errors="replace")` on the whole output gives. So for every
split of the output, the pushes plus the final flush concatenate to the decoded whole.

The text of an output is exactly its bytes. Some SentencePiece tokenizers put a space before the first word of a text
they encode; that space belongs to the prompt's beginning, not to an output, and is not removed here: a constraint
has seen that byte, so the reader must see it too (`Tokenizer.decode(..., from_start=True)` removes it from a prompt).
"""

from __future__ import annotations

import codecs

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One output's decoder state. Used by one thread at a time."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _new_decoder(errors="replace")

    @property
    def pending(self) -> bytes:
        """The held back start of a code point: at most 3 bytes."""
        return self._decoder.getstate()[0]

    def push(self, data: bytes) -> str:
        """The text that `data` completes; never half a code point."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The rest at the end of the output: "" or one U+FFFD. Afterwards the state is that of a new output."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
