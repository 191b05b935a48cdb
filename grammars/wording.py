"""Expectations in words: what the bytes that may come next mean to a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safegen.grammars.frontier import Frontier, Waiting

_DIGITS = frozenset(range(0x30, 0x3A))
_UPPER = frozenset(range(0x41, 0x5B))
_LOWER = frozenset(range(0x61, 0x7B))
_LETTERS = _UPPER | _LOWER
_BLANKS = frozenset(b" \t\n\r\f\v")
_PRINTABLE = frozenset(range(0x20, 0x7F))
_CONTINUATION = frozenset(range(0x80, 0xC0))
_LEADS = frozenset(range(0xC2, 0xF5))
_MAX_LISTED_CHARS = 16
_MAX_WORDS = 40
END = "the end of the text"


def expectations(found: Frontier, *, is_json: bool) -> tuple[str, ...]:
    """What may stand at the frontier, each once. is_json: the values are JSON's, and are called so."""
    words: dict[str, None] = {}
    for waiting in found.waiting:
        words.update(dict.fromkeys(_words(waiting, found.num_bytes, is_json)))
    if found.can_end:
        words[END] = None
    return tuple(words)[:_MAX_WORDS]


def _words(waiting: Waiting, num_bytes: int, is_json: bool) -> Iterator[str]:
    if waiting.role == "open" and is_json:
        if b"[" in waiting.first:
            yield "an array"
        if b"{" in waiting.first:
            yield "an object"
        yield from ("whitespace",) * any(byte in _BLANKS for byte in waiting.first)
    elif waiting.role == "key":
        yield from map(shown, waiting.texts)
        if not waiting.is_all:
            yield "another key"
    elif waiting.is_all and waiting.texts:
        yield from map(shown, waiting.texts)
    elif is_json and waiting.role == "value" and waiting.open and waiting.open[0].start == num_bytes:
        yield from _json_values(waiting.first)
    else:
        yield from described(waiting.first)


def _json_values(first: bytes) -> Iterator[str]:
    for opening, name in ((b'"', "a string"), (b"-0123456789", "a number"), (b"t", "true"), (b"f", "false")):
        if any(byte in opening for byte in first):
            yield name
    if b"n" in first:
        yield "null"
    yield from described(bytes(byte for byte in first if byte not in b'"-0123456789tfn'))


def shown(text: bytes) -> str:
    """Bytes as text; those of half a character as escapes."""
    return text.decode("utf-8", "backslashreplace")


def described(first: Sequence[int]) -> Iterator[str]:
    """A set of first bytes in a few words."""
    left = set(first)
    if not left:
        return
    if len(left & _PRINTABLE) > len(_PRINTABLE) - _MAX_LISTED_CHARS:
        missing = sorted(_PRINTABLE - left)
        yield "any character" + (" but " + " ".join(map(chr, missing)) if missing else "")
        return
    for group, name in (
        (_DIGITS, "a digit"),
        (_LETTERS, "a letter"),
        (_UPPER, "an upper-case letter"),
        (_LOWER, "a lower-case letter"),
        (_BLANKS & frozenset(b" \t\n\r"), "whitespace"),
        (_LEADS, "a character beyond ASCII"),
    ):
        if group <= left:
            yield name
            left -= group
    if left and left <= _CONTINUATION:
        yield "the rest of a character"
        return
    if left & (_LEADS | _CONTINUATION):
        yield "some characters beyond ASCII"
        left -= _LEADS | _CONTINUATION
    yield from _listed(sorted(left))


def _listed(codes: list[int]) -> Iterator[str]:
    """Single characters, runs of them as such."""
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and runs[-1][1] == code - 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    for low, high in runs[:_MAX_LISTED_CHARS]:
        if high - low < 2:
            yield from (_char(code) for code in range(low, high + 1))
        else:
            yield f"{_char(low)} to {_char(high)}"
    if len(runs) > _MAX_LISTED_CHARS:
        yield "other characters"


def _char(code: int) -> str:
    named = {0x20: "a space", 0x09: "a tab", 0x0A: "a line feed", 0x0D: "a carriage return"}
    return named.get(code) or (chr(code) if code in _PRINTABLE else f"the byte 0x{code:02X}")
