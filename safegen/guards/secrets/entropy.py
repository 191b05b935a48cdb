"""Secrets without a form of their own: values that look drawn at random, behind a name such as `api_key =`.

Both are asked for. The name is one of a list and right before the value (an assignment, a colon, a header, "is"); the
value has 12 to 256 characters, enough entropy (Shannon, of its own characters) and changes between kinds of characters
as random strings do and identifiers do not. A quoted password may be shorter. Placeholders are no secrets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.reading import compiled

_NAMES = (
    r"(?:api|access|secret|private|auth|signing|encryption|account|master|service|consumer|client|app|deploy)"
    r"[_\- ]?(?:key|secret|token)|secrets?|tokens?|passwords?|passwd|passphrase|pwd|credentials?|bearer|api"
    r"|authorization"
)
_NAMED = compiled(
    rf"(?:{_NAMES})(?:[_\-.][A-Za-z0-9_\-]{{0,16}})?[\"'`\]]{{0,2}}(?: ?(?:=>|:=|=|:|,) ?| is (?:now )?| )"
    r"(?:[\"'`(]{0,2}|Bearer |Basic |token )\z",
    ignore_case=True,
)
_PASSWORD = compiled(
    r"(?:passwords?|passwd|passphrase|pwd)[\"'`\]]{0,2}(?: ?(?:=>|:=|=|:) ?| is )[\"'`]?\z", ignore_case=True
)
_VALUE = compiled(r"[A-Za-z0-9_\-+/=.~]{12,}")
_SHORT = compiled(r"[^\s\"'`,;<>(){}\[\]\xaa\xa4]{8,}")
_PLACEHOLDER = compiled(
    r"example|sample|dummy|placeholder|change.?me|your|xxxx|1234567|abcdef|redacted|insert|todo|test_?key|environ|getenv"
    r"|\*\*\*|\.\.\.|<|\$\{|null|none|undefined|lorem",
    ignore_case=True,
)
_LOWER, _UPPER, _DIGIT, _OTHER = range(4)


def scan(octets: bytes) -> Iterator[Candidate]:
    for match in _VALUE.finditer(octets):
        start, value = match.start(), match[0].rstrip(b".=")
        if len(match[0]) <= 256 and looks_random(value) and _NAMED.search(octets[max(0, start - 48) : start]):
            yield start, start + len(value), 0.8
    yield from _passwords(octets)


def _passwords(octets: bytes) -> Iterator[Candidate]:
    for match in _SHORT.finditer(octets):
        start, value = match.start(), match[0].rstrip(b".:!?")
        named = octets[max(0, start - 24) : start]
        if len(match[0]) > 64 or len(value) < 8:
            continue
        if len({*map(_kind, value)}) >= 3 and not _PLACEHOLDER.search(value) and _PASSWORD.search(named):
            yield start, start + len(value), 0.7


def looks_random(value: bytes) -> bool:
    """Whether a value looks drawn, not written."""
    kinds = [kind for kind in map(_kind, value) if kind != _OTHER]
    if kinds.count(_DIGIT) < 2 or len({*kinds}) < 2 or _PLACEHOLDER.search(value):
        return False
    # A capital before small letters begins a word of an identifier, so that change says nothing.
    changes = sum(left != right and (left, right) != (_UPPER, _LOWER) for left, right in zip(kinds, kinds[1:]))
    return changes >= 0.22 * len(value) and entropy_bits(value) >= min(3.4, 0.8 * math.log2(len(value)))


def entropy_bits(value: bytes) -> float:
    """Shannon entropy of the octets of a value, in bits an octet."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


def _kind(octet: int) -> int:
    if 97 <= octet <= 122:
        return _LOWER
    if 65 <= octet <= 90:
        return _UPPER
    return _DIGIT if 48 <= octet <= 57 else _OTHER


_APART = r"\s\"'`,;<>(){}\[\]\xaa\xa4"
# A digit, or, as a value is of three kinds, a sign that does not just end a word.
_GATE = rf"[0-9]|[^A-Za-z0-9{_APART}][A-Za-z]|[^A-Za-z0-9.:!?{_APART}]"
RULE = Rule("named_secret", 256, scan, rf"[^{_APART}]+", _GATE, look_ahead=2)
