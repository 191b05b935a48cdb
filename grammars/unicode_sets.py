r"""Sets of code points as sorted, disjoint, inclusive ranges, and the sets that regexes name.

Classes follow ECMA-262 with the `u` flag: `\d` and `\w` are ASCII, `\s` is WhiteSpace and LineTerminator, the dot
leaves out the four line terminators. `\p{...}` knows the general categories by the interpreter's own Unicode data, and
scripts and binary properties by `unicode_properties.json`, an excerpt of the Unicode Character Database: by names and
aliases, ranges as gaps and lengths in hexadecimal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

Ranges = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
ALL: Ranges = ((0, MAX_CODE_POINT),)
DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_TERMINATOR: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)

# General categories by their long names; a one-letter name stands for all that start with it.
_CATEGORIES = {
    "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Unassigned": "Cn", "Private_Use": "Co",
    "Surrogate": "Cs", "Letter": "L", "Cased_Letter": "LC", "Lowercase_Letter": "Ll", "Modifier_Letter": "Lm",
    "Other_Letter": "Lo", "Titlecase_Letter": "Lt", "Uppercase_Letter": "Lu", "Mark": "M", "Combining_Mark": "M",
    "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Nonspacing_Mark": "Mn", "Number": "N", "Decimal_Number": "Nd",
    "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P",
    "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Close_Punctuation": "Pe", "Final_Punctuation": "Pf",
    "Initial_Punctuation": "Pi", "Other_Punctuation": "Po", "Open_Punctuation": "Ps", "Symbol": "S",
    "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Math_Symbol": "Sm", "Other_Symbol": "So", "Separator": "Z",
    "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Space_Separator": "Zs",
}  # fmt: skip
_SHORT_CATEGORIES = frozenset(_CATEGORIES.values())


def normalise(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort and merge ranges that touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All code points outside of normalised ranges."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(gaps)


@cache
def _category_table() -> dict[str, Ranges]:
    """Ranges of every two-letter general category."""
    table: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    # Nothing but Cn, Co and the tags of plane 14 lies above plane 3.
    for code in [*range(1, 0x40000), *range(0xE0000, 0xE0200), 0xF0000, 0xFFFFE, 0x100000, 0x10FFFE, 0x110000]:
        category = unicodedata.category(chr(code)) if code <= MAX_CODE_POINT else ""
        if category != current or code == 0xE0000:
            table.setdefault(current, []).append((start, code - 1))
            start, current = code, category
    return {category: normalise(ranges) for category, ranges in table.items()}


@cache
def unicode_property(expression: str) -> Ranges | None:
    r"""The set of `\p{expression}`, or None when its name is unknown here."""
    name, equals, value = expression.partition("=")
    if equals:
        if name in _SCRIPTS:
            return _listed(_SCRIPTS[name], value) or _listed("Script", value)
        if name not in ("General_Category", "gc"):
            return None
        name = value
    elif name in ("Any", "ASCII", "Assigned", "White_Space", "space", "ASCII_Hex_Digit", "AHex"):
        return _binary_property(name)
    elif (found := _listed("Binary", name)) is not None:
        return found
    short = _CATEGORIES.get(name, name)
    if short not in _SHORT_CATEGORIES:
        return None
    wanted = ("Lu", "Ll", "Lt") if short == "LC" else (short,)
    table = _category_table()
    return normalise(r for category, ranges in table.items() if category.startswith(wanted) for r in ranges)


_SCRIPTS = {"Script": "Script", "sc": "Script", "Script_Extensions": "Script_Extensions", "scx": "Script_Extensions"}


@cache
def _tables() -> dict[str, dict[str, str]]:
    """Encoded ranges by kind of property and by each of its names."""
    stored = json.loads(Path(__file__).with_name("unicode_properties.json").read_text("ascii"))
    return {
        kind: {name: encoded for names, encoded in stored[kind].items() for name in names.split()}
        for kind in ("Script", "Script_Extensions", "Binary")
    }


def _listed(kind: str, name: str) -> Ranges | None:
    encoded = _tables()[kind].get(name)
    if encoded is None:
        return None
    numbers = [int(number, 16) for number in encoded.split()]
    ranges, end = [], 0
    for gap, length in zip(numbers[::2], numbers[1::2]):
        ranges.append((end + gap, end + gap + length))
        end = ranges[-1][1]
    return tuple(ranges)


def _binary_property(name: str) -> Ranges:
    if name == "Any":
        return ALL
    if name == "ASCII":
        return ((0, 0x7F),)
    if name == "Assigned":
        return complement(_category_table()["Cn"])
    if name in ("White_Space", "space"):
        return normalise([*(r for r in SPACE if r != (0xFEFF, 0xFEFF)), (0x85, 0x85)])
    return normalise(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))


@cache
def _case_classes() -> dict[int, frozenset[int]]:
    """Code points that are equal under simple case folding, by member; those alone in their class are left out."""
    classes: dict[str, set[int]] = {}
    for code in range(0x1E944):
        char = chr(code)
        folded = _simple_fold(char)
        if folded != char:
            classes.setdefault(folded, {ord(folded)}).add(code)
    return {code: frozenset(members) for members in classes.values() for code in members}


def _simple_fold(char: str) -> str:
    folded = char.casefold()
    if len(folded) == 1:
        return folded
    lowered = char.lower()
    return lowered if len(lowered) == 1 else char


def ignore_case(ranges: Ranges) -> Ranges:
    """Add every code point that equals a member under simple case folding."""
    extra = [
        (other, other)
        for code, members in _case_classes().items()
        if any(low <= code <= high for low, high in ranges)
        for other in members
    ]
    return normalise([*ranges, *extra]) if extra else ranges
