"""IDNA 2008 labels: which Unicode labels are legal (RFC 5891, 5892, 5893), and their Punycode form (RFC 3492).

The derived property of RFC 5892 is computed from `unicodedata` by its own rules, so it follows this Python's Unicode
version. Two of its inputs are not in the standard library: scripts, taken from character names (only for the five
scripts that the CONTEXTO rules ask about), and joining types, taken from the Arabic presentation forms; a letter
without presentation forms counts as non-joining, so that a ZERO WIDTH NON-JOINER beside it is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

_VIRAMA_CLASS = 9
_ZWNJ, _ZWJ = "\u200c", "\u200d"
_PVALID_EXCEPTIONS = frozenset("\u00df\u03c2\u06fd\u06fe\u0f0b\u3007")
_DISALLOWED_EXCEPTIONS = frozenset("\u0640\u07fa\u302e\u302f\u3031\u3032\u3033\u3034\u3035\u303b")
_LETTER_DIGIT_CATEGORIES = frozenset(("Ll", "Lu", "Lo", "Nd", "Lm", "Mn", "Mc"))
_IGNORABLE_BLOCKS = ((0x20D0, 0x20FF), (0x1D100, 0x1D1FF), (0x1D200, 0x1D24F))
_OLD_HANGUL_JAMO = ((0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB))
_DEFAULT_IGNORABLE = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip


def _within(char: str, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= ord(char) <= high for low, high in ranges)


def _is_pvalid(char: str) -> bool:
    """The derived property PVALID of RFC 5892, section 3 (context-dependent characters excluded)."""
    if char in _PVALID_EXCEPTIONS:
        return True
    if char in _DISALLOWED_EXCEPTIONS:
        return False
    if char.isascii():
        return char == "-" or char.isdigit() or char.islower()
    if _within(char, _OLD_HANGUL_JAMO) or _within(char, _DEFAULT_IGNORABLE) or _within(char, _IGNORABLE_BLOCKS):
        return False
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    return folded == char and unicodedata.category(char) in _LETTER_DIGIT_CATEGORIES


def _script_is(char: str, *scripts: str) -> bool:
    return unicodedata.name(char, "").startswith(scripts)


def _is_legal_in_context(label: str, position: int) -> bool | None:
    """The verdict of the contextual rule (RFC 5892, appendix A) for a character; None when it has no rule."""
    char, before, after = label[position], label[:position][-1:], label[position + 1 : position + 2]
    if char in (_ZWNJ, _ZWJ):
        if before and unicodedata.combining(before) == _VIRAMA_CLASS:
            return True
        return char == _ZWNJ and _joins_across(label, position)
    if char == "\u00b7":
        return before == "l" == after
    if char == "\u0375":
        return bool(after) and _script_is(after, "GREEK")
    if char in "\u05f3\u05f4":
        return bool(before) and _script_is(before, "HEBREW")
    if char == "\u30fb":
        return any(
            each != char and _script_is(each, "HIRAGANA", "KATAKANA LETTER", "CJK UNIFIED", "CJK COMPAT", "IDEOGRAPHIC")
            for each in label
        )
    if "\u0660" <= char <= "\u0669":
        return not any("\u06f0" <= each <= "\u06f9" for each in label)
    if "\u06f0" <= char <= "\u06f9":
        return not any("\u0660" <= each <= "\u0669" for each in label)
    return None


def _joins_across(label: str, position: int) -> bool:
    """(L|D) T* ZWNJ T* (R|D) around a position."""
    forms = _joining_forms()
    before, after = position - 1, position + 1
    while before >= 0 and _is_transparent(label[before]):
        before -= 1
    while after < len(label) and _is_transparent(label[after]):
        after += 1
    if before < 0 or after == len(label):
        return False
    return "<initial>" in forms.get(label[before], ()) and "<final>" in forms.get(label[after], ())


def _is_transparent(char: str) -> bool:
    return char not in (_ZWNJ, _ZWJ) and unicodedata.category(char) in ("Mn", "Me", "Cf")


@cache
def _joining_forms() -> dict[str, frozenset[str]]:
    """The presentation forms each Arabic letter has: initial and final for dual-joining, final for right-joining."""
    forms: dict[str, set[str]] = {}
    for point in range(0xFB50, 0xFEFD):
        kind, _, letters = unicodedata.decomposition(chr(point)).partition(" ")
        if kind.startswith("<") and len(letters) == 4:
            forms.setdefault(chr(int(letters, 16)), set()).add(kind)
    return {letter: frozenset(kinds) for letter, kinds in forms.items()}


def is_u_label(label: str) -> bool:
    """A label with at least one non-ASCII character that IDNA 2008 allows, as written (NFC, lower case)."""
    if not label or label.isascii() or unicodedata.normalize("NFC", label) != label:
        return False
    if label[0] == "-" or label[-1] == "-" or label[2:4] == "--" or unicodedata.category(label[0]).startswith("M"):
        return False
    for position, char in enumerate(label):
        in_context = _is_legal_in_context(label, position)
        if not (_is_pvalid(char) if in_context is None else in_context):
            return False
    return is_bidi_domain([label]) and 4 + len(label.encode("punycode")) <= 63


def label_of_a_label(label: str) -> str:
    """The Unicode form of an A-label; "" when the Punycode is malformed or not the canonical one."""
    encoded = label[4:].lower()
    if len(label) > 63 or not encoded:
        return ""
    try:
        decoded = encoded.encode("ascii").decode("punycode")
        return decoded if decoded.encode("punycode").decode("ascii") == encoded else ""
    except (UnicodeError, ValueError, OverflowError):
        return ""


def is_a_label(label: str) -> bool:
    """`xn--` and the Punycode of a legal U-label."""
    return is_u_label(label_of_a_label(label))


def is_bidi_domain(labels: Sequence[str]) -> bool:
    """The Bidi rule of RFC 5893 on every label, when any label has a right-to-left character."""
    classes = [[unicodedata.bidirectional(char) for char in label] for label in labels]
    if not any(each in ("R", "AL", "AN") for label in classes for each in label):
        return True
    return all(_obeys_bidi_rule(label) for label in classes)


def _obeys_bidi_rule(classes: list[str]) -> bool:
    core = list(classes)
    while core and core[-1] == "NSM":
        core.pop()
    if not core:
        return False
    if classes[0] in ("R", "AL"):
        if not {"R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"}.issuperset(classes):
            return False
        return core[-1] in ("R", "AL", "EN", "AN") and not ("EN" in classes and "AN" in classes)
    if classes[0] == "L":
        return {"L", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"}.issuperset(classes) and core[-1] in ("L", "EN")
    return False
