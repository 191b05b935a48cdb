r"""Parser of ECMA-262 regular expressions under flag `u`, into a tree for the matcher in `ecma`.

Only the language counts, so capturing groups leave no node, and lazy quantifiers are greedy ones. Back-references are
no regular language: refused. The parser keeps its own stack; depth and size are bounded.

In lenient mode five habits of schema authors are read as they mean them. As ECMA-262 reads them without flag `u`
(Annex B): an escape without need (`\-`, `\@`), a lone `{`, `}` or `]`, a class shorthand as an end of a range
(`[\w-.]`). As Python reads them: `(?i)` at the very start, for the whole pattern, and `(?P<name>...)`. Strict mode is
what `format: regex` means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from safegen.validation.ecma_classes import (
    LINE_TERMINATORS,
    CharSet,
    Predicate,
    complement,
    property_predicate,
    shorthand_predicate,
)
from safegen.validation.ecma_tree import (
    Alternate,
    Assertion,
    Chars,
    Concat,
    Look,
    Node,
    RegexSyntaxError,
    RegexUnsupported,
    Repeat,
)

MAX_PATTERN_CHARS = 100_000
MAX_DEPTH = 150


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False


@dataclass(slots=True)
class _Group:
    """An open group: finished branches, the branch being read, and what becomes of them at the closing bracket."""

    flags: _Flags
    look: tuple[bool, bool] | None = None  # (behind, negated)
    branches: list[Node] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)
    quantifiable: bool = False  # whether the last part may take a quantifier

    def close_branch(self) -> None:
        depth = 1 + max((part.depth for part in self.parts), default=0)
        self.branches.append(self.parts[0] if len(self.parts) == 1 else Concat(tuple(self.parts), depth))
        self.parts = []
        self.quantifiable = False

    def node(self) -> Node:
        self.close_branch()
        depth = 1 + max(branch.depth for branch in self.branches)
        inner = self.branches[0] if len(self.branches) == 1 else Alternate(tuple(self.branches), depth)
        if self.look is None:
            return inner
        behind, negated = self.look
        return Look(inner, behind, negated, inner.depth + 1)


_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_CONTROL = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_HEX = frozenset("0123456789abcdefABCDEF")
_MODIFIERS = frozenset("ims")
_LEADING_FLAGS = re.compile(r"\(\?([ims]+)\)")
_DECIMAL = frozenset("0123456789")


def parse_regex(pattern: str, *, lenient: bool = False) -> Node:
    """The tree of a pattern. Raises RegexSyntaxError or RegexUnsupported (both GrammarError) with the column."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise RegexUnsupported(f"the pattern has {len(pattern)} characters, the limit is {MAX_PATTERN_CHARS}")
    return _Parser(pattern, lenient).parse()


def is_ecma_regex(pattern: str) -> bool:
    """Whether a text is a regular expression by ECMA-262 (flag `u`), back-references included.

    Raises RegexUnsupported where this parser cannot tell (a property it does not know, or a limit).
    """
    parser = _Parser(pattern, lenient=False, allow_back_references=True)
    try:
        parser.parse()
    except RegexSyntaxError:
        return False
    return parser.back_references <= parser.names | {str(number + 1) for number in range(parser.num_captures)}


class _Parser:
    def __init__(self, pattern: str, lenient: bool, allow_back_references: bool = False) -> None:
        self.pattern = pattern
        self.lenient = lenient
        self.allow_back_references = allow_back_references
        self.back_references: set[str] = set()
        self.num_captures = 0
        self.position = 0
        self.groups = [_Group(_Flags())]
        self.names: set[str] = set()

    # -- reading ---------------------------------------------------------------------------------------------------

    def peek(self) -> str:
        return self.pattern[self.position] if self.position < len(self.pattern) else ""

    def take(self, literal: str) -> bool:
        if self.pattern.startswith(literal, self.position):
            self.position += len(literal)
            return True
        return False

    def next(self) -> str:
        char = self.peek()
        self.position += 1
        return char

    def take_while(self, allowed: frozenset[str], limit: int | None = None) -> str:
        start = self.position
        while self.peek() in allowed and (limit is None or self.position - start < limit):
            self.position += 1
        return self.pattern[start : self.position]

    def error(self, reason: str) -> RegexSyntaxError:
        return RegexSyntaxError(f"invalid regular expression: {reason}", line=1, column=self.position + 1)

    def unsupported(self, reason: str) -> RegexUnsupported:
        return RegexUnsupported(f"unsupported regular expression: {reason}", line=1, column=self.position + 1)

    # -- structure -------------------------------------------------------------------------------------------------

    def parse(self) -> Node:
        if self.lenient and (leading := _LEADING_FLAGS.match(self.pattern)):
            self.position = leading.end()
            on = leading.group(1)
            self.groups[0].flags = _Flags("i" in on, "m" in on, "s" in on)
        while self.position < len(self.pattern):
            self.term()
        if len(self.groups) > 1:
            raise self.error("a group is not closed")
        return self.groups[0].node()

    def add(self, node: Node, quantifiable: bool = True) -> None:
        if node.depth > MAX_DEPTH:
            raise self.unsupported(f"nested more than {MAX_DEPTH} deep")
        self.groups[-1].parts.append(node)
        self.groups[-1].quantifiable = quantifiable

    def term(self) -> None:
        group = self.groups[-1]
        char = self.next()
        if char == "|":
            group.close_branch()
        elif char == "(":
            self.open_group()
        elif char == ")":
            self.close_group()
        elif char == "^":
            self.add(Assertion("line_start" if group.flags.multiline else "start"), False)
        elif char == "$":
            self.add(Assertion("line_end" if group.flags.multiline else "end"), False)
        elif char == "\\":
            self.escape()
        elif char == ".":
            ends = () if group.flags.dot_all else tuple((end, end) for end in LINE_TERMINATORS)
            self.add(Chars(CharSet(ends, negated=True)))
        elif char == "[":
            self.add(self.char_class())
        elif char in "*+?" or (char == "{" and self.is_quantifier()):
            self.quantifier(char)
        elif char in "{}]" and not self.lenient:
            raise self.error(f"a lone {char!r}; escape it")
        else:
            self.add(self.literal(char))

    def open_group(self) -> None:
        flags = self.groups[-1].flags
        look: tuple[bool, bool] | None = None
        if self.take("?"):
            if self.take("="):
                look = (False, False)
            elif self.take("!"):
                look = (False, True)
            elif self.take("<="):
                look = (True, False)
            elif self.take("<!"):
                look = (True, True)
            elif self.take("<") or (self.lenient and self.take("P<")):
                self.capture_name()
            elif not self.take(":"):
                flags = self.modifiers(flags)
        else:
            self.num_captures += 1
        self.groups.append(_Group(flags, look))

    def close_group(self) -> None:
        if len(self.groups) == 1:
            raise self.error("a closing bracket without its opening one")
        group = self.groups.pop()
        self.add(group.node(), quantifiable=group.look is None)

    def capture_name(self) -> None:
        name = self.group_name()
        if name in self.names:
            raise self.error(f"the group name {name!r} occurs twice")
        self.names.add(name)
        self.num_captures += 1

    def group_name(self) -> str:
        start = self.position
        end = self.pattern.find(">", start)
        name = self.pattern[start:end] if end > 0 else ""
        if not name.replace("$", "_").isidentifier():
            raise self.error("a group name must be an identifier")
        self.position = end + 1
        return name

    def modifiers(self, flags: _Flags) -> _Flags:
        if self.pattern.startswith("P<", self.position):
            raise self.error("ECMA-262 writes a named group (?<name>...), not (?P<name>...)")
        on = self.take_while(_MODIFIERS)
        off = self.take_while(_MODIFIERS) if self.take("-") else ""
        if not self.take(":") or len(set(on + off)) != len(on + off) or not on + off:
            raise self.error("an unknown group; modifiers are written (?i:...) with any of i, m, s")

        def value(letter: str, before: bool) -> bool:
            return (before or letter in on) and letter not in off

        return _Flags(value("i", flags.ignore_case), value("m", flags.multiline), value("s", flags.dot_all))

    # -- quantifiers -----------------------------------------------------------------------------------------------

    def is_quantifier(self) -> bool:
        """Whether the text after a `{` is the rest of a counted quantifier."""
        start = self.position
        is_count = bool(self.take_while(_DECIMAL))
        if is_count and self.take(","):
            self.take_while(_DECIMAL)
        is_count = is_count and self.peek() == "}"
        self.position = start
        return is_count

    def quantifier(self, char: str) -> None:
        group = self.groups[-1]
        if not group.quantifiable:
            raise self.error("nothing to repeat")
        low, high = self.bounds(char)
        self.take("?")
        body = group.parts.pop()
        self.add(Repeat(body, low, high, body.depth + 1), False)

    def bounds(self, char: str) -> tuple[int, int | None]:
        if char != "{":
            return (1 if char == "+" else 0), (1 if char == "?" else None)
        low_digits = self.take_while(_DECIMAL).lstrip("0")
        high_digits: str | None = low_digits
        if self.take(","):
            digits = self.take_while(_DECIMAL)
            high_digits = digits.lstrip("0") if digits else None
        self.take("}")
        if high_digits is not None and (len(high_digits), high_digits) < (len(low_digits), low_digits):
            raise self.error("a repetition whose bounds are out of order")
        return _count(low_digits), None if high_digits is None else _count(high_digits)

    # -- characters ------------------------------------------------------------------------------------------------

    def literal(self, char: str) -> Chars:
        if self.groups[-1].flags.ignore_case:
            return Chars(CharSet(((char, char),), ignore_case=True))
        return Chars(char.__eq__, char)

    def escape(self) -> None:
        ignore_case = self.groups[-1].flags.ignore_case
        char = self.peek()
        if char and char in "bB":
            self.position += 1
            self.add(Assertion("word_folded" if ignore_case else "word", char == "B"), False)
        elif char and char in "123456789k":
            self.back_reference()
        elif (predicate := self.class_escape()) is not None:
            self.add(Chars(CharSet(predicates=(predicate,), ignore_case=ignore_case)))
        else:
            self.add(self.literal(self.character_escape(in_class=False)))

    def back_reference(self) -> None:
        if not self.allow_back_references:
            raise self.unsupported(f"a back-reference \\{self.peek()}; no regular language holds it")
        if self.take("k"):
            if not self.take("<"):
                raise self.error(r"\k takes a group name, as in \k<name>")
            self.back_references.add(self.group_name())
        else:
            self.back_references.add(self.take_while(_DECIMAL))
        self.add(Concat((), 1))

    def class_escape(self) -> Predicate | None:
        r"""The predicate of `\d \D \s \S \w \W \p{} \P{}` (the backslash is read), None at any other escape."""
        char = self.peek()
        if not char or char not in "dDsSwWpP":
            return None
        self.position += 1
        if char in "pP":
            predicate = self.unicode_property()
        else:
            predicate = shorthand_predicate(char.lower(), self.groups[-1].flags.ignore_case)
        return complement(predicate) if char.isupper() else predicate

    def unicode_property(self) -> Predicate:
        end = self.pattern.find("}", self.position)
        if not self.take("{") or end < 0:
            raise self.error(r"\p takes a property in braces, such as \p{L}")
        name, equals, value = self.pattern[self.position : end].partition("=")
        predicate = property_predicate(name, value if equals else None)
        if predicate is None:
            written = self.pattern[self.position : end][:60]
            raise self.unsupported(rf"the property \p{{{written}}}; General_Category values such as L or Nd are known")
        self.position = end + 1
        return predicate

    def character_escape(self, in_class: bool) -> str:
        """The character of an escape whose backslash is read."""
        char = self.next()
        if char == "":
            raise self.error("a backslash at the end")
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "c":
            letter = self.next()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error(r"\c takes a letter")
            return chr(ord(letter) % 32)
        if char == "0" and self.peek() not in _DECIMAL:
            return "\0"
        if char == "x":
            return chr(self.hex_digits(2))
        if char == "u":
            return self.unicode_escape()
        if char in _SYNTAX or (in_class and char == "-"):
            return char
        if in_class and char == "b":
            return "\b"
        if self.lenient and not (char.isascii() and char.isalnum()):
            return char
        self.position -= 1
        raise self.error(f"an unknown escape \\{char}")

    def hex_digits(self, count: int) -> int:
        digits = self.take_while(_HEX, count)
        if len(digits) != count:
            raise self.error(f"an escape needs {count} hexadecimal digits")
        return int(digits, 16)

    def unicode_escape(self) -> str:
        if self.take("{"):
            digits = self.take_while(_HEX)
            if not digits or not self.take("}") or len(digits.lstrip("0")) > 6 or int(digits, 16) > 0x10FFFF:
                raise self.error(r"\u{...} takes a code point up to 10FFFF")
            return chr(int(digits, 16))
        unit = self.hex_digits(4)
        if 0xD800 <= unit < 0xDC00 and self.pattern.startswith("\\u", self.position):
            start = self.position
            self.position += 2
            low = self.hex_digits(4) if self.peek() != "{" else 0
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
            self.position = start
        return chr(unit)

    # -- classes ---------------------------------------------------------------------------------------------------

    def char_class(self) -> Chars:
        negated = self.take("^")
        ranges: list[tuple[str, str]] = []
        predicates: list[Predicate] = []
        while not self.take("]"):
            low = self.class_atom()
            dash = self.position
            if self.peek() == "-" and not self.pattern.startswith("-]", self.position):
                self.position += 1
                high = self.class_atom()
                if isinstance(low, str) and isinstance(high, str):
                    if high < low:
                        raise self.error("a class range out of order")
                    ranges.append((low, high))
                    continue
                if not self.lenient:
                    self.position = dash
                    raise self.error("a class shorthand cannot end a range")
                ranges.append(("-", "-"))
                self.add_atom(high, ranges, predicates)
            self.add_atom(low, ranges, predicates)
        ignore_case = self.groups[-1].flags.ignore_case
        return Chars(CharSet(tuple(ranges), tuple(predicates), negated, ignore_case))

    @staticmethod
    def add_atom(atom: str | Predicate, ranges: list[tuple[str, str]], predicates: list[Predicate]) -> None:
        if isinstance(atom, str):
            ranges.append((atom, atom))
        else:
            predicates.append(atom)

    def class_atom(self) -> str | Predicate:
        char = self.next()
        if char == "":
            raise self.error("a class is not closed")
        if char != "\\":
            return char
        predicate = self.class_escape()
        return self.character_escape(in_class=True) if predicate is None else predicate


def _count(digits: str) -> int:
    """A repetition count; beyond ten digits any count is as impossible as ten."""
    return int(digits or "0") if len(digits) <= 10 else 10**10
