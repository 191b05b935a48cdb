"""Secrets with a structure of their own: private keys in PEM or OpenPGP armour, JSON Web Tokens, and credentials in
URLs and connection strings.

A private key is matched from its BEGIN line through its body, also where line breaks are spelled \\n, at most MAX_BODY
octets of it. A body with spaces in it (an indented one) is matched up to its first space run.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.reading import compiled, overlapping

MAX_BODY = 4096
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_BODY = _BASE64 + b"\r\n\t\\"
_URLSAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_END = compiled(r"-----END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----")
_LINES = r"(?:\s{0,3}[A-Z][A-Za-z\-]{2,16}: [^\n]{0,80}\n){0,3}"
_LIVE_KEY = (
    rf"-----(?:B(?:E(?:G(?:I(?:N(?: [A-Z0-9 ]*-*{_LINES}(?:\s{{0,3}}[A-Z]?[A-Za-z\-]{{0,16}}(?:: ?[^\n]{{0,80}})?"
    r"|[A-Za-z0-9+/=\s\\]*-*(?:E[A-Z0-9 ]*-*)?))?)?)?)?)?)?|-{1,5}"
)
_BEGIN = compiled(rf"-----BEGIN [A-Z0-9 ]{{0,24}}PRIVATE KEY(?: BLOCK)?-----{_LINES}")
_JWT = compiled(r"eyJ[A-Za-z0-9_\-]{8}")
_MAX_PART = 1024
_CONNECTION = compiled(r"\b[a-z][a-z0-9+.\-]{1,20}://[^\s/@:\"'<>]{0,64}:([^\s/@\"'<>{}$]{1,128})@", ignore_case=True)
_ACCOUNT_KEY = compiled(r"(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/]{40,88}={0,2})")


def scan_private_keys(octets: bytes) -> Iterator[Candidate]:
    for match in _BEGIN.finditer(octets):
        body = octets[match.end() : match.end() + MAX_BODY]
        end = match.end() + len(body) - len(body.lstrip(_BODY))
        closing = _END.match(octets, end)
        yield match.start(), end if closing is None else closing.end(), 1.0


def scan_tokens(octets: bytes) -> Iterator[Candidate]:
    """header.payload.signature; the header must be a JSON object."""
    for match in overlapping(_JWT, octets):
        start = match.start()
        before = octets[max(0, start - 1) : start]
        if before and before in _URLSAFE:
            continue
        end = _part(octets, start)
        if not _is_object(octets[start:end]):
            continue
        num_parts = 1
        while num_parts < 3 and octets[end : end + 1] == b"." and (behind := _part(octets, end + 1)) > end + 1:
            end, num_parts = behind, num_parts + 1
        if num_parts >= 2:
            yield start, end, 1.0


def _part(octets: bytes, start: int) -> int:
    window = octets[start : start + _MAX_PART]
    return start + len(window) - len(window.lstrip(_URLSAFE))


def _is_object(part: bytes) -> bool:
    try:
        decoded = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        return False
    return decoded.startswith(b'{"') and decoded.rstrip().endswith(b"}")


def scan_connections(octets: bytes) -> Iterator[Candidate]:
    for pattern in (_CONNECTION, _ACCOUNT_KEY):
        for match in overlapping(pattern, octets):
            yield *match.span(1), 1.0


PRIVATE_KEY = Rule("private_key", MAX_BODY + 450, scan_private_keys, _LIVE_KEY, "PRIVATE KEY", 70, hint="PRIVATE KEY")
TOKEN = Rule("json_web_token", 3 * _MAX_PART + 2, scan_tokens, r"\be(?:y(?:J[A-Za-z0-9_\-.]*)?)?", "eyJ", 2, hint="eyJ")
CONNECTION = Rule(
    "connection_string", 128, scan_connections, r"(?:://|=)[^\s/\"'<>]*|[A-Za-z0-9+/:=]+", gate="://|Key=", look_ahead=1
)
