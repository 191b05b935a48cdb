"""The terminals of one grammar as exprs and nodes: patterns, embedded schemas, `&` and `~`, gaps in front."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from safegen.errors import GrammarError, SchemaError
from safegen.grammars.json_schema import lower_schema
from safegen.grammars.lark_grammar.automaton import Automaton, preferred_words
from safegen.grammars.lark_grammar.ignoring import Gaps
from safegen.grammars.lark_grammar.productions import TerminalUse
from safegen.grammars.lark_grammar.python_regex import parse_python_regex
from safegen.grammars.lark_grammar.reading import Reading
from safegen.grammars.lark_grammar.source import Expression, Operand, Source, place
from safegen.grammars.lark_grammar.terminals import TerminalLowering
from safegen.grammars.lark_grammar.tree import Chars, Tree, literal_codes, parts_of, width
from safegen.grammars.options import Limits
from safegen.grammars.origins import Origins

if TYPE_CHECKING:
    from safegen._native import Builder

Made = TypeVar("Made")


class Lexicon:
    """Lowers the terminals that are asked for, each once. Raises GrammarError with the place of the terminal."""

    def __init__(self, builder: Builder, reading: Reading, source: Source, original: str, limits: Limits) -> None:
        self.builder = builder
        self.reading = reading
        self.source = source
        self.original = original
        self.limits = limits
        self._deadline = monotonic() + limits.compile_deadline_s
        self._embedded: dict[int, int] = {}
        self._lowering = TerminalLowering(builder, self._embedded)
        self._words: dict[str, int] = {}
        self._open: set[str] = set()
        self._trees: dict[str, Tree] = {}
        self._schema_codes = frozenset(source.reserved.values())
        self.schema_nodes: dict[str, int] = {}
        self._lexemes: dict[TerminalUse, int] = {}
        self._gaps = Gaps(builder, [])

    def lower_schemas(self, used: frozenset[str], origins: Origins | None = None) -> None:
        """Schemas come first: their nodes are complete before any rule is."""
        for name, text in self.source.schemas.items():
            if name in used:
                try:
                    lowered = lower_schema(self.builder, text, None, self.limits, origins=origins)
                    self.schema_nodes[name] = lowered.node
                except SchemaError as error:
                    raise self._placed(GrammarError(f"%json schema: {error}"), name) from error

    def ignore(self) -> None:
        self._gaps = self._guarded("%ignore", lambda: Gaps(self.builder, [self._run(n) for n in self.reading.ignored]))

    def shown(self, name: str) -> str:
        """The name of a terminal, or what it is where Lark made the name up."""
        if name in self.source.schemas:
            return "%json"
        return str(self.reading.terminals[name].value) if name.startswith("__") else name

    def trailing(self) -> int | None:
        """What may stand at the end of the text; None: nothing."""
        return self._gaps.trailing if self.reading.ignored else None

    def is_dead(self, use: TerminalUse) -> bool:
        """No text at all is such a terminal."""
        return use.name not in self.source.schemas and self.builder.is_empty(self.words(use.name))

    def node(self, use: TerminalUse) -> int:
        if use.name in self.schema_nodes:
            gap = self.builder.lexeme(self._gaps.before_json())
            node = self.schema_nodes[use.name]
            return self.builder.sequence([gap, node]) if self.reading.ignored else node
        return self.builder.lexeme(self._lexeme(use))

    def one_of(self, uses: list[TerminalUse]) -> list[int]:
        """Nodes of a choice between terminals."""
        nodes = [self.node(use) for use in uses if use.name in self.schema_nodes]
        lexemes = [self._lexeme(use) for use in uses if use.high != 1]
        simple = [use for use in uses if use.high == 1 and use.name not in self.schema_nodes]
        literals = [text for use in simple if (text := self._literal(use.name)) is not None]
        words = [self.words(use.name) for use in simple if len(literals) < 2 or self._literal(use.name) is None]
        if len(literals) > 1:
            words.append(self.builder.strings(list(dict.fromkeys(literals))))
        if words:
            union = words[0] if len(words) == 1 else self.builder.alternate(words)
            names = ", ".join(use.name for use in simple[:3])
            lexemes.append(self._guarded(names, lambda: self._gaps.before(union, names)))
        if lexemes:
            nodes.append(self.builder.lexeme(lexemes[0] if len(lexemes) == 1 else self.builder.alternate(lexemes)))
        return nodes

    def _lexeme(self, use: TerminalUse) -> int:
        known = self._lexemes.get(use)
        if known is None:
            words = self.words(use.name)
            known = self._guarded(use.name, lambda: self._gaps.before(words, use.name))
            if (use.low, use.high) != (1, 1):
                known = self.builder.repeat(known, use.low, use.high)
            self._lexemes[use] = known
        return known

    # Words of a terminal.

    def words(self, name: str) -> int:
        known = self._words.get(name)
        if known is None:
            if name in self._open:
                raise self._placed(GrammarError(f"The terminal {name} refers to itself."), name)
            if monotonic() > self._deadline:
                raise GrammarError(
                    f"Compiling took longer than {self.limits.compile_deadline_s:g} s (compile_deadline_s)."
                )
            self._open.add(name)
            known = self._words[name] = self._guarded(name, lambda: self._lowered(name))
            self._open.discard(name)
            if self.builder.is_nullable(known):
                message = f"The terminal {name} may be empty; Lark allows no terminal of zero width."
                raise self._placed(GrammarError(message), name)
        return known

    def _lowered(self, name: str) -> int:
        text = self._literal(name)
        if text is not None:
            return self.builder.literal(text)
        tree = self._tree(name)
        if not self._embed(tree) and width(tree)[0] == 0:
            raise GrammarError(f"The terminal {name} may be empty; Lark allows no terminal of zero width.")
        return self._lowering.words(tree)

    def _tree(self, name: str) -> Tree:
        tree = self._trees.get(name)
        if tree is None:
            pattern = self.reading.terminals[name].to_regexp()
            if len(pattern) > self.limits.max_pattern_chars:
                raise GrammarError(
                    f"The terminal {name} has {len(pattern):,} characters, more than "
                    f"{self.limits.max_pattern_chars:,} (max_pattern_chars)."
                )
            tree = self._trees[name] = parse_python_regex(pattern)
        return tree

    def _literal(self, name: str) -> bytes | None:
        """The text of a terminal that is one fixed string."""
        codes = literal_codes(self._tree(name))
        reserved = self.source.expressions.keys() | self._schema_codes
        if codes is None or any(code in reserved or 0xD800 <= code < 0xE000 for code in codes):
            return None
        return "".join(map(chr, codes)).encode()

    def _run(self, name: str) -> Automaton:
        tree = self._tree(name)
        if self._embed(tree):
            raise self._placed(GrammarError(f"The ignored terminal {name} must not use %json, & or ~."), name)
        if width(tree)[0] == 0:
            message = f"The ignored terminal {name} may be empty; Lark allows no terminal of zero width."
            raise self._placed(GrammarError(message), name)
        return preferred_words(tree)

    # Extensions.

    def _embed(self, tree: Tree) -> bool:
        """Lower what the reserved characters of a tree stand for; whether there are any."""
        if not self.source.expressions and not self._schema_codes:
            return False
        found = False
        pending = [tree]
        while pending:
            node = pending.pop()
            if isinstance(node, Chars):
                low, high = node.ranges[0] if len(node.ranges) == 1 else (0, 1)
                if low != high:
                    continue
                if low in self._schema_codes:
                    raise GrammarError("A %json schema cannot be a part of a terminal.")
                if low in self.source.expressions:
                    found = True
                    if low not in self._embedded:
                        self._embedded[low] = self._expression(self.source.expressions[low])
            else:
                pending += parts_of(node)
        return found

    def _expression(self, expression: Expression) -> int:
        builder = self.builder
        if isinstance(expression, Operand):
            return self._operand(expression.name)
        parts = [self._expression(part) for part in expression.parts]
        match expression.op:
            case "|":
                return builder.alternate(parts)
            case "&":
                return builder.intersect(parts)
            case "~":
                return builder.intersect([builder.any_text(), builder.complement(parts[0])])
            case "#":
                return builder.repeat(parts[0], expression.low, expression.high)
            case _:
                return builder.concat(parts)

    def _operand(self, name: str) -> int:
        """An operand may be empty: only the whole terminal must not."""
        if name in self._open:
            raise GrammarError("A terminal refers to itself.")
        self._open.add(name)
        tree = self._tree(name)
        self._embed(tree)
        self._open.discard(name)
        return self._lowering.words(tree)

    # Places.

    def _guarded(self, name: str, make: Callable[[], Made]) -> Made:
        try:
            return make()
        except GrammarError as error:
            raise self._placed(error, name) from error
        except RecursionError:
            raise self._placed(GrammarError(f"The terminal {name} nests too deeply."), name) from None

    def _placed(self, error: GrammarError, name: str) -> GrammarError:
        """The error with the place of the terminal, unless it has one."""
        if error.line is not None:
            return error
        at = self._offset(name)
        if at is None:
            return error
        line, column = place(self.original, at)
        return GrammarError(error.reason, line=line, column=column)

    def _offset(self, name: str) -> int | None:
        if name in self.source.schemas:
            at = self.original.find("%json")
        elif found := re.search(rf"^[ \t]*(?:%\w+[ \t]+)?{re.escape(name)}[ \t]*[.:]", self.original, re.MULTILINE):
            at = self.original.find(name, found.start())
        elif name.startswith("%"):
            at = self.original.find(name)
        else:
            raw = getattr(self.reading.terminals.get(name), "raw", None)
            at = self.original.find(raw) if raw else -1
        return at if at >= 0 else None
