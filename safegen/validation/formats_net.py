"""Formats `ipv4`, `ipv6`, `email`, `idn-email`, `hostname`, `idn-hostname`, `uuid`.

Sources: RFC 2673 3.2 (ipv4), RFC 4291 2.2 (ipv6, no zone), the Mailbox rule of RFC 5321 and its extension by RFC 6531
(email, idn-email), RFC 1123 with RFC 5891 for A-labels (hostname), RFC 5890 (idn-hostname), RFC 4122 (uuid).
"""

from __future__ import annotations

from collections.abc import Callable

from safegen.validation.formats_time import DIGITS
from safegen.validation.idna import is_a_label, is_bidi_domain, is_u_label, label_of_a_label

HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
ALPHANUMERIC = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ATOM = ALPHANUMERIC | frozenset("!#$%&'*+-/=?^_`{|}~")
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")


def is_ipv4(text: str) -> bool:
    parts = text.split(".", 4)
    return len(parts) == 4 and all(_is_octet(part) for part in parts)


def _is_octet(text: str) -> bool:
    if not 1 <= len(text) <= 3 or not DIGITS.issuperset(text) or (text[0] == "0" and len(text) > 1):
        return False
    return int(text) < 256


def is_ipv6(text: str) -> bool:
    """Eight groups, the last two possibly as an IPv4 address; one `::` stands for at least one group."""
    left, gap, right = text.partition("::")
    if not gap:
        return _group_count(left, may_end_in_ipv4=True) == 8
    counts = _group_count(left, may_end_in_ipv4=False), _group_count(right, may_end_in_ipv4=True)
    return min(counts) >= 0 and sum(counts) <= 7


def _group_count(text: str, *, may_end_in_ipv4: bool) -> int:
    """16-bit groups in a colon-separated run ("" has none); -1 when it is not one."""
    if not text:
        return 0
    groups = text.split(":", 8)
    count = len(groups)
    if may_end_in_ipv4 and "." in groups[-1]:
        if not is_ipv4(groups.pop()):
            return -1
        count += 1
    return count if all(1 <= len(group) <= 4 and HEX_DIGITS.issuperset(group) for group in groups) else -1


def is_uuid(text: str) -> bool:
    return [len(part) for part in text.split("-", 5)] == [8, 4, 4, 4, 12] and HEX_DIGITS.issuperset(
        text.replace("-", "")
    )


def is_email(text: str) -> bool:
    return _is_mailbox(text, str.isascii, lambda domain: domain.isascii() and _is_ldh_domain(domain))


def is_idn_email(text: str) -> bool:
    # RFC 6531 puts U-labels into sub-domain by "UTF8-non-ascii" of RFC 6532: any other character, in any form.
    return _is_mailbox(text, lambda char: True, _is_utf8_domain)


def _is_mailbox(text: str, is_allowed: Callable[[str], bool], is_domain: Callable[[str], bool]) -> bool:
    if text.startswith('"'):
        end = _quoted_string_end(text, is_allowed)
        if end < 0 or text[end : end + 1] != "@":
            return False
    else:
        end = text.find("@")
        if end < 0 or not all(_is_atom(atom, is_allowed) for atom in text[:end].split(".")):
            return False
    domain = text[end + 1 :]
    if domain.startswith("[") and domain.endswith("]"):
        return _is_address_literal(domain[1:-1])
    return is_domain(domain)


def _is_atom(atom: str, is_allowed: Callable[[str], bool]) -> bool:
    return bool(atom) and all(char in _ATOM or (char >= "\x80" and is_allowed(char)) for char in atom)


def _quoted_string_end(text: str, is_allowed: Callable[[str], bool]) -> int:
    """Position after the closing quote of the quoted string at the start, -1 when there is none."""
    position = 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return position + 1
        if char == "\\":
            position += 1
            char = text[position : position + 1]
            if not char or not " " <= char <= "~":
                return -1
        elif not (" " <= char <= "~" or (char >= "\x80" and is_allowed(char))):
            return -1
        position += 1
    return -1


def _is_address_literal(text: str) -> bool:
    """IPv4 or IPv6; no other tag of RFC 5321's General-address-literal has been standardized."""
    return is_ipv6(text[5:]) if text[:5].lower() == "ipv6:" else is_ipv4(text)


def _is_ldh_domain(domain: str) -> bool:
    """sub-domain *("." sub-domain) of RFC 5321: letters, digits and inner hyphens, no length limit."""
    return all(_is_ldh_label(label) for label in domain.split("."))


def _is_ldh_label(label: str) -> bool:
    return bool(label) and label[0] != "-" != label[-1] and all(char in ALPHANUMERIC or char == "-" for char in label)


def _is_utf8_domain(domain: str) -> bool:
    return all(_is_ldh_label("".join("a" if char >= "\x80" else char for char in part)) for part in domain.split("."))


def is_hostname(text: str) -> bool:
    """LDH labels of 1 to 63 characters, 253 in all; a label that starts with `xn--` is a valid A-label."""
    if not text.isascii() or len(text) > 253:
        return False
    labels = text.split(".")
    if not all(len(label) <= 63 and _is_ldh_label(label) for label in labels):
        return False
    tagged = [label for label in labels if label[2:4] == "--" and label[:2].lower() == "xn"]
    return all(is_a_label(label) for label in tagged)


def is_idn_hostname(text: str) -> bool:
    """Labels that are LDH labels, A-labels or U-labels (RFC 5890), separated by any of the four IDNA dots."""
    labels = text.translate(_DOTS).split(".")
    decoded: list[str] = []
    ascii_length = len(labels) - 1
    for label in labels:
        if label.isascii() and len(label) <= 63 and _is_ldh_label(label) and label[2:4] != "--":
            decoded.append(label)
            ascii_length += len(label)
        elif label[:4].lower() == "xn--" and label.isascii():
            if not is_a_label(label):
                return False
            decoded.append(label_of_a_label(label))
            ascii_length += len(label)
        elif label.isascii() or not is_u_label(label):
            return False
        else:
            decoded.append(label)
            ascii_length += 4 + len(label.encode("punycode"))
    return ascii_length <= 253 and is_bidi_domain(decoded)
