"""The rules of a Lark grammar as small automata over rule and terminal names, for the judge of grammar answers.

Lark's own loader reads the text; options and counts are not multiplied out. Counts are cut at what a text of the given
length can use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from lark import load_grammar as _lark_loader
from lark.grammar import NonTerminal, Terminal
from lark.lexer import TerminalDef
from lark.tree import Tree

from safegen.validation.outcome import ValidatorError

_loader: Any = _lark_loader  # its functions carry no types
_MAX_STATES = 2_000_000
MAX_LARK_SYMBOLS = 50_000
_CUT = MAX_LARK_SYMBOLS + 1
_LARK_REPEAT_BREAK = 50  # counts from here on Lark cuts in factors


@dataclass(frozen=True, slots=True)
class LoadedGrammar:
    """rules: trees by name. terminals: patterns by name. ignored: names of terminals."""

    rules: dict[str, Tree[Any]]
    terminals: dict[str, str]
    ignored: tuple[str, ...]


def load(text: str) -> LoadedGrammar:
    grammar, _ = _loader.load_grammar(text, "<grammar>", [], False)
    to_pattern = _loader.PrepareLiterals() * _loader.TerminalTreeToPattern()
    terminals = [
        TerminalDef(name, to_pattern.transform(_loader.nr_deepcopy_tree(tree)), priority)
        for name, (tree, priority) in grammar.term_defs
        if tree
    ]
    definitions = list(grammar.rule_defs)
    prepare = _loader.PrepareLiterals() * _loader.ValidateSymbols() * _loader.PrepareAnonTerminals(terminals)
    prepare = prepare * _loader.ApplyTemplates(definitions)
    rules: dict[str, Tree[Any]] = {}
    for name, params, tree, _ in definitions:  # grows: templates append the rules they make
        if not params and tree is not None:
            rules[name] = prepare.transform(tree)
    return LoadedGrammar(rules, {t.name: t.pattern.to_regexp() for t in terminals}, tuple(grammar.ignore))


def lark_size(grammar: LoadedGrammar) -> int:
    """Symbols of the rules once Lark has multiplied options out, an estimate from above; cut at MAX_LARK_SYMBOLS."""
    return min(sum(options * length for options, length in map(_lark_options, grammar.rules.values())), _CUT)


def _lark_options(node: Any) -> tuple[int, int]:
    """Alternatives, and symbols of the longest."""
    if not isinstance(node, Tree):
        return 1, 1
    inner = [_lark_options(child) for child in node.children if isinstance(child, Tree | NonTerminal | Terminal)]
    longest = max((length for _, length in inner), default=0)
    if node.data == "expansion":
        return min(prod(options for options, _ in inner), _CUT), min(sum(length for _, length in inner), _CUT)
    if node.data == "maybe":
        return inner[0][0] + 1, longest
    if node.data != "expr":
        return min(sum(options for options, _ in inner), _CUT), longest
    low, high = _counts([str(child) for child in node.children[1:]])
    options = inner[0][0]
    if high is None or high >= _LARK_REPEAT_BREAK:  # rules of their own
        return (2 if low == 0 else 1) * options, 8 * longest
    return min(sum(options**count for count in range(low, high + 1)), _CUT), min(high * longest, _CUT)


@dataclass(slots=True)
class Automata:
    """All rules in one numbering. first, last: states by rule name; arrows by state, to what follows. ended: the rule
    by its last state. nullable: rules that derive the empty text."""

    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    empty: list[list[int]] = field(default_factory=list)
    rules: list[list[tuple[str, int]]] = field(default_factory=list)
    terminals: list[list[tuple[str, int]]] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    nullable: frozenset[str] = frozenset()

    def state(self) -> int:
        if len(self.empty) > _MAX_STATES:
            raise ValidatorError("the grammar is too large to check an answer of this length")
        self.empty.append([])
        self.rules.append([])
        self.terminals.append([])
        return len(self.empty) - 1

    def finish(self) -> Automata:
        self.ended = {state: name for name, state in self.last.items()}
        found: set[str] = set()
        while True:
            more = {name for name in self.first if name not in found and self._reaches_end(name, found)}
            if not more:
                self.nullable = frozenset(found)
                return self
            found |= more

    def _reaches_end(self, name: str, nullable: set[str]) -> bool:
        seen = {self.first[name]}
        pending = list(seen)
        while pending:
            state = pending.pop()
            following = [*self.empty[state], *(to for rule, to in self.rules[state] if rule in nullable)]
            for to in following:
                if to not in seen:
                    seen.add(to)
                    pending.append(to)
        return self.last[name] in seen


def automata(grammar: LoadedGrammar, longest: int) -> Automata:
    """longest: counts above it are cut to it."""
    result = Automata()
    for name in grammar.rules:
        result.first[name], result.last[name] = result.state(), result.state()
    for name, tree in grammar.rules.items():
        _connect(result, tree, result.first[name], result.last[name], longest)
    return result.finish()


def _connect(result: Automata, node: Any, start: int, end: int, longest: int) -> None:
    if isinstance(node, NonTerminal):
        result.rules[start].append((node.name, end))
    elif isinstance(node, Terminal):
        result.terminals[start].append((node.name, end))
    elif node.data in ("expansions", "maybe"):
        for child in node.children:
            _connect(result, child, start, end, longest)
        if node.data == "maybe":
            result.empty[start].append(end)
    elif node.data == "expansion":
        at = start
        for child in node.children:
            following = result.state()
            _connect(result, child, at, following, longest)
            at = following
        result.empty[at].append(end)
    elif node.data == "expr":
        low, high = _counts([str(child) for child in node.children[1:]])
        _repeat(result, node.children[0], start, end, (min(low, longest), high), longest)
    else:  # alias, value
        _connect(result, node.children[0], start, end, longest)


def _counts(op: list[str]) -> tuple[int, int | None]:
    known: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
    return known[op[0]] if op[0] in known else (int(op[1]), int(op[-1]))


def _repeat(result: Automata, node: Any, start: int, end: int, counts: tuple[int, int | None], longest: int) -> None:
    low, high = counts
    at = result.state()
    result.empty[start].append(at)
    for _ in range(low):
        following = result.state()
        _connect(result, node, at, following, longest)
        at = following
    if high is None:
        loop = result.state()
        result.empty[at].append(loop)
        back = result.state()
        _connect(result, node, loop, back, longest)
        result.empty[back].append(loop)
        result.empty[loop].append(end)
        return
    for _ in range(max(0, min(high, longest) - low)):
        result.empty[at].append(end)
        following = result.state()
        _connect(result, node, at, following, longest)
        at = following
    result.empty[at].append(end)
