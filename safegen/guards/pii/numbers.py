"""Payment cards, bank accounts and US social security numbers: digits with a checksum, a shape, or a word before them.

Cards: 12 to 19 digits that pass Luhn; without a word such as "card" nearby also a known issuer and its length. IBAN:
the country's length and ISO 7064 mod 97-10. SSN: 3-2-4 digits with dashes, whatever the area number; other separators,
none, or letters that a scanner takes for digits (l, O, S, B) need a word nearby.
"""

from __future__ import annotations

from collections.abc import Iterator

from stdnum import luhn
from stdnum.iso7064 import mod_97_10

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.pii.context import Context, joined_before
from safegen.guards.reading import compiled, overlapping

_CARD_WORDS = Context(
    r"cards?|cc|credit|debit|visa|amex|american express|master ?card|maestro|discover|diners|jcb|unionpay|pan"
    r"|karte|kreditkarte|carte|carta|tarjeta|charge"
)
_CARD = compiled(
    r"\b(?:\d{12,19}|\d{4}(?: \d{4}){3}(?: \d{3})?|\d{4}(?:-\d{4}){3}(?:-\d{3})?|\d{4}[ \-]\d{6}[ \-]\d{4,5}"
    r"|\d{4}(?:\.\d{4}){3})\b"
)
# Issuer prefixes with the lengths of their numbers.
_ISSUERS = [
    (range(4, 5), 1, (16, 19)),
    (range(51, 56), 2, (16,)),
    (range(2221, 2721), 4, (16,)),
    (range(34, 35), 2, (15,)),
    (range(37, 38), 2, (15,)),
    (range(6011, 6012), 4, (16, 19)),
    (range(644, 660), 3, (16, 19)),
    (range(3528, 3590), 4, (16, 19)),
    (range(300, 306), 3, (14,)),
    (range(36, 37), 2, (14,)),
    (range(38, 40), 2, (14,)),
    (range(62, 63), 2, (16, 17, 18, 19)),
    (range(2200, 2205), 4, (16,)),
    (range(50, 51), 2, (16,)),
    (range(56, 60), 2, (16,)),
]


def scan_cards(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_CARD, octets):
        digits = match[0].translate(None, b" -.").decode()
        if len(set(digits)) < 2 or not luhn.is_valid(digits) or joined_before(octets, match.start()):
            continue
        if _has_issuer(digits):
            yield match.start(), match.end(), 1.0
        elif _CARD_WORDS.before(octets, match.start()):
            yield match.start(), match.end(), 0.9


def _has_issuer(digits: str) -> bool:
    return any(len(digits) in lengths and int(digits[:width]) in prefixes for prefixes, width, lengths in _ISSUERS)


# Lengths of the SWIFT registry.
_IBAN_REGISTRY = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
    "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
    "YE30"
)
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBAN_REGISTRY.split()}
_IBAN_START = compiled(r"\b[A-Za-z]{2}\d{2}[ \-]?[A-Za-z0-9]{4}")
_MAX_IBAN = 46


def scan_ibans(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_IBAN_START, octets):
        num_characters = _IBAN_LENGTHS.get(match[0][:2].decode().upper())
        end = None if num_characters is None else _iban_end(octets, match.start(), num_characters)
        if end is not None and not octets[end : end + 1].isalnum():
            yield match.start(), end, 1.0


def _iban_end(octets: bytes, start: int, num_characters: int) -> int | None:
    """Behind the last of so many letters and digits, single spaces or dashes between them left out; None if invalid."""
    characters = ""
    for end in range(start, min(len(octets), start + _MAX_IBAN)):
        octet = octets[end : end + 1]
        if octet.isalnum():
            characters += octet.decode()
        elif octet not in b" -" or octets[end - 1 : end] in (b" ", b"-"):
            return None
        if len(characters) == num_characters:
            return end + 1 if mod_97_10.is_valid(characters[4:].upper() + characters[:4].upper()) else None
    return None


_SSN_WORDS = Context(r"ssns?|social security|social|soc sec|itin|tax ?payer|ss ?(?:no|num|number|#)")
_SSN = compiled(r"\b(?:[0-9lIOoSBZGbDQ]{3}([ .\-])[0-9lIOoSBZGbDQ]{2}[ .\-][0-9lIOoSBZGbDQ]{4}|[0-9lIOSBZG]{9})\b")


def scan_ssns(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_SSN, octets):
        start, end = match.span()
        if joined_before(octets, start) or (octets[end : end + 1] == b"-" and octets[end + 1 : end + 2].isalnum()):
            continue
        found, separator = match[0], match[1]
        num_digits = sum(48 <= octet <= 57 for octet in found)
        if separator is not None and found[6:7] != separator:
            continue
        if separator == b"-" and num_digits == 9:
            yield start, end, 1.0
        elif num_digits >= 5 and _SSN_WORDS.before(octets, start):
            yield start, end, 0.9


CARD = Rule("CREDIT_CARD", 23, scan_cards, r"\b\d[\d .\-]{0,24}", gate=r"\d(?:[ .\-]?\d){11}")
IBAN = Rule(
    "IBAN",
    _MAX_IBAN,
    scan_ibans,
    r"\b[A-Za-z](?:[A-Za-z](?:\d(?:\d(?:[ \-]?[A-Za-z0-9]){0,46}[ \-]?)?)?)?",
    gate=r"[A-Za-z]{2}\d{2}",
)
SSN = Rule(
    "SSN",
    11,
    scan_ssns,
    r"\b\w{1,9}(?:[ .\-](?:\w{1,2}(?:[ .\-](?:\w{1,4}-?)?)?)?)?|\b\w{9}-",
    gate=r"[0-9lIOoSBZGbDQ]{2}[ .\-][0-9lIOoSBZGbDQ]{4}|[0-9lIOSBZG]{9}",
    look_ahead=2,
)
