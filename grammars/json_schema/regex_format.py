r"""The format "regex": patterns of ECMA-262 under flag `u`, as a regular language over the pattern's text.

All patterns together are no regular language, so this is a part of them, and every text in it is a valid pattern.
Left out are groups nested over `_DEPTH` deep, named groups, back-references, modifiers other than (?i: (?m: (?s:,
properties other than general categories, `\0` but as the first of a range, surrogate escapes, three-digit counts whose
order only the last digit tells, and class ranges whose order is not told by raw characters up to U+017F, by blocks of
256 characters, or by escapes with few common leading digits.
"""

from __future__ import annotations

from functools import cache

from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex
from safegen.grammars.regex_tree import Pattern

_DEPTH = 6
_CATEGORIES = (
    "L|Lu|Ll|Lt|Lm|Lo|M|Mn|Mc|Me|N|Nd|Nl|No|P|Pc|Pd|Ps|Pe|Pi|Pf|Po|S|Sm|Sc|Sk|So|Z|Zs|Zl|Zp|C|Cc|Cf|Co|Cn|Letter|Number"
)
_DIGITS = "0123456789ABCDEF"
_HEX = "[0-9A-Fa-f]"
_UNIT = rf"(?:[0-9A-CEFa-cef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}})"  # four digits, no surrogate
_CODE_POINT = rf"u(?:{_UNIT}|\{{(?:{_UNIT}|{_HEX}{{1,3}}|[1-9A-Fa-f]{_HEX}{{4}}|10{_HEX}{{4}})\}})"
_ESCAPE = rf"\\(?:[fnrtv]|c[A-Za-z]|x{_HEX}{{2}}|{_CODE_POINT}|[\^$\\.*+?()\[\]{{}}|/])"
_SHORTHAND = rf"\\(?:[dDsSwW]|[pP]\{{(?:(?:General_Category|gc)=)?(?:{_CATEGORIES})\}})"
_PLAIN = r"[^\^$\\.*+?()\[\]{}|]"
_ASSERTION = r"\^|\$|\\[bB]"
_NEEDS_ESCAPE = (0x2D, 0x5C, 0x5D)  # - \ ]
_COMMON_BLOCKS = (*range(0x10), *range(0x1E, 0x32), 0xA4, 0xFE, 0xFF)


@cache
def _parsed(pattern: str) -> Pattern:
    return parse_regex(pattern)


def _char(code: int) -> str:
    return rf"\u{{{code:X}}}"


def _from(low: int) -> str:
    """A class of the characters from low on that stand for themselves in a class."""
    spans = []
    for stop in (*_NEEDS_ESCAPE, 0x110000):
        if low < stop:
            spans.append(f"{_char(low)}-{_char(stop - 1)}")
        low = max(low, stop + 1)
    return f"[{''.join(spans)}]"


def _digit(digit: str) -> str:
    return digit if digit.isdecimal() else f"[{digit}{digit.lower()}]"


def _one_of(digits: str) -> str:
    return f"[{digits}{digits.lower()}]" if digits else "(?!)"


def _two_digits(value: int) -> str:
    return "".join(map(_digit, f"{value:02X}"))


def _two_digits_above(value: int) -> str:
    """The first two of four digits that are more than `value` and no surrogate's."""
    first, second = divmod(value, 16)
    seconds = _DIGITS[second + 1 : 8 if first == 0xD else 16]
    parts = [_digit(_DIGITS[first]) + _one_of(seconds)] if seconds else []
    parts += ["[Dd][0-7]" if digit == "D" else _digit(digit) + _HEX for digit in _DIGITS[first + 1 :]]
    return f"(?:{'|'.join(parts)})" if parts else "(?!)"


def _range_texts() -> list[str]:
    """Regexes of class ranges whose ends are in order."""
    raw = [code for code in (*range(0x20, 0x7F), *range(0xA0, 0x180)) if code not in _NEEDS_ESCAPE]
    found = [f"{_char(code)}-{_from(code)}" for code in raw]
    blocks = (*range(0x200, 0xD700, 0x100), *range(0xF900, 0xFF00, 0x100))
    found += [f"[{_char(low)}-{_char(low + 0xFF)}]-[{_char(low + 0x100)}-{_char(0x10FFFF)}]" for low in blocks]
    found.append(rf"\\0-(?:{_from(0)}|{_ESCAPE})")
    found.append(rf"[ -,.-\[\^-~]-\\u(?:00[89A-Fa-f]{_HEX}|{_two_digits_above(0)}{_HEX}{{2}})")
    found.append(rf"\\x{_HEX}{{2}}-\\u{_two_digits_above(0)}{_HEX}{{2}}")
    for place, digit in enumerate(_DIGITS):
        above = _one_of(_DIGITS[place + 1 :])
        found.append(rf"\\x{_digit(digit)}{_HEX}-\\x{above}{_HEX}")
        for block in _COMMON_BLOCKS:
            same = _two_digits(block)
            found.append(rf"\\u{same}{_digit(digit)}{_HEX}-\\u{same}{above}{_HEX}")
    tops = (top for top in range(0x100) if not 0xD8 <= top < 0xE0)
    found += [rf"\\u{_two_digits(top)}{_HEX}{{2}}-\\u{_two_digits_above(top)}{_HEX}{{2}}" for top in tops]
    return [text for text in found if "(?!)" not in text]


def _counts_text() -> str:
    """{n}, {n,} and {n,m} with n <= m, the latter without leading zeros."""
    ordered = [rf"{low},[{low}-9]" for low in range(10)]
    ordered += [r"\d,[1-9]\d+", r"[1-9]\d,[1-9]\d{2,}", r"[1-9]\d{2},[1-9]\d{3,}"]
    for tens in range(1, 10):
        ordered += [rf"{tens}{unit},{tens}[{unit}-9]" for unit in range(10)]
        ordered += [rf"{tens}\d,[{tens + 1}-9]\d", rf"{tens}\d\d,[{tens + 1}-9]\d\d"] if tens < 9 else []
        ordered += [rf"{tens}{middle}\d,{tens}[{middle + 1}-9]\d" for middle in range(9)]
        ordered += [rf"{tens}{middle}0,{tens}{middle}\d" for middle in range(10)]
    return rf"\{{(?:\d+,?|{'|'.join(ordered)})\}}"


@cache
def _range_patterns() -> list[Pattern]:
    return [parse_regex("|".join(_range_texts()[start : start + 64])) for start in range(0, len(_range_texts()), 64)]


def regex_expr(lower: RegexLowering) -> int:
    builder = lower.builder

    def language(pattern: str) -> int:
        return lower.full(_parsed(pattern))

    ranges = builder.alternate([lower.full(pattern) for pattern in _range_patterns()])
    single = language(rf"{_ESCAPE}|\\[\-b]|{_SHORTHAND}|{_from(0)}")
    dash = language("-?")
    # A hyphen behind a range stands for itself; behind anything else it would make one.
    items = builder.repeat(builder.alternate([builder.concat([ranges, dash]), single]), 0, None)
    char_class = builder.concat([language(r"\[\^?"), dash, items, dash, language(r"\]")])
    atom = builder.alternate([char_class, language(rf"{_PLAIN}|\.|{_ESCAPE}|{_SHORTHAND}")])
    quantifier = language(rf"(?:(?:[*+?]|{_counts_text()})\??)?")
    assertion, bar = language(_ASSERTION), language(r"\|")
    open_group, open_look = language(r"\((?:\?(?:[ims]?:))?"), language(r"\(\?<?[=!]")
    close = language(r"\)")
    body = builder.repeat(builder.alternate([builder.concat([atom, quantifier]), assertion, bar]), 0, None)
    for _ in range(_DEPTH):
        group = builder.concat([open_group, body, close])
        look = builder.concat([open_look, body, close])
        quantified = builder.concat([builder.alternate([atom, group]), quantifier])
        body = builder.repeat(builder.alternate([quantified, look, assertion, bar]), 0, None)
    return body
