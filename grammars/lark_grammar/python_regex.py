r"""Terminal regexes as trees. Python's own parser reads them, so the syntax is exactly that of `re`, as in Lark.

Sets are those of `re` too: `\d`, `\w` and `\s` are Unicode's, the dot leaves out the newline unless /s, and case is
ignored by simple lowering plus `re`'s table of exceptions. Repeats keep whether they are lazy: Lark takes a terminal
where `re.match` ends, so the order of preference is part of the language (see `preference`).

Refused by name: anchors and word boundaries (they look outside of the terminal), back-references, atomic groups and
possessive counts, look-behind at more than one character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from re import _casefix, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from safegen.errors import GrammarError
from safegen.grammars import unicode_sets
from safegen.grammars.lark_grammar.tree import NOTHING, Ahead, Behind, Chars, Concatenation, Repeat, Tree, either
from safegen.grammars.unicode_sets import Ranges

_ASCII, _DOTALL, _IGNORECASE = re.ASCII.value, re.DOTALL.value, re.IGNORECASE.value
_MAX_SCANNED = 0x40000  # no letter, digit or blank lies above plane 3


def parse_python_regex(pattern: str) -> Tree:
    """Raises GrammarError when `re` would not take the pattern, or for what is not supported."""
    try:
        parsed = _parser.parse(pattern)
        return _Converter().sequence(parsed, parsed.state.flags)
    except re.error as error:
        raise GrammarError(f"Invalid regex {_excerpt(pattern)}: {error}.") from None
    except (OverflowError, ValueError) as error:
        raise GrammarError(f"Invalid regex {_excerpt(pattern)}: {error}.") from None
    except RecursionError:
        raise GrammarError(f"The regex {_excerpt(pattern)} nests too deeply.") from None


def _excerpt(pattern: str) -> str:
    return f"/{pattern[:80]}{'...' if len(pattern) > 80 else ''}/"


class _Converter:
    """From the tuples of `re`'s parser. flags: those that hold at the place."""

    def sequence(self, parts: Iterable[tuple[Any, Any]], flags: int) -> Tree:
        converted: list[Tree] = []
        for op, value in parts:
            tree = self._one(op, value, flags)
            converted += tree.parts if isinstance(tree, Concatenation) else (tree,)
        return converted[0] if len(converted) == 1 else Concatenation(tuple(converted))

    def _one(self, op: Any, value: Any, flags: int) -> Tree:
        c = _constants
        if op is c.LITERAL:
            return Chars(_cased(((value, value),), flags))
        if op is c.NOT_LITERAL:
            return Chars(unicode_sets.complement(_cased(((value, value),), flags)))
        if op is c.ANY:
            newline = ((0x0A, 0x0A),)
            return Chars(unicode_sets.ALL if flags & _DOTALL else unicode_sets.complement(newline))
        if op is c.IN:
            return Chars(_set(value, flags))
        if op is c.BRANCH:
            return either([self.sequence(branch, flags) for branch in value[1]])
        if op is c.SUBPATTERN:
            _, added, removed, inner = value
            return self.sequence(inner, (flags | added) & ~removed)
        if op in (c.MAX_REPEAT, c.MIN_REPEAT):
            low, high, inner = value
            return self._repeat(self.sequence(inner, flags), low, high, op is c.MIN_REPEAT)
        if op in (c.ASSERT, c.ASSERT_NOT):
            return self._look(value, op is c.ASSERT_NOT, flags)
        raise GrammarError(f"A terminal's regex holds {_name(op)}, which is not supported{_hint(op)}.")

    @staticmethod
    def _repeat(part: Tree, low: int, high: Any, lazy: bool) -> Tree:
        if part == NOTHING:
            return NOTHING
        return Repeat(part, low, None if high is _constants.MAXREPEAT else int(high), lazy)

    def _look(self, value: Any, negative: bool, flags: int) -> Tree:
        direction, inner = value
        part = self.sequence(inner, flags)
        if direction > 0:
            return Ahead(part, negative)
        if not isinstance(part, Chars):
            raise GrammarError("A terminal's regex looks behind at more than one character, which is not supported.")
        return Behind(part.ranges, negative)


def _name(op: Any) -> str:
    names = {
        "AT": "an anchor or word boundary (^, $, \\b, \\A, \\Z)",
        "GROUPREF": "a back-reference",
        "GROUPREF_EXISTS": "a conditional group",
        "ATOMIC_GROUP": "an atomic group",
        "POSSESSIVE_REPEAT": "a possessive count",
    }
    return names.get(str(op), str(op))


def _hint(op: Any) -> str:
    return ": it would look outside of the terminal" if op is _constants.AT else ""


# Sets.


def _set(items: list[tuple[Any, Any]], flags: int) -> Ranges:
    c = _constants
    negated = False
    members: list[tuple[int, int]] = []
    classes: list[tuple[int, int]] = []  # case is ignored in letters only
    for op, value in items:
        if op is c.NEGATE:
            negated = True
        elif op is c.LITERAL:
            members.append((value, value))
        elif op is c.RANGE:
            members.append((value[0], value[1]))
        else:
            classes += _category(str(value), bool(flags & _ASCII))
    ranges = unicode_sets.normalise([*_cased(unicode_sets.normalise(members), flags), *classes])
    return unicode_sets.complement(ranges) if negated else ranges


@cache
def _category(name: str, ascii_only: bool) -> Ranges:
    """\\d, \\s, \\w and their complements, by the names of `re`'s parser."""
    tests: dict[str, Callable[[str], bool]] = {
        "DIGIT": str.isdecimal,
        "SPACE": str.isspace,
        "WORD": lambda char: char.isalnum() or char == "_",
    }
    kind = name.rsplit("_", 1)[-1]
    end = 0x80 if ascii_only else _MAX_SCANNED
    test = tests[kind]
    excluded = ("\x1c", "\x1d", "\x1e", "\x1f") if ascii_only else ()
    found = unicode_sets.normalise((code, code) for code in range(end) if test(chr(code)) and chr(code) not in excluded)
    return unicode_sets.complement(found) if "_NOT_" in name else found


def _lower(code: int) -> int:
    return ord(chr(code).lower()[0])


@cache
def _lowered_codes() -> dict[int, int]:
    """Code points that simple lowering changes."""
    return {code: _lower(code) for code in range(0x1E944) if _lower(code) != code}


def _cased(ranges: Ranges, flags: int) -> Ranges:
    """What the set matches under the flags: as `re` does, a character counts when its lowering is among the lowered."""
    if not flags & _IGNORECASE:
        return ranges
    if flags & _ASCII:
        return _cased_ascii(ranges)
    lowered = _lowered_codes()
    wanted = set()
    for code, lower in lowered.items():
        if _holds(ranges, code):
            wanted.add(lower)
    for code, others in _casefix._EXTRA_CASES.items():
        if code in wanted or (code not in lowered and _holds(ranges, code)):
            wanted.update(others)
    kept = [(code, code) for code in wanted]
    target = unicode_sets.normalise([*ranges, *kept])
    gone = unicode_sets.normalise(
        (code, code) for code, lower in lowered.items() if lower not in wanted and not _lower_in(ranges, lower, lowered)
    )
    added = [(code, code) for code, lower in lowered.items() if lower in wanted or _lower_in(ranges, lower, lowered)]
    outside = unicode_sets.complement(unicode_sets.normalise([*unicode_sets.complement(target), *gone]))
    return unicode_sets.normalise([*outside, *added])


def _lower_in(ranges: Ranges, lower: int, lowered: dict[int, int]) -> bool:
    return lower not in lowered and _holds(ranges, lower)


def _cased_ascii(ranges: Ranges) -> Ranges:
    extra = [(code ^ 0x20, code ^ 0x20) for code in range(0x41, 0x7B) if chr(code).isalpha() and _holds(ranges, code)]
    return unicode_sets.normalise([*ranges, *extra])


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
