"""A text as an attacker may have disguised it: in base64, hexadecimal, percent escapes or rot13, backwards, in
leetspeak, with letters spaced out. Each layer knows which characters of the text stand behind it.

Every layer is linear in the text; decoded runs are decoded once more (base64 in base64), not deeper.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from safegen.guards.reading import compiled, read

_BASE64 = compiled(r"[A-Za-z0-9+/_\-]{20,}={0,2}")
_HEXADECIMAL = compiled(r"(?:[0-9a-fA-F]{2}[ :]?){12,}|(?:\\x[0-9a-fA-F]{2}){8,}")
_PERCENT = compiled(r"(?:[A-Za-z0-9._\-+~]{0,40}%[0-9A-Fa-f]{2}){2,}[A-Za-z0-9._\-+~]{0,40}")
_SPACED = compiled(r"\b(?:[A-Za-z0-9][ .\-_*|]{1,3}){7,}[A-Za-z0-9]\b")
_LEETSPEAK = compiled(r"[a-z][013457@$!|8]{1,3}[a-z]")
_LEET = bytes.maketrans(b"013457@$!|8", b"oieastasiib")
_MAX_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Layer:
    """octets: what is searched, in lower case. start, end: of the characters behind it, where octets do not map one by
    one (`mapped`)."""

    name: str
    octets: bytes
    start: int
    end: int
    mapped: bool = False
    backwards: bool = False

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Offsets into the octets of the reading below, for a finding in this layer."""
        if not self.mapped:
            return self.start, self.end
        return (self.end - last, self.end - first) if self.backwards else (self.start + first, self.start + last)


def layers(octets: bytes) -> Iterator[Layer]:
    """The reading itself first. octets: of a reading."""
    low = octets.lower()
    whole = (0, len(octets))
    yield Layer("plain", low, *whole, mapped=True)
    if _LEETSPEAK.search(low) is not None:
        yield Layer("leetspeak", low.translate(_LEET), *whole, mapped=True)
    yield Layer("rot13", codecs.encode(low.decode("latin-1"), "rot13").encode("latin-1"), *whole, mapped=True)
    yield Layer("backwards", low[::-1], *whole, mapped=True, backwards=True)
    for match in _SPACED.finditer(octets):
        yield from _spaced(match[0].lower(), *match.span())
    for name, start, end, inner in _decoded(octets, 0):
        yield Layer(name, inner.lower(), start, end)


def _spaced(found: bytes, start: int, end: int) -> Iterator[Layer]:
    """Letters without what is between them; where wider gaps part words, with a space there."""
    for separator in (b"  ", b" - ", b" . ", b" | "):
        if separator in found:
            words = (bytes(octet for octet in word if chr(octet).isalnum()) for word in found.split(separator))
            yield Layer("spaced", b" ".join(words), start, end)
    yield Layer("spaced", bytes(octet for octet in found if chr(octet).isalnum()), start, end)


def _decoded(octets: bytes, depth: int) -> Iterator[tuple[str, int, int, bytes]]:
    for name, pattern, decode in (
        ("base64", _BASE64, _from_base64),
        ("hexadecimal", _HEXADECIMAL, _from_hexadecimal),
        ("percent", _PERCENT, _from_percent),
    ):
        for match in pattern.finditer(octets):
            inner = decode(match[0])
            if inner is None:
                continue
            yield name, *match.span(), inner
            if depth + 1 < _MAX_DEPTH:
                yield from ((deep, *match.span(), text) for deep, _, _, text in _decoded(inner, depth + 1))


def _readable(raw: bytes) -> bytes | None:
    """The reading of decoded octets that are text."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return read(text).octets if text.isprintable() or "\n" in text else None


def _from_base64(run: bytes) -> bytes | None:
    plain = run.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    try:
        return _readable(base64.b64decode(plain[: len(plain) - (len(plain) % 4 == 1)] + b"=" * (-len(plain) % 4 % 3)))
    except (ValueError, binascii.Error):
        return None


def _from_hexadecimal(run: bytes) -> bytes | None:
    digits = run.replace(b"\\x", b"").translate(None, b" :")
    return _readable(bytes.fromhex(digits[: len(digits) // 2 * 2].decode()))


def _from_percent(run: bytes) -> bytes | None:
    from urllib.parse import unquote_to_bytes

    return _readable(unquote_to_bytes(run.replace(b"+", b" ")))
