"""Addresses of machines and the credentials in URLs: IPv4, IPv6 (ipaddress decides), MAC, `//user:password@`.

Not matched: the addresses that name no machine (0.0.0.0, 127.0.0.1, 255.255.255.255, ::, ::1), version numbers behind a
word that says so, and IPv6 look-alikes of programs (`a::b`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from safegen.guards.pattern_rules import Candidate, Rule
from safegen.guards.pii.context import Context, joined_after, joined_before
from safegen.guards.reading import compiled, overlapping

_IPV4 = compiled(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b")
_VERSION = Context(r"v|ver|versions?|release|build|firmware|section|chapter|oid", within=12, nearest=True)
_NOWHERE = {b"0.0.0.0", b"127.0.0.1", b"255.255.255.255"}
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_IPV6 = compiled(r"[0-9A-Fa-f:.]{3,}")
_MAC = compiled(
    r"\b(?:[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})\b"
)
_CREDENTIALS = compiled(r"//([^\s/@:\"'<>]{1,64}:[^\s/@\"'<>]{1,64})@")


def scan_ipv4(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_IPV4, octets):
        start, end = match.span()
        if match[0] in _NOWHERE or any(int(part) > 255 for part in match[0].split(b".")):
            continue
        if joined_before(octets, start) or joined_after(octets, end) or _VERSION.before(octets, start):
            continue
        yield start, end, 1.0


def scan_ipv6(octets: bytes) -> Iterator[Candidate]:
    """Whole runs of hexadecimal digits and colons only; a run that is longer than any address holds none."""
    for match in _IPV6.finditer(octets):
        start, end = match.span()
        around = octets[max(0, start - 1) : start] + octets[end : end + 1]
        address = match[0].rstrip(b":.") if not match[0].endswith(b"::") else match[0]
        if len(match[0]) < 46 and not any(chr(o).isalnum() or o == 95 for o in around) and _is_ipv6(address):
            yield start, start + len(address), 1.0


def _is_ipv6(address: bytes) -> bool:
    if address.count(b":") < 2 or address.startswith(b".") or not any(48 <= octet <= 57 for octet in address):
        return False
    groups = [group for group in address.split(b":") if group]
    if len(groups) < 3 and max(map(len, groups), default=0) < 4:
        return False
    try:
        return bool(ipaddress.IPv6Address(address.decode()))
    except ValueError:
        return False


def scan_macs(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_MAC, octets):
        start, end = match.span()
        before, after = octets[max(0, start - 1) : start], octets[end : end + 1]
        if before not in (b":", b"-", b".") and after not in (b":", b"-") and not match[0].isdigit():
            yield start, end, 1.0


def scan_credentials(octets: bytes) -> Iterator[Candidate]:
    for match in overlapping(_CREDENTIALS, octets):
        yield *match.span(1), 1.0


IPV4 = Rule("IP_ADDRESS", 15, scan_ipv4, r"\b\d[\d.]{0,17}", gate=r"\d\.\d{1,3}\.\d", look_ahead=2)
IPV6 = Rule("IP_ADDRESS", 46, scan_ipv6, r"[0-9A-Fa-f:.]{1,48}", gate=":[0-9A-Fa-f]{0,4}:", look_ahead=1)
MAC = Rule(
    "MAC_ADDRESS", 17, scan_macs, r"\b[0-9A-Fa-f][0-9A-Fa-f:.\-]{0,18}", gate=r"[0-9A-Fa-f]{2}[:.\-][0-9A-Fa-f]{2}"
)
CREDENTIALS = Rule("URL_CREDENTIALS", 131, scan_credentials, r"/(?:/[^\s/@\"'<>]{0,131})?", gate="//")
