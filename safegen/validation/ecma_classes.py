r"""Character sets of ECMA-262 regular expressions (flag `u`), as predicates on code points.

A set is asked about one character at a time (the matcher remembers the answers), so no interval tables are needed:
`\p{...}` asks `unicodedata` for every General_Category, and a data file of the project (an excerpt of the Unicode
Character Database) for scripts and for binary properties that the standard library does not hold. All else is refused
by name.

Case folding under the `i` modifier is Unicode simple case folding, as ECMA-262 demands with flag `u`; it is derived
from `str.casefold` (common mappings) and `str.lower` (where the full folding is longer than one character).
"""

from __future__ import annotations

import json
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate

Predicate = Callable[[str], bool]

LINE_TERMINATORS = "\n\r\u2028\u2029"
_WHITE_SPACE = frozenset(
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_ECMA_SPACE = (_WHITE_SPACE - {"\u0085"}) | {"\ufeff"}
_DIGITS = frozenset("0123456789")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_WORD = frozenset("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD_FOLDED = _WORD | {"\u017f", "\u212a"}  # long s and the Kelvin sign fold into \w under flags iu

_CATEGORY_NAMES = """
L Letter|LC Cased_Letter|Lu Uppercase_Letter|Ll Lowercase_Letter|Lt Titlecase_Letter|Lm Modifier_Letter
Lo Other_Letter|M Mark Combining_Mark|Mn Nonspacing_Mark|Mc Spacing_Mark|Me Enclosing_Mark|N Number
Nd Decimal_Number digit|Nl Letter_Number|No Other_Number|P Punctuation punct|Pc Connector_Punctuation
Pd Dash_Punctuation|Ps Open_Punctuation|Pe Close_Punctuation|Pi Initial_Punctuation|Pf Final_Punctuation
Po Other_Punctuation|S Symbol|Sm Math_Symbol|Sc Currency_Symbol|Sk Modifier_Symbol|So Other_Symbol
Z Separator|Zs Space_Separator|Zl Line_Separator|Zp Paragraph_Separator|C Other|Cc Control cntrl
Cf Format|Cs Surrogate|Co Private_Use|Cn Unassigned
"""
_CATEGORIES = {
    name: entry.split()[0] for entry in _CATEGORY_NAMES.replace("\n", "|").split("|") if entry for name in entry.split()
}

_BINARY: dict[tuple[str, ...], Predicate] = {
    ("ASCII",): str.isascii,
    ("Any",): lambda char: True,
    ("Assigned",): lambda char: unicodedata.category(char) != "Cn",
    ("ASCII_Hex_Digit", "AHex"): _HEX_DIGITS.__contains__,
    ("Hex_Digit", "Hex"): frozenset(
        chr(ord(char) + offset) for char in _HEX_DIGITS for offset in (0, 0xFEE0)
    ).__contains__,
    ("White_Space", "space"): _WHITE_SPACE.__contains__,
    ("Bidi_Mirrored", "Bidi_M"): lambda char: unicodedata.mirrored(char) == 1,
}
_BINARY_BY_NAME = {name: predicate for names, predicate in _BINARY.items() for name in names}


def property_predicate(name: str, value: str | None) -> Predicate | None:
    r"""The predicate of `\p{name}` or `\p{name=value}`; None when it is not supported."""
    if value is None:
        if name in _CATEGORIES:
            return _category_predicate(_CATEGORIES[name])
        return _BINARY_BY_NAME.get(name) or _listed_predicate(("Binary",), name)
    if name in ("Script", "sc"):
        return _listed_predicate(("Script",), value)
    if name in ("Script_Extensions", "scx"):
        return _listed_predicate(("Script_Extensions", "Script"), value)
    if name in ("General_Category", "gc") and value in _CATEGORIES:
        return _category_predicate(_CATEGORIES[value])
    return None


@cache
def _listed_predicate(kinds: tuple[str, ...], name: str) -> Predicate | None:
    """Membership in a set of the data file: there, gaps and lengths of ranges, so their sums are where it changes."""
    stored = json.loads(files("safegen.grammars").joinpath("unicode_properties.json").read_text("ascii"))
    for kind in kinds:
        for names, encoded in stored[kind].items():
            if name in names.split():
                steps = [int(number, 16) for number in encoded.split()]
                edges = [sum + place % 2 for place, sum in enumerate(accumulate(steps))]
                return lambda char: bisect_right(edges, ord(char)) % 2 == 1
    return None


def _category_predicate(category: str) -> Predicate:
    if category == "LC":
        return lambda char: unicodedata.category(char) in ("Lu", "Ll", "Lt")
    return lambda char: unicodedata.category(char).startswith(category)


def shorthand_predicate(letter: str, ignore_case: bool) -> Predicate:
    r"""The predicate of `\d`, `\s` or `\w` (lower-case letter)."""
    if letter == "d":
        return _DIGITS.__contains__
    if letter == "s":
        return _ECMA_SPACE.__contains__
    return word_predicate(ignore_case)


def word_predicate(ignore_case: bool) -> Predicate:
    return (_WORD_FOLDED if ignore_case else _WORD).__contains__


@dataclass(frozen=True, slots=True, eq=False)
class CharSet:
    """A set of characters: the union of ranges and predicates, complemented when negated.

    With ignore_case a character belongs to the union when any character of equal simple case folding does.
    """

    ranges: tuple[tuple[str, str], ...] = ()
    predicates: tuple[Predicate, ...] = ()
    negated: bool = False
    ignore_case: bool = False

    def __call__(self, char: str) -> bool:
        if self.ignore_case:
            found = any(self._in_union(each) for each in case_variants(char))
        else:
            found = self._in_union(char)
        return found != self.negated

    def _in_union(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) or any(test(char) for test in self.predicates)


def complement(predicate: Predicate) -> Predicate:
    return lambda char: not predicate(char)


def simple_fold(char: str) -> str:
    """Unicode simple case folding of one character."""
    folded = char.casefold()
    if len(folded) == 1:
        return folded
    lowered = char.lower()
    return lowered if len(lowered) == 1 else char


def case_variants(char: str) -> tuple[str, ...]:
    """All characters with the simple case folding of char, itself included."""
    return _fold_classes().get(simple_fold(char), (char,))


@cache
def _fold_classes() -> dict[str, tuple[str, ...]]:
    classes: dict[str, set[str]] = {}
    for code_point in range(sys.maxunicode + 1):
        char = chr(code_point)
        folded = simple_fold(char)
        if folded != char:
            classes.setdefault(folded, {folded}).add(char)
    return {folded: tuple(sorted(members)) for folded, members in classes.items()}
