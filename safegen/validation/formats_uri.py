"""Formats `uri`, `uri-reference` (RFC 3986), `iri`, `iri-reference` (RFC 3987), `uri-template` (RFC 6570),
`json-pointer` (RFC 6901) and `relative-json-pointer`. Each text is split at its delimiters once, and every part is
checked character by character.
"""

from __future__ import annotations

from safegen.validation.formats_net import ALPHANUMERIC, HEX_DIGITS, is_ipv6
from safegen.validation.formats_time import DIGITS

_UNRESERVED = ALPHANUMERIC | frozenset("-._~")
_SUB_DELIMITERS = frozenset("!$&'()*+,;=")
_USER = _UNRESERVED | _SUB_DELIMITERS | {":"}
_NAME = _UNRESERVED | _SUB_DELIMITERS
_PATH = _USER | {"@", "/"}
_QUERY = _PATH | {"?"}
_SCHEME = ALPHANUMERIC | frozenset("+-.")
_UCS_RANGES = (
    (0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF),
    *((plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)), (0xE1000, 0xEFFFD),
)  # fmt: skip
_PRIVATE_RANGES = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_VARIABLE = ALPHANUMERIC | {"_"}
_TEMPLATE_OPERATORS = frozenset("+#./;?&=,!@|")  # the last five are reserved by RFC 6570, but legal


def _is_made_of(text: str, allowed: frozenset[str], *, is_iri: bool, private: bool = False) -> bool:
    """Allowed characters, `%XX`, and for an IRI the characters of ucschar (and iprivate)."""
    position = 0
    while position < len(text):
        char = text[position]
        if char == "%":
            if not _is_escape(text, position):
                return False
            position += 2
        elif char not in allowed and not (is_iri and _is_ucs(char, private)):
            return False
        position += 1
    return True


def _is_escape(text: str, position: int) -> bool:
    digits = text[position + 1 : position + 3]
    return len(digits) == 2 and HEX_DIGITS.issuperset(digits)


def _is_ucs(char: str, private: bool) -> bool:
    point = ord(char)
    if point < 0xA0:
        return False
    ranges = _UCS_RANGES + _PRIVATE_RANGES if private else _UCS_RANGES
    return any(low <= point <= high for low, high in ranges)


def is_uri(text: str) -> bool:
    return _is_reference(text, is_iri=False, needs_scheme=True)


def is_uri_reference(text: str) -> bool:
    return _is_reference(text, is_iri=False, needs_scheme=False)


def is_iri(text: str) -> bool:
    return _is_reference(text, is_iri=True, needs_scheme=True)


def is_iri_reference(text: str) -> bool:
    return _is_reference(text, is_iri=True, needs_scheme=False)


def _is_reference(text: str, *, is_iri: bool, needs_scheme: bool) -> bool:
    before_fragment, _, fragment = text.partition("#")
    hierarchy, _, query = before_fragment.partition("?")
    if not _is_made_of(fragment, _QUERY, is_iri=is_iri):
        return False
    if not _is_made_of(query, _QUERY, is_iri=is_iri, private=True):
        return False
    head, colon, rest = hierarchy.partition(":")
    if colon and _is_scheme(head):
        return _is_hierarchy(rest, is_iri)
    if needs_scheme:
        return False
    # Without a scheme the first segment of a relative path must not hold a colon.
    return _is_hierarchy(hierarchy, is_iri) and (hierarchy.startswith("/") or ":" not in hierarchy.partition("/")[0])


def _is_scheme(text: str) -> bool:
    return bool(text) and text[0] in ALPHANUMERIC and text[0] not in DIGITS and _SCHEME.issuperset(text)


def _is_hierarchy(text: str, is_iri: bool) -> bool:
    """`//authority/path`, or a path."""
    if not text.startswith("//"):
        return _is_made_of(text, _PATH, is_iri=is_iri)
    authority, _, path = text[2:].partition("/")
    return _is_authority(authority, is_iri) and _is_made_of(path, _PATH, is_iri=is_iri)


def _is_authority(text: str, is_iri: bool) -> bool:
    user, at, host_and_port = text.rpartition("@")
    if at and not _is_made_of(user, _USER, is_iri=is_iri):
        return False
    if host_and_port.startswith("["):
        host, bracket, port = host_and_port[1:].partition("]")
        return bool(bracket) and _is_ip_literal(host) and (not port or (port[0] == ":" and DIGITS.issuperset(port[1:])))
    host, _, port = host_and_port.partition(":")
    return DIGITS.issuperset(port) and _is_made_of(host, _NAME, is_iri=is_iri)


def _is_ip_literal(text: str) -> bool:
    if text[:1] not in ("v", "V"):
        return is_ipv6(text)
    version, dot, address = text[1:].partition(".")
    return bool(version and dot and address) and HEX_DIGITS.issuperset(version) and _USER.issuperset(address)


def is_uri_template(text: str) -> bool:
    position = 0
    while position < len(text):
        char = text[position]
        if char == "{":
            end = text.find("}", position)
            if end < 0 or not _is_expression(text[position + 1 : end]):
                return False
            position = end
        elif char == "%":
            if not _is_escape(text, position):
                return False
        elif char in '"<>\\^`{|} ' or char < " " or char == "\x7f" or (char > "~" and not _is_ucs(char, private=True)):
            return False
        position += 1
    return True


def _is_expression(text: str) -> bool:
    variables = text[1:] if text[:1] in _TEMPLATE_OPERATORS else text
    return all(_is_variable_spec(spec) for spec in variables.split(","))


def _is_variable_spec(text: str) -> bool:
    name, colon, length = text.partition(":")
    if colon and not (1 <= len(length) <= 4 and DIGITS.issuperset(length) and length[0] != "0"):
        return False
    if not colon and name.endswith("*"):
        name = name[:-1]
    parts = name.split(".")
    return all(part and _is_made_of(part, _VARIABLE, is_iri=False) for part in parts)


def is_json_pointer(text: str) -> bool:
    if text and not text.startswith("/"):
        return False
    return all(piece[:1] in ("0", "1") for piece in text.split("~")[1:])


def is_relative_json_pointer(text: str) -> bool:
    """Levels up, an optional index shift such as `+1`, then `#` or a JSON Pointer (draft-bhutton-...-00)."""
    rest = _after_integer(text)
    if rest is not None and rest[:1] in ("+", "-"):
        rest = _after_integer(rest[1:])
    return rest is not None and (rest == "#" or is_json_pointer(rest))


def _after_integer(text: str) -> str | None:
    """What follows a non-negative integer without leading zeros; None when there is none."""
    rest = text.lstrip("0123456789")
    number = text[: len(text) - len(rest)]
    return rest if number == "0" or (number and number[0] != "0") else None
