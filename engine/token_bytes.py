"""The exact bytes each token id contributes to an output: what constraints and guards walk on.

Two spellings of vocabularies exist. *Byte-level BPE* (GPT-2) writes each byte as one printable character of a fixed
map. *SentencePiece* writes text as it is, a space as U+2581, and bytes outside its vocabulary as `<0xNN>`. A token
without bytes (control, unknown, unused, padded ids) is None; nothing legal can sample it except as a stop id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SPACE_MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_to_char() -> dict[int, str]:
    """GPT-2's map: printable Latin-1 bytes stand for themselves, the rest take the code points from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


BYTE_TO_CHAR: Mapping[int, str] = _byte_to_char()
# str.translate takes a byte-level piece to Latin-1 text. Latin-1 characters that the map does not use (a raw space
# or control character) are sent out of Latin-1, so that encoding such a piece fails instead of passing for a byte.
_CHAR_TO_LATIN1: dict[int, int] = dict.fromkeys(range(256), 0x10FFFF) | {
    ord(char): byte for byte, char in BYTE_TO_CHAR.items()
}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level BPE piece; a piece outside the byte alphabet (a mislabelled added token) is its UTF-8."""
    try:
        return piece.translate(_CHAR_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")


def sentencepiece_bytes(piece: str, space_mark: str = SPACE_MARK) -> bytes:
    """Bytes of a SentencePiece piece: the mark is a space. Byte pieces are `byte_piece_value`'s."""
    return piece.replace(space_mark, " ").encode("utf-8")


def byte_piece_value(piece: str) -> bytes | None:
    """b"\\xNN" of a byte fallback piece `<0xNN>`, None for any other piece."""
    match = _BYTE_PIECE.fullmatch(piece) if len(piece) == 6 else None
    return None if match is None else bytes([int(match[1], 16)])


def pad_to_model(token_bytes: Iterable[bytes | None], model_vocab_size: int | None) -> tuple[bytes | None, ...]:
    """As many entries as the model has logits: padded ids are None; entries past the last row are cut.

    None keeps the tokenizer's own size.
    """
    entries = tuple(token_bytes)
    if model_vocab_size is None:
        return entries
    return entries[:model_vocab_size] + (None,) * (model_vocab_size - len(entries))
