"""Phone numbers: international ones by their country's possible lengths (phonenumbers), North American groups, national
ones with a trunk zero, and any grouping of 7 to 13 digits behind a word such as "call" or "mobile:".

A number is matched with its extension. Area codes are not looked up: what looks like a number is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.pii.context import Context, joined_after, joined_before
from safegen.guards.reading import compiled, overlapping

_MAX_LENGTH = 48
_CALLED = Context(
    r"phones?|tel|telefon\w{0,2}|telephone|mobile?|movil|cell|celular|cellphone|handy|fax|call|called|calling|dial"
    r"|ring|text (?:me|us|him|her|them)(?: at| on)?|sms|whats ?app|viber|reach(?:ed)?|messages? to|answering|hotline"
    r"|landline|desk|contact|numero|my (?:registered|number)|registered|pager|phone ?(?:number|no)?|rufnummer|portable",
    nearest=True,
)
_EXTENSION = compiled(r" ?(?:x|ext\.?|#) ?\d{1,6}\b", ignore_case=True)
_INTERNATIONAL = compiled(r"\+ ?\(?\d{1,3}\)?(?:[ .\-/]{0,2}\(?\d{1,12}\)?){1,7}")
_NORTH_AMERICAN = compiled(r"(?:\b1[ .\-]{1,2})?(?:\(\d{3}\)[ \-]?|\b\d{3}[ .\-/])\d{3}[ .\-]\d{4}")
_TRUNK = compiled(r"(?:\b0\d{1,4}|\(0\d{1,4}\))(?:[ .\-/]{1,2}\d{2,8}){1,5}")
_GROUPED = compiled(r"\b\d{2,12}(?:[ .\-/]{1,2}\d{2,8}){0,5}")
_SEPARATORS = b" ().-/+"
_TO_SPACE = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
_DIGITS = compiled(r"\d+")
_DATE = compiled(r"\d{4}[./\-]\d{1,2}[./\-]\d{1,2}|\d{1,2}[./\-]\d{1,2}[./\-]\d{4}")
_LIVE = r"[+(\d][\d ().\-/+]{0,50}(?i: ?(?:#|x|ext?\.?|e) ?\d{0,7})?"


def scan(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_INTERNATIONAL, octets):
        end = _international_end(octets, match)
        if end is not None:
            yield from _whole(octets, match.start(), end, 1.0)
    for match in overlapping(_NORTH_AMERICAN, octets):
        start, end = match.span()
        area = match[0].lstrip(b"1 .-(")[:1]
        if not joined_before(octets, start) and (area >= b"2" or _CALLED.before(octets, start)):
            yield from _whole(octets, start, end, 0.9)
    for match in overlapping(_TRUNK, octets):
        if _is_trunk(octets, match):
            yield from _whole(octets, match.start(), match.end(), 0.8)
    for match in overlapping(_GROUPED, octets):
        if _is_called(octets, match):
            yield from _whole(octets, match.start(), match.end(), 0.7)


def _whole(octets: bytes, start: int, end: int, score: float) -> Iterator[Candidate]:
    extension = _EXTENSION.match(octets, end)
    end = end if extension is None else extension.end()
    if end - start <= _MAX_LENGTH and not joined_after(octets, end):
        yield start, end, score


def _international_end(octets: bytes, match: Any) -> int | None:
    """The longest beginning of the match, by whole groups, that its country has numbers of the length of."""
    start = match.start()
    if octets[max(0, start - 1) : start].isalnum():
        return None
    ends = [group.end() for group in _DIGITS.finditer(octets[start : match.end()])]
    for end in reversed(ends):
        text = octets[start : start + end].replace(b"(0)", b"")
        digits = bytes(octet for octet in text if 48 <= octet <= 57).decode()
        if 8 <= len(digits) <= 15 and _is_possible(digits):
            return int(start + end)
    return None


@lru_cache(maxsize=4096)
def _is_possible(digits: str) -> bool:
    """Whether +digits has a length that its country uses."""
    if digits[0] == "1":
        return len(digits) == 11
    import phonenumbers

    try:
        return bool(phonenumbers.is_possible_number(phonenumbers.parse("+" + digits)))
    except phonenumbers.NumberParseException:
        return False


def _num_digits(found: bytes) -> int:
    return len(found.translate(None, _SEPARATORS))


def _is_trunk(octets: bytes, match: Any) -> bool:
    found: bytes = match[0]
    if not 9 <= _num_digits(found) <= 12 or joined_before(octets, match.start()) or _DATE.match(found):
        return False
    num_groups = len(found.translate(_TO_SPACE).split())
    return num_groups >= 3 or found[:1] == b"(" or _CALLED.before(octets, match.start())


def _is_called(octets: bytes, match: Any) -> bool:
    found: bytes = match[0]
    if not 7 <= _num_digits(found) <= 13 or joined_before(octets, match.start()) or _DATE.match(found):
        return False
    return _CALLED.before(octets, match.start())


# Seven digits, and at most four octets between two of them ("+1 (416) 555-0199").
RULE = Rule("PHONE", _MAX_LENGTH, scan, _LIVE, gate=r"\d(?:[ ().\-/+]{0,4}\d){6}", look_ahead=3)
