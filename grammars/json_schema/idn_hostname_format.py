"""The format "idn-hostname": a part of the host names of IDNA 2008 (RFC 5890 to 5893), all of it valid.

A label with characters beyond ASCII has at most `_MAX_LABEL_CHARS` of them (so that its Punycode is short enough), all
from the basic plane, protocol-valid by themselves, neither marks nor right-to-left; so no contextual, composition or
direction rule can apply. A name that has such labels has at most three labels.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.unicode_sets import ALL, Ranges, normalise

_MAX_LABEL_CHARS = 11
_EXCEPTIONS = "\u00df\u03c2\u0f0b\u3007"
_DISALLOWED = "\u0640\u07fa\u3031\u3032\u3033\u3034\u3035\u303b\u3164\uffa0"
_CATEGORIES = frozenset(("Ll", "Lo", "Lm", "Nd"))
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))
_OLD_HANGUL = ((0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB))
_DOTS: Ranges = ((0x2E, 0x2E), (0x3002, 0x3002), (0xFF0E, 0xFF0E), (0xFF61, 0xFF61))
_NOT_ASCII: Ranges = ((0x80, 0x10FFFF),)


@cache
def _label_chars() -> Ranges:
    every = map(chr, range(0x80, 0xD800))
    joined = {chr(int(parts[1], 16)) for char in every if len(parts := unicodedata.decomposition(char).split()) == 2}
    return normalise((code, code) for code in range(0x2D, 0xFFF0) if _stands_alone(chr(code), joined))


def _stands_alone(char: str, joined: set[str]) -> bool:
    """Whether a label may have the character anywhere, whatever is beside it. joined: those that may compose."""
    if char.isascii():
        return char.isdigit() or char.islower()
    if char in _EXCEPTIONS:
        return True
    if unicodedata.category(char) not in _CATEGORIES or char in _DISALLOWED or char in joined:
        return False
    if unicodedata.bidirectional(char) in _RIGHT_TO_LEFT or any(low <= ord(char) <= high for low, high in _OLD_HANGUL):
        return False
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    return folded == char and unicodedata.combining(char) == 0


def idn_hostname_expr(lower: RegexLowering, ascii_label: int) -> int:
    """ascii_label: the labels of "hostname"."""
    builder = lower.builder
    end = builder.chars(_label_chars())
    inner = builder.alternate([end, builder.literal(b"-")])
    middle = builder.concat([builder.repeat(inner, 0, _MAX_LABEL_CHARS - 2), end])
    char, anything = builder.chars(ALL), builder.any_text()
    hyphens = builder.concat([builder.repeat(char, 2, 2), builder.literal(b"--"), anything])
    beyond_ascii = builder.concat([anything, builder.chars(_NOT_ASCII), anything])
    written = builder.concat([end, builder.repeat(middle, 0, 1)])
    u_label = builder.intersect([written, beyond_ascii, builder.complement(hyphens)])
    dot = builder.chars(_DOTS)
    label = builder.alternate([ascii_label, u_label])
    mixed = builder.concat([label, builder.repeat(builder.concat([dot, label]), 0, 2)])
    plain = builder.concat([ascii_label, builder.repeat(builder.concat([dot, ascii_label]), 0, None)])
    return builder.alternate([mixed, builder.intersect([plain, builder.repeat(char, 1, 253)])])
