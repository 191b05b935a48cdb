r"""Importer of llama.cpp's GBNF grammars: rewrites them in Lark syntax.

The whole of GBNF but token references (`<[12]>`): rules `name ::= ...`, alternatives, groups, literals and character
classes with their escapes (`\n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH`), the dot, `* + ? {m} {m,} {m,n}`, comments,
line breaks inside groups and after `|`. The start rule of GBNF is `root`; the result's is `start`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from safegen.errors import GrammarError

_NAME = re.compile(r"[A-Za-z0-9-]+|[A-Za-z0-9_-]+")
_COUNT = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_DEFINES = re.compile(r"[ \t]*::=")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(slots=True)
class _Group:
    """What has been written of a group or a rule. last: where its last item begins."""

    opened_at: int
    items: list[str] = field(default_factory=list)


def from_gbnf(text: str) -> str:
    """A grammar in Lark syntax with the language of a GBNF grammar. Raises GrammarError with line and column."""
    if not isinstance(text, str):
        raise GrammarError(f"A grammar is a str, not {type(text).__name__}.")
    return _Importer(text).run()


class _Importer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._names: dict[str, str] = {}
        self._used: dict[str, int] = {}
        self._defined: set[str] = set()

    def run(self) -> str:
        rules: dict[str, str] = {}
        self._skip(newline=True)
        while self.at < len(self.text):
            start = self.at
            name = self._name()
            define = _DEFINES.match(self.text, self.at)
            if define is None:
                self._fail("expecting '::=' after the name of a rule")
            self.at = define.end()
            self._skip(newline=True)
            if name in rules:
                self._fail(f"the rule {name!r} is defined twice", start)
            rules[name] = self._rule()
            self._skip(newline=True)
        if "root" not in rules:
            raise GrammarError("GBNF: there is no rule 'root' to start from.")
        for name, at in self._used.items():
            if name not in rules:
                self._fail(f"the rule {name!r} is used but has no definition", at)
        lines = [f"{self._lark_name(name)}: {body}" for name, body in rules.items()]
        return "\n".join([f"start: {self._lark_name('root')}", *lines, ""])

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        raise GrammarError(f"GBNF: {message}.", line=line, column=at - self.text.rfind("\n", 0, at))

    def _skip(self, *, newline: bool) -> None:
        blanks = " \t\r\n" if newline else " \t"
        while self.at < len(self.text):
            if self.text[self.at] in blanks:
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self._fail("expecting the name of a rule")
        self.at = match.end()
        return match[0]

    def _lark_name(self, name: str) -> str:
        """Lark's names are lower case, without hyphens, and begin with a letter."""
        if name not in self._names:
            plain = "r_" + re.sub(r"[^a-z0-9]", "_", name.lower())
            taken = set(self._names.values())
            candidate, number = plain, 2
            while candidate in taken:
                candidate, number = f"{plain}_{number}", number + 1
            self._names[name] = candidate
        return self._names[name]

    def _rule(self) -> str:
        """The right-hand side up to the end of its line; groups are kept on a stack, not on Python's."""
        stack = [_Group(self.at)]
        while True:
            self._skip(newline=len(stack) > 1)
            char = self.text[self.at : self.at + 1]
            if char in ("", "\n", "\r"):
                if len(stack) > 1:
                    self._fail("this group is never closed", stack[-1].opened_at)
                return " ".join(stack[0].items)
            if char == "(":
                stack.append(_Group(self.at))
                self.at += 1
            elif char == ")":
                if len(stack) == 1:
                    self._fail("this ')' closes nothing")
                inner = stack.pop()
                self.at += 1
                stack[-1].items.append("(" + " ".join(inner.items) + ")")
                self._repeat(stack[-1].items)
            elif char == "|":
                self.at += 1
                stack[-1].items.append("|")
                self._skip(newline=True)
            else:
                stack[-1].items.append(self._item(char))
                self._repeat(stack[-1].items)

    def _item(self, char: str) -> str:
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == ".":
            self.at += 1
            return "/./s"
        if char == "<":
            self._fail("references to tokens are not supported: a grammar is over text")
        start = self.at
        name = self._name()
        if _DEFINES.match(self.text, self.at):
            self._fail("a rule begins on a line of its own", start)
        self._used.setdefault(name, start)
        return self._lark_name(name)

    def _repeat(self, items: list[str]) -> None:
        while True:
            item = items[-1]
            char = self.text[self.at : self.at + 1]
            if char and char in "*+?":
                self.at += 1
                items[-1] = f"({item}){char}"
            elif char == "{":
                items[-1] = self._counted(item)
            else:
                return

    def _counted(self, item: str) -> str:
        match = _COUNT.match(self.text, self.at)
        if match is None:
            self._fail("expecting {m}, {m,} or {m,n}")
        low = int(match[1])
        if not match[2]:
            counted = f"({item}) ~ {low}"
        elif not match[3]:
            counted = f"({item}) ~ {low} ({item})*" if low > 1 else f"({item}){'+' if low else '*'}"
        elif int(match[3]) < low:
            self._fail("this count falls")
        else:
            counted = f"({item}) ~ {low}..{match[3]}"
        self.at = match.end()
        return f"({counted})"

    def _literal(self) -> str:
        start = self.at
        self.at += 1
        chars = []
        while not self.text.startswith('"', self.at):
            chars.append(self._char(start, "this literal is never closed"))
        self.at += 1
        return '"' + "".join(map(_in_literal, chars)) + '"' if chars else "()"

    def _char_class(self) -> str:
        start = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        members = []
        while not self.text.startswith("]", self.at):
            low = self._char(start, "this class is never closed")
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._char(start, "this class is never closed")
                if high < low:
                    self._fail("this range falls", start)
                members.append(f"{_in_class(low)}-{_in_class(high)}")
            else:
                members.append(_in_class(low))
        self.at += 1
        if not members:
            return "/./s" if negated else self._fail("this class is empty", start)
        return f"/[{'^' if negated else ''}{''.join(members)}]/"

    def _char(self, start: int, unclosed: str) -> str:
        char = self.text[self.at : self.at + 1]
        if char in ("", "\n"):
            self._fail(unclosed, start)
        self.at += 1
        if char != "\\":
            return char
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        digits = self.text[self.at : self.at + _HEX_DIGITS.get(kind, 0)]
        if not digits or len(digits) < _HEX_DIGITS[kind] or not re.fullmatch(r"[0-9A-Fa-f]+", digits):
            self._fail(f"unknown escape \\{kind}", self.at - 2)
        self.at += len(digits)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail(f"\\{kind}{digits} is no character", self.at - len(digits) - 2)
        return chr(code)


def _in_literal(char: str) -> str:
    if char.isascii() and char.isprintable() and char not in '"\\':
        return char
    return "\\" + char if char in '"\\' else f"\\U{ord(char):08x}"


def _in_class(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    return "\\" + char if char.isascii() and char.isprintable() and char != " " else f"\\U{ord(char):08x}"
