r"""The text of a grammar before Lark reads it: bounds, and the extensions pulled out.

Extensions, in llguidance's syntax: `%json {...}` (a JSON Schema) wherever a rule may use a terminal, and in the
definition of a terminal `&` (intersection, looser than a sequence, tighter than `|`) and a prefix `~` (complement,
tighter than a count). Each is replaced by plain Lark: a schema by the name of a terminal that is appended to the text,
a definition that holds `&` or `~` by a literal of one reserved character that stands for it. Operands become terminals
of their own, appended as well. Line breaks and columns of everything else stay where they are, so that Lark's
complaints point into the text as it was written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from safegen.errors import GrammarError
from safegen.grammars.options import Limits

# As Lark's own scanner has them; the order matters.
_TOKEN = re.compile(
    r"""(?P<COMMENT>//[^\n]*|\#[^\n]*)
      | (?P<STRING>"(?:\\.|[^"\\\n])*"i?)
      | (?P<REGEXP>/(?!/)(?:\\/|\\\\|[^/])*?/[imslux]*)
      | (?P<CONTINUED>\\[ ]*\n)
      | (?P<NEWLINE>\n)
      | (?P<BLANK>[ \t\r\f\v]+)
      | (?P<JSON>%json\b)
      | (?P<IMPORT>%import\b)
      | (?P<DECLARE>%declare\b)
      | (?P<STATEMENT>%[a-z]+)
      | (?P<NAME>[!?]*_?[A-Za-z][_A-Za-z0-9]*)
      | (?P<NUMBER>[+-]?\d+)
      | (?P<DOTS>\.\.)
      | (?P<ARROW>->)
      | (?P<OTHER>.)""",
    re.VERBOSE | re.DOTALL,
)
_SKIPPED = frozenset(("COMMENT", "BLANK", "CONTINUED", "NEWLINE"))
_FIRST_RESERVED = 0x10F000
_LAST_RESERVED = 0x10FFFD
_LIBRARY = re.compile(r"[ \t]*(?:(?P<dot>\.)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))")
_BUNDLED = ("common", "lark", "python", "unicode")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A plain Lark terminal expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """op: "|", "&", "" (one after the other), "~" (complement of the one part) or "#" (counted)."""

    op: str
    parts: tuple[Expression, ...]
    low: int = 1
    high: int | None = 1


Expression = Operand | Join


def plain(expression: Expression) -> Any:
    """The expression as names and tuples (op, parts, low, high)."""
    if isinstance(expression, Operand):
        return expression.name
    return (expression.op, tuple(plain(part) for part in expression.parts), expression.low, expression.high)


@dataclass(slots=True)
class Source:
    """text: plain Lark. schemas: JSON texts by terminal name. expressions: what a reserved character stands for."""

    text: str
    schemas: dict[str, str] = field(default_factory=dict)
    expressions: dict[int, Expression] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)

    def plain_expressions(self) -> dict[str, Any]:
        """What each reserved character stands for, as names and tuples."""
        return {chr(code): plain(expression) for code, expression in self.expressions.items()}


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column of an offset, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def prepare(text: str, limits: Limits) -> Source:
    """Raises GrammarError (line, column) for a text that is too large, nests too deeply or imports from elsewhere."""
    if not isinstance(text, str):
        raise GrammarError(f"A grammar is a str, not {type(text).__name__}.")
    if len(text) > limits.max_grammar_chars:
        raise GrammarError(
            f"The grammar has {len(text):,} characters, more than {limits.max_grammar_chars:,} (max_grammar_chars)."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _fail(text, error.start, "The grammar holds a lone surrogate.")
    return _Extraction(text, limits).run()


def _fail(text: str, at: int, message: str) -> NoReturn:
    line, column = place(text, at)
    raise GrammarError(message, line=line, column=column)


class _Extraction:
    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.limits = limits
        self.edits: list[tuple[int, int, str]] = []  # start, end, replacement
        self.appended: list[str] = []
        self.source = Source(text)
        self.tokens: list[Token] = []
        self._free_code = _FIRST_RESERVED
        self._names = frozenset(re.findall(r"[A-Z][_A-Z0-9]*", text))
        self._counter = 0

    def run(self) -> Source:
        self._scan()
        self._check_depth()
        for start, end in self._definitions():
            if self._has_operators(start, end):
                self._extract(start, end)
        if self.edits or self.appended:
            self.source.text = self._rewritten()
        return self.source

    def _scan(self) -> None:
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            assert match is not None and match.lastgroup is not None
            kind, at = match.lastgroup, match.end()
            if kind == "JSON":
                at = self._schema(match.start(), at)
                continue
            if kind == "IMPORT":
                self._check_import(match.start(), at)
            elif kind == "DECLARE":
                _fail(self.text, match.start(), "%declare is not supported: a terminal needs a definition.")
            self.tokens.append(Token(kind, match.group(), match.start()))

    def _check_import(self, start: int, at: int) -> None:
        match = _LIBRARY.match(self.text, at)
        if match and match["dot"]:
            _fail(self.text, start, "%import takes Lark's own grammars only: no file is read.")
        if match and match["name"] not in _BUNDLED:
            known = ", ".join(_BUNDLED)
            _fail(
                self.text, start, f"%import of {match['name']!r}: only Lark's own grammars ({known}) can be imported."
            )

    def _check_depth(self) -> None:
        depth = 0
        for token in self.tokens:
            if token.kind == "OTHER" and token.text in "([{":
                depth += 1
                if depth > self.limits.max_depth:
                    _fail(self.text, token.at, f"Groups nest deeper than {self.limits.max_depth} (max_depth).")
            elif token.kind == "OTHER" and token.text in ")]}":
                depth -= 1

    # %json

    def _schema(self, start: int, at: int) -> int:
        """Replace a schema by a terminal; returns where it ends."""
        while at < len(self.text) and self.text[at] in " \t":
            at += 1
        try:
            _, end = json.JSONDecoder().raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            _fail(self.text, error.pos, f"%json must be followed by a JSON Schema: {error.msg}.")
        except RecursionError:
            _fail(self.text, at, "The JSON Schema nests too deeply to be read.")
        name = self._new_name("J")
        self.source.schemas[name] = self.text[at:end]
        self._append(name, self._reserve(name))
        self.tokens.append(Token("NAME", name, start))
        lines = self.text[start:end].split("\n")
        if len(lines) == 1:
            filler = name.ljust(end - start)
        else:
            filler = name + "\\\n" * (len(lines) - 1) + " " * len(lines[-1])
        self.edits.append((start, end, filler))
        return end

    # & and ~

    def _definitions(self) -> list[tuple[int, int]]:
        """Token ranges of the right-hand sides of terminal definitions."""
        found = []
        tokens = self.tokens
        for index, token in enumerate(tokens):
            if token.kind != "NAME" or not token.text.lstrip("_")[:1].isupper() or not self._begins_line(index):
                continue
            colon = self._skip(index + 1)
            if self._is(colon, "."):
                colon = self._skip(self._skip(colon + 1) + 1)
            if self._is(colon, ":"):
                found.append((colon + 1, self._definition_end(colon + 1)))
        return found

    def _begins_line(self, index: int) -> bool:
        while index > 0 and self.tokens[index - 1].kind == "BLANK":
            index -= 1
        if index == 0 or self.tokens[index - 1].kind == "NEWLINE":
            return True
        return self.tokens[index - 1].kind == "STATEMENT" and self.tokens[index - 1].text in ("%override", "%extend")

    def _skip(self, index: int) -> int:
        while index < len(self.tokens) and self.tokens[index].kind in ("BLANK", "CONTINUED"):
            index += 1
        return index

    def _is(self, index: int, text: str) -> bool:
        return index < len(self.tokens) and self.tokens[index].kind == "OTHER" and self.tokens[index].text == text

    def _definition_end(self, index: int) -> int:
        """A line break ends a definition unless `|` or `&` goes on with it."""
        while index < len(self.tokens):
            if self.tokens[index].kind == "NEWLINE":
                following = index
                while following < len(self.tokens) and self.tokens[following].kind in _SKIPPED:
                    following += 1
                if not self._is(following, "|") and not self._is(following, "&"):
                    return index
                index = following
            index += 1
        return index

    def _has_operators(self, start: int, end: int) -> bool:
        for index in range(start, end):
            if self._is(index, "&"):
                return True
            if self._is(index, "~"):
                following = self._skip(index + 1)
                if following >= end or self.tokens[following].kind != "NUMBER":
                    return True
        return False

    def _extract(self, start: int, end: int) -> None:
        tokens = [token for token in self.tokens[start:end] if token.kind not in _SKIPPED]
        parser = _ExpressionParser(self, tokens)
        expression = parser.parse()
        code = self._reserve(None)
        self.source.expressions[code] = expression
        first = tokens[0].at
        last = tokens[-1].at + len(tokens[-1].text)
        replaced = self.text[first:last]
        literal = f'"{chr(code)}"'
        breaks = "\\\n" * replaced.count("\n")
        self.edits.append((first, last, literal + breaks))

    def operand(self, text: str) -> Operand:
        name = self._new_name("X")
        self.appended.append(f"{name}: {text}")
        return Operand(name)

    def error_at(self, token: Token | None, message: str) -> NoReturn:
        _fail(self.text, token.at if token else len(self.text), message)

    # Names and the new text.

    def _new_name(self, prefix: str) -> str:
        while True:
            name = f"{prefix}{self._counter}"
            self._counter += 1
            if name not in self._names:
                return name

    def _reserve(self, name: str | None) -> int:
        """A character that the grammar does not hold."""
        while chr(self._free_code) in self.text:
            self._free_code += 1
        code = self._free_code
        if code > _LAST_RESERVED:
            raise GrammarError("The grammar holds too many %json, & and ~.")
        self._free_code += 1
        if name is not None:
            self.source.reserved[name] = code
        return code

    def _append(self, name: str, code: int) -> None:
        self.appended.append(f'{name}: "{chr(code)}"')

    def _rewritten(self) -> str:
        pieces, at = [], 0
        for start, end, replacement in sorted(self.edits):
            pieces += [self.text[at:start], replacement]
            at = end
        pieces += [self.text[at:], "\n", "\n".join(self.appended), "\n"]
        return "".join(pieces)


class _ExpressionParser:
    """`|` < `&` < one after the other < count < `~`."""

    def __init__(self, extraction: _Extraction, tokens: list[Token]) -> None:
        self.extraction = extraction
        self.tokens = tokens
        self.at = 0

    def parse(self) -> Expression:
        expression = self._either()
        if self.at < len(self.tokens):
            self.extraction.error_at(self._token(), f"Unexpected {self.tokens[self.at].text!r} in a terminal.")
        return expression

    def _token(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _takes(self, text: str) -> bool:
        token = self._token()
        if token is not None and token.kind == "OTHER" and token.text == text:
            self.at += 1
            return True
        return False

    def _either(self) -> Expression:
        parts = [self._both()]
        while self._takes("|"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Join("|", tuple(parts))

    def _both(self) -> Expression:
        parts = [self._sequence()]
        while self._takes("&"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Join("&", tuple(parts))

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while (token := self._token()) is not None and not (token.kind == "OTHER" and token.text in "|&)]"):
            parts.append(self._counted())
        if not parts:
            self.extraction.error_at(token, "A terminal's '|', '&' or group needs something on both sides.")
        return parts[0] if len(parts) == 1 else Join("", tuple(parts))

    def _counted(self) -> Expression:
        part = self._atom()
        token = self._token()
        if token is None or token.kind not in ("OTHER", "NAME"):
            return part
        for op, (low, high) in {"?": (0, 1), "*": (0, None), "+": (1, None)}.items():
            if self._takes(op):
                return Join("#", (part,), low, high)
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        if token.text == "~" and following is not None and following.kind == "NUMBER":
            self.at += 1
            return self._count(part, token)
        return part

    def _count(self, part: Expression, at: Token) -> Expression:
        low = high = self._number()
        token = self._token()
        if token is not None and token.kind == "DOTS":
            self.at += 1
            high = self._number()
        if low < 0 or high < low:
            self.extraction.error_at(at, f"Bad count {low}..{high}.")
        return Join("#", (part,), low, high)

    def _number(self) -> int:
        token = self._token()
        if token is None or token.kind != "NUMBER":
            self.extraction.error_at(token, "Expecting a number.")
        self.at += 1
        return int(token.text)

    def _atom(self) -> Expression:
        token = self._token()
        assert token is not None
        if self._takes("~"):
            if self._token() is None:
                self.extraction.error_at(token, "'~' needs a terminal after it.")
            return Join("~", (self._atom(),))
        if self._takes("("):
            inner = self._either()
            self._close(token, ")")
            return inner
        if self._takes("["):
            inner = self._either()
            self._close(token, "]")
            return Join("#", (inner,), 0, 1)
        if token.kind not in ("STRING", "REGEXP", "NAME"):
            self.extraction.error_at(token, f"Unexpected {token.text!r} in a terminal.")
        if token.text in self.extraction.source.schemas:
            self.extraction.error_at(token, "A %json schema cannot be a part of a terminal.")
        self.at += 1
        following = self._token()
        if token.kind == "STRING" and following is not None and following.kind == "DOTS":
            end = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
            if end is None or end.kind != "STRING":
                self.extraction.error_at(following, "A range needs a string after '..'.")
            self.at += 2
            return self.extraction.operand(f"{token.text}..{end.text}")
        return self.extraction.operand(token.text)

    def _close(self, opened: Token, closer: str) -> None:
        if not self._takes(closer):
            self.extraction.error_at(opened, f"This {opened.text!r} is never closed.")
