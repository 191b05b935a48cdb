"""E-mail addresses (RFC 5321 shapes), also with %40 for @ and as "name [at] host [dot] org".

A match is the run of local-part characters before the sign, at most 64, and the longest part of the run behind it that
ends in a top-level label. Homoglyphs are read as what they look like.
"""

from __future__ import annotations

from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.reading import compiled

_MAX_LOCAL, _MAX_DOMAIN = 64, 128
_ALNUM = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789\xaa"
_LOCAL_SET, _DOMAIN_SET = _ALNUM + b"._+-'", _ALNUM + b".-"
_LOCAL, _DOMAIN = r"[A-Za-z0-9\xaa._+'\-]", r"[A-Za-z0-9\xaa.\-]"
_AT = compiled(r"@|%40")
_OPEN, _CLOSE = r" ?[\[({] ?", r" ?[\])}] ?"
_SPELLED_AT = compiled(rf"{_OPEN}at{_CLOSE}", ignore_case=True)
_SPELLED_DOMAIN = compiled(
    rf"[a-z0-9\-]{{1,40}}(?:(?:\.|{_OPEN}dot{_CLOSE})[a-z0-9\-]{{1,40}}){{1,4}}", ignore_case=True
)
_MAX_LENGTH = 192
_LIVE = (
    rf"{_LOCAL}{{1,64}}(?: ?|@{_DOMAIN}{{0,130}}|%(?:4(?:0{_DOMAIN}{{0,130}})?)?"
    rf"|{_OPEN}(?:[aA](?:[tT] ?(?:[\])}}][A-Za-z0-9.\- \[\](){{}}]{{0,200}})?)?)?)"
)


def scan(octets: bytes) -> Iterator[Candidate]:
    for sign in _AT.finditer(octets):
        local_start = _local_start(octets, sign.start())
        domain_end = _domain_end(octets, sign.end())
        if local_start is not None and domain_end is not None and not _is_password(octets, local_start):
            yield local_start, domain_end, 1.0
    for sign in _SPELLED_AT.finditer(octets):
        local_start = _local_start(octets, sign.start())
        domain = _SPELLED_DOMAIN.match(octets, sign.end())
        if local_start is not None and domain is not None and domain.end() - local_start <= _MAX_LENGTH:
            yield local_start, domain.end(), 0.9


def _local_start(octets: bytes, end: int) -> int | None:
    window = octets[max(0, end - _MAX_LOCAL) : end]
    local = window[len(window.rstrip(_LOCAL_SET)) :].lstrip(b".'-")
    return None if not local or not local[-1:].strip(b".") else end - len(local)


def _domain_end(octets: bytes, start: int) -> int | None:
    window = octets[start : start + _MAX_DOMAIN]
    labels = window[: len(window) - len(window.lstrip(_DOMAIN_SET))].split(b".")
    while len(labels) > 1 and not _is_top_level(labels[-1]):
        labels.pop()
    return start + len(b".".join(labels)) if len(labels) > 1 and all(labels) else None


def _is_top_level(label: bytes) -> bool:
    return label.lower().startswith(b"xn--") or (
        2 <= len(label) <= 24 and not label.strip(_ALNUM) and not _digits(label)
    )


def _digits(label: bytes) -> bool:
    return any(48 <= octet <= 57 for octet in label)


def _is_password(octets: bytes, start: int) -> bool:
    """Whether what looks like a local part is the end of `//user:password` in a URL."""
    before = octets[max(0, start - 64) : start]
    return before.endswith(b":") and b"//" in before.rsplit(b" ", 1)[-1]


RULE = Rule("EMAIL", _MAX_LENGTH, scan, _LIVE, gate=r"@|%40|(?i)[\[({] ?at ?[\])}]", look_ahead=2)
