r"""Parser of regular expressions: ECMA-262 with the `u` flag, and the part of Python's syntax that means the same.

Result is a small tree (`Pattern`) of characters, sequences, alternatives, counted repeats and assertions; groups leave
no trace. The parser keeps its own stack, so nesting costs no Python recursion, and counts stay counts.

Lenient where every dialect agrees: any escaped ASCII punctuation is itself, a lone `]` or `}` is itself, so is a `{`
that starts no count. Refused by name: back-references, look-behind, atomic groups and possessive counts, flags other
than `i` and `s`, Python's `\A \Z`. Inline flags `(?i)` hold at the very start only; `(?i:...)`
anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from safegen.errors import GrammarError
from safegen.grammars import unicode_sets
from safegen.grammars.regex_tree import Kind, Pattern, alternatives, assertion, repeat, sequence
from safegen.grammars.unicode_sets import Ranges


@dataclass(slots=True)
class _Group:
    """An open group: its finished branches and the branch that is being read."""

    kind: Kind | None
    column: int
    ignore_case: bool
    dot_all: bool
    branches: list[Pattern] = field(default_factory=list)
    branch: list[Pattern] = field(default_factory=list)
    literal: list[str] = field(default_factory=list)

    def flush(self) -> None:
        if self.literal:
            self.branch.append(Pattern(Kind.TEXT, text="".join(self.literal)))
            self.literal = []

    def close_branch(self) -> None:
        self.flush()
        self.branches.append(sequence(self.branch))
        self.branch = []

    def close(self) -> Pattern:
        self.close_branch()
        body = alternatives(self.branches)
        return body if self.kind is None else assertion(self.kind, [body])


_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_CLASSES: dict[str, Ranges] = {
    "d": unicode_sets.DIGIT,
    "D": unicode_sets.complement(unicode_sets.DIGIT),
    "w": unicode_sets.WORD,
    "W": unicode_sets.complement(unicode_sets.WORD),
    "s": unicode_sets.SPACE,
    "S": unicode_sets.complement(unicode_sets.SPACE),
}
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")

_MOST_TIMES = (1 << 32) - 2  # the machine counts in 32 bits, and one value stands for no bound


def parse_regex(pattern: str, *, max_depth: int = 512, max_chars: int = 100_000, max_count: int = 1_000_000) -> Pattern:
    """Parse `pattern`. Raises GrammarError (with the column) when it is invalid, unsupported or beyond a bound."""
    if not isinstance(pattern, str):
        raise GrammarError(f"A regex must be a str, not {type(pattern).__name__}.")
    if len(pattern) > max_chars:
        raise GrammarError(f"The regex has {len(pattern):,} characters; max_pattern_chars is {max_chars:,}.")
    tree = _Parser(pattern, max_depth, max_count).parse()
    if tree.depth > max_depth:
        raise GrammarError(f"The regex nests {tree.depth:,} levels deep; max_depth is {max_depth:,}.")
    return tree


class _Parser:
    def __init__(self, pattern: str, max_depth: int, max_count: int) -> None:
        self.pattern = pattern
        self.max_depth = max_depth
        self.max_count = max_count
        self.at = 0
        self.group = _Group(None, 0, False, False)
        self.open: list[_Group] = []

    def parse(self) -> Pattern:
        self._leading_flags()
        pattern, end = self.pattern, len(self.pattern)
        while self.at < end:
            char = pattern[self.at]
            if char == "(":
                self._open_group()
            elif char == ")":
                self._close_group()
            elif char == "|":
                self.at += 1
                self.group.close_branch()
            elif char in "*+?" or (char == "{" and self._count_ahead()):
                self._quantify()
            else:
                self._atom(char)
        if self.open:
            raise self._error("this group is never closed", self.group.column)
        return self.group.close()

    # Groups.

    def _leading_flags(self) -> None:
        if self.pattern.startswith("(?") and (end := self.pattern.find(")")) > 2:
            flags = self.pattern[2:end]
            if flags.isalpha() and "P" not in flags:
                on, _ = self._flags(flags, 2)
                self.group.ignore_case, self.group.dot_all = "i" in on, "s" in on
                self.at = end + 1

    def _flags(self, flags: str, column: int) -> tuple[str, str]:
        on, _, off = flags.partition("-")
        for flag in on + off:
            if flag == "u":
                continue
            if flag not in "is":
                raise self._error(f"flag {flag!r} is not supported (only i and s are)", column)
        return on, off

    def _open_group(self) -> None:
        pattern, start = self.pattern, self.at
        kind: Kind | None = None
        outer = self.group
        ignore_case, dot_all = outer.ignore_case, outer.dot_all
        self.at += 1
        if pattern.startswith("?", self.at):
            if pattern.startswith(("?=", "?!"), self.at):
                kind = Kind.AHEAD if pattern[self.at + 1] == "=" else Kind.NOT_AHEAD
                self.at += 2
            elif pattern.startswith("?:", self.at):
                self.at += 2
            elif pattern.startswith(("?<=", "?<!"), self.at):
                raise self._error("look-behind is not supported", start)
            elif pattern.startswith(("?<", "?P<"), self.at):
                self._group_name(start)
            elif pattern.startswith("?P=", self.at):
                raise self._error("back-references are not supported", start)
            else:
                ignore_case, dot_all = self._flag_group(start, ignore_case, dot_all)
        outer.flush()
        self.open.append(outer)
        self.group = _Group(kind, start, ignore_case, dot_all)

    def _group_name(self, start: int) -> None:
        name_start = self.pattern.index("<", self.at) + 1
        end = self.pattern.find(">", name_start)
        name = self.pattern[name_start:end] if end >= 0 else ""
        if not name.replace("$", "_").isidentifier():
            raise self._error("a group name must be an identifier followed by '>'", start)
        self.at = end + 1

    def _flag_group(self, start: int, ignore_case: bool, dot_all: bool) -> tuple[bool, bool]:
        end = self.at + 1
        while end < len(self.pattern) and (self.pattern[end].isalpha() or self.pattern[end] == "-"):
            end += 1
        flags, closer = self.pattern[self.at + 1 : end], self.pattern[end : end + 1]
        if closer == ")" and flags:
            raise self._error("inline flags are only supported at the very start; write (?i:...)", start)
        if closer != ":" or flags in ("", "-"):
            raise self._error(f"{self.pattern[start : end + 1]!r} starts no supported group", start)
        on, off = self._flags(flags, start)
        self.at = end + 1
        return ("i" in on or ignore_case) and "i" not in off, ("s" in on or dot_all) and "s" not in off

    def _close_group(self) -> None:
        if not self.open:
            raise self._error("this ')' closes no group", self.at)
        self.at += 1
        part = self.group.close()
        if part.depth > self.max_depth:
            raise GrammarError(f"The regex nests more than {self.max_depth:,} levels deep (max_depth).")
        self.group = self.open.pop()
        self.group.branch.append(part)

    # Quantifiers.

    def _count_ahead(self) -> bool:
        """Whether a `{` at the cursor starts a count; `{,n}` is refused, for the dialects disagree on it."""
        end = self.pattern.find("}", self.at)
        body = self.pattern[self.at + 1 : end] if end >= 0 else ""
        low, comma, high = body.partition(",")
        if comma and not low and (high.isdecimal() and high.isascii()):
            raise self._error("'{,n}' means different things in different dialects; write {0,n}", self.at)
        return bool(low) and low.isdecimal() and low.isascii() and (not high or (high.isdecimal() and high.isascii()))

    def _bounds(self) -> tuple[int, int | None]:
        char = self.pattern[self.at]
        if char != "{":
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        start = self.at
        end = self.pattern.index("}", start)
        self.at = end + 1
        low, comma, high = self.pattern[start + 1 : end].partition(",")
        if len(low) > 10 or len(high) > 10:
            raise self._error("a count has more than ten digits", start)
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if max(int(low), int(high or 0)) > _MOST_TIMES:
            raise self._error(f"a count is more than {_MOST_TIMES:,}", start)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self._error(f"the count {{{low},{high}}} is reversed", start)
        return bounds

    def _quantify(self) -> None:
        start, group = self.at, self.group
        if group.literal:
            last = group.literal.pop()
            group.flush()
            part = Pattern(Kind.TEXT, text=last)
        elif group.branch and not self._is_bare_assertion(group.branch[-1]):
            part = group.branch.pop()
        else:
            raise self._error(f"nothing to repeat before {self.pattern[start]!r}", start)
        low, high = self._bounds()
        follower = self.pattern[self.at : self.at + 1]
        if follower == "+":
            raise self._error("possessive counts are not supported", self.at)
        if follower == "?":  # lazy: the same language
            self.at += 1
            follower = self.pattern[self.at : self.at + 1]
        if (follower and follower in "*+?") or (follower == "{" and self._count_ahead()):
            raise self._error(f"nothing to repeat before {follower!r}", self.at)
        repeated = repeat(part, low, high)
        if repeated.count > self.max_count and part.count > 1:
            raise self._error(f"nested counts multiply to more than {self.max_count:,} (max_count_product)", start)
        group.branch.append(repeated)

    @staticmethod
    def _is_bare_assertion(part: Pattern) -> bool:
        return part.kind in (Kind.START, Kind.END, Kind.BOUNDARY, Kind.NO_BOUNDARY)

    # Atoms.

    def _atom(self, char: str) -> None:
        group = self.group
        if char == "[":
            self._emit(self._char_class())
        elif char == ".":
            self.at += 1
            stops = () if group.dot_all else unicode_sets.LINE_TERMINATOR
            self._emit(unicode_sets.complement(stops))
        elif char in "^$":
            self.at += 1
            group.flush()
            group.branch.append(assertion(Kind.START if char == "^" else Kind.END))
        elif char == "\\":
            self._escaped_atom()
        else:
            self.at += 1
            self._literal(char, self.at - 1)

    def _emit(self, ranges: Ranges) -> None:
        self.group.flush()
        if self.group.ignore_case:
            ranges = unicode_sets.ignore_case(ranges)
        self.group.branch.append(Pattern(Kind.CHARS, ranges=ranges))

    def _literal(self, char: str, column: int) -> None:
        if "\ud800" <= char <= "\udfff":
            raise self._error("a lone surrogate is no character of any text", column)
        if self.group.ignore_case:
            code = ord(char)
            folded = unicode_sets.ignore_case(((code, code),))
            if folded != ((code, code),):
                self._emit(folded)
                return
        self.group.literal.append(char)

    def _escaped_atom(self) -> None:
        start = self.at
        char = self.pattern[start + 1 : start + 2]
        if char and char in "bB":
            self.at += 2
            self.group.flush()
            self.group.branch.append(assertion(Kind.BOUNDARY if char == "b" else Kind.NO_BOUNDARY))
            return
        if (char and char in "123456789") or char == "k":
            raise self._error("back-references are not supported", start)
        value = self._escape(in_class=False)
        if isinstance(value, str):
            self._literal(value, start)
        else:
            self._emit(value)

    def _escape(self, in_class: bool) -> str | Ranges:
        """Read the escape at the cursor: one character, or a class."""
        start = self.at
        char = self.pattern[start + 1 : start + 2]
        self.at += 2
        if char in _CONTROL:
            return _CONTROL[char]
        if char in _CLASSES:
            return _CLASSES[char]
        if char in ("p", "P"):
            return self._property(start, negated=char == "P")
        if char == "b" and in_class:
            return "\b"
        if char == "0":
            if self.pattern[self.at : self.at + 1] in _DIGITS:
                raise self._error("octal escapes are not supported", start)
            return "\0"
        if char in ("x", "u"):
            return self._hex_escape(start, char)
        if char == "c":
            letter = self.pattern[self.at : self.at + 1]
            if not (letter.isascii() and letter.isalpha()):
                raise self._error("\\c must be followed by a letter", start)
            self.at += 1
            return chr(ord(letter) % 32)
        if char and char.isascii() and not char.isalnum():
            return char
        if char in ("A", "Z", "z"):
            raise self._error(f"\\{char} is not an ECMA-262 escape; use ^ and $", start)
        raise self._error(f"\\{char} is no escape" if char else "a lone backslash at the end", start)

    def _hex_digits(self, start: int, low: int, high: int) -> int:
        end = self.at
        while end < len(self.pattern) and end - self.at < high and self.pattern[end] in _HEX:
            end += 1
        if end - self.at < low:
            raise self._error("this escape needs more hexadecimal digits", start)
        value = int(self.pattern[self.at : end], 16)
        self.at = end
        return value

    def _hex_escape(self, start: int, char: str) -> str:
        if char == "x":
            return chr(self._hex_digits(start, 2, 2))
        if self.pattern.startswith("{", self.at):
            self.at += 1
            value = self._hex_digits(start, 1, 8)
            if value > unicode_sets.MAX_CODE_POINT or not self.pattern.startswith("}", self.at):
                raise self._error("\\u{...} must hold a code point up to 10FFFF", start)
            self.at += 1
            return chr(value)
        value = self._hex_digits(start, 4, 4)
        if 0xD800 <= value < 0xDC00 and self.pattern.startswith("\\u", self.at):
            after_high = self.at
            self.at += 2
            low = self._hex_digits(start, 4, 4) if not self.pattern.startswith("{", self.at) else 0
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00))
            self.at = after_high
        return chr(value)

    def _property(self, start: int, negated: bool) -> Ranges:
        end = self.pattern.find("}", self.at)
        if not self.pattern.startswith("{", self.at) or end < 0:
            raise self._error("\\p must be followed by {property}", start)
        name = self.pattern[self.at + 1 : end]
        self.at = end + 1
        ranges = unicode_sets.unicode_property(name)
        if ranges is None:
            raise self._error(f"the Unicode property {name!r} is not supported", start)
        return unicode_sets.complement(ranges) if negated else ranges

    def _char_class(self) -> Ranges:
        start = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        members: list[tuple[int, int]] = []
        while True:
            char = self.pattern[self.at : self.at + 1]
            if not char:
                raise self._error("this class is never closed", start)
            if char == "]":
                self.at += 1
                break
            self._class_member(members)
        if self.group.ignore_case:
            members = list(unicode_sets.ignore_case(unicode_sets.normalise(members)))
        ranges = unicode_sets.normalise(members)
        return unicode_sets.complement(ranges) if negated else ranges

    def _class_member(self, members: list[tuple[int, int]]) -> None:
        start = self.at
        first = self._class_atom()
        is_range = self.pattern.startswith("-", self.at) and self.pattern[self.at + 1 : self.at + 2] not in ("]", "")
        if not is_range:
            members.extend(((ord(first), ord(first)),) if isinstance(first, str) else first)
            return
        self.at += 1
        last = self._class_atom()
        if isinstance(first, str) and isinstance(last, str):
            if last < first:
                raise self._error("this range is reversed", start)
            members.append((ord(first), ord(last)))
            return
        # A class as an end of a range: the hyphen is itself, in every dialect that allows it.
        members.append((0x2D, 0x2D))
        for end in (first, last):
            members.extend(((ord(end), ord(end)),) if isinstance(end, str) else end)

    def _class_atom(self) -> str | Ranges:
        if self.pattern[self.at] == "\\":
            if self.pattern[self.at + 1 : self.at + 2] in tuple("123456789"):
                raise self._error("octal escapes are not supported", self.at)
            return self._escape(in_class=True)
        self.at += 1
        return self.pattern[self.at - 1]

    def _error(self, reason: str, column: int) -> GrammarError:
        excerpt = self.pattern[max(0, column - 20) : column + 40]
        return GrammarError(f"Regex: {reason}, near {excerpt!r}.", line=1, column=column + 1)
