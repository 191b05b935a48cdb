"""Addresses of crypto-currencies, by their checksums: base58check (Bitcoin, Litecoin, Dogecoin, Dash, Zcash, Tron,
Ripple), bech32 and bech32m (BIP 173, BIP 350), and by their shape: Ethereum and Monero."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.reading import compiled, overlapping

_BITCOIN = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_RIPPLE = "rpshnaf39wBUDNEGHJKLM4PQRST7VWXYZ2bcdeCg65jkm8oFqi1tuvAxyz"
_BASE58 = compiled(r"\b[13LMDXrTt][1-9A-HJ-NP-Za-km-z]{24,34}\b")
_BECH32 = compiled(r"\b(?:bc|tb|ltc)1[ac-hj-np-z02-9]{11,71}\b", ignore_case=True)
_SHAPED = compiled(r"\b(?:0x[0-9a-fA-F]{40}|4[0-9AB][1-9A-HJ-NP-Za-km-z]{93})\b")
_CHARSET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


def scan(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_SHAPED, octets):
        yield *match.span(), 1.0
    for match in overlapping(_BASE58, octets):
        if is_base58check(match[0].decode()):
            yield *match.span(), 1.0
    for match in overlapping(_BECH32, octets):
        if is_bech32(match[0].decode()):
            yield *match.span(), 1.0


def is_base58check(text: str) -> bool:
    """Four octets of a double SHA-256 at the end (21 to 22 octets of content)."""
    alphabet = _RIPPLE if text.startswith("r") else _BITCOIN
    number = 0
    for character in text:
        number = number * 58 + alphabet.index(character)
    leading = len(text) - len(text.lstrip(alphabet[0]))
    content = b"\0" * leading + number.to_bytes((number.bit_length() + 7) // 8, "big")
    body, check = content[:-4], content[-4:]
    return len(body) in (21, 22) and hashlib.sha256(hashlib.sha256(body).digest()).digest()[:4] == check


def is_bech32(text: str) -> bool:
    """The BCH code of BIP 173 (constant 1) or BIP 350; one case only."""
    if text not in (text.lower(), text.upper()):
        return False
    prefix, _, data = text.lower().rpartition("1")
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix] + [_CHARSET.index(c) for c in data]
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= generator if top >> bit & 1 else 0
    return check in (1, 0x2BC830A3)


RULE = Rule("CRYPTO_ADDRESS", 95, scan, r"\b[A-Za-z0-9]{1,95}", gate="[A-Za-z0-9]{14}")
