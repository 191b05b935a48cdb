"""Rule trees as plain productions, with a helper symbol wherever Lark would multiply out.

Symbols are ints: nonterminals from 0 up, terminals from -1 down. Counts become logarithmically many productions, or,
of a single terminal, one terminal that is counted natively.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lark.grammar import NonTerminal, Symbol, Terminal
from lark.tree import Tree

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar.reading import Reading, RuleTree
from safegen.grammars.options import Limits

Production = tuple[int, ...]
_LONG_COUNT = 16
_MOST_TIMES = (1 << 32) - 2  # the machine counts in 32 bits, and one value stands for no bound


@dataclass(frozen=True, slots=True)
class TerminalUse:
    """A terminal by its name, so many times."""

    name: str
    low: int = 1
    high: int | None = 1


@dataclass(slots=True)
class Productions:
    """of[symbol]: the productions of a nonterminal. terminals[-1 - symbol]: what a terminal is."""

    of: list[list[Production]] = field(default_factory=list)
    terminals: list[TerminalUse] = field(default_factory=list)
    start: int = 0

    def new(self) -> int:
        self.of.append([])
        return len(self.of) - 1


def productions_of(reading: Reading, start: str, limits: Limits, uncountable: frozenset[str]) -> Productions:
    """uncountable: terminals that are no lexeme. Raises GrammarError past max_productions or for a bad count."""
    return _Writer(reading, limits, uncountable).write(start)


class _Writer:
    def __init__(self, reading: Reading, limits: Limits, uncountable: frozenset[str]) -> None:
        self.reading = reading
        self.limits = limits
        self.uncountable = uncountable
        self.result = Productions()
        self._rules: dict[str, int] = {}
        self._terminals: dict[TerminalUse, int] = {}
        self._helpers: dict[object, int] = {}
        self._total = 0

    def write(self, start: str) -> Productions:
        for name in self.reading.rules:
            self._rules[name] = self.result.new()
        for name, tree in self.reading.rules.items():
            self._put(self._rules[name], self._tree(tree))
        self.result.start = self._rules[start]
        return self.result

    def _put(self, symbol: int, alternatives: list[Production]) -> int:
        self._total += len(alternatives)
        if self._total > self.limits.max_productions:
            raise GrammarError(
                f"The grammar needs more than {self.limits.max_productions:,} productions (max_productions)."
            )
        self.result.of[symbol] = list(dict.fromkeys(alternatives))
        return symbol

    def _tree(self, tree: RuleTree) -> list[Production]:
        """Alternatives of a rule; from the leaves up, so that nesting costs no recursion."""
        done: dict[int, list[Production]] = {}
        for node in tree.iter_subtrees():
            done[id(node)] = self._node(node, [self._child(child, done) for child in node.children])
        return done[id(tree)]

    def _child(self, child: Any, done: dict[int, list[Production]]) -> Any:
        if isinstance(child, Tree):
            return done[id(child)]
        if isinstance(child, NonTerminal):
            return [(self._rules[child.name],)]
        if isinstance(child, Terminal):
            return [(self._terminal(TerminalUse(child.name)),)]
        assert not isinstance(child, Symbol)
        return child

    def _node(self, node: RuleTree, children: list[Any]) -> list[Production]:
        match str(node.data):
            case "expansion":
                return [tuple(symbol for child in children for symbol in self._joined(child))]
            case "expansions":
                return [alternative for child in children for alternative in child]
            case "maybe":
                return [*children[0], ()]
            case "expr":
                return self._repeated(children)
            case "alias" | "value":
                return list(children[0])
            case other:
                raise GrammarError(f"Lark read a {other!r}, which this version does not know.")

    def _joined(self, alternatives: list[Production]) -> Production:
        return (
            alternatives[0] if len(alternatives) == 1 else (self._helper(("any", tuple(alternatives)), alternatives),)
        )

    def _helper(self, key: object, alternatives: list[Production]) -> int:
        known = self._helpers.get(key)
        if known is None:
            known = self._helpers[key] = self._put(self.result.new(), alternatives)
        return known

    def _terminal(self, use: TerminalUse) -> int:
        if use not in self._terminals:
            self.result.terminals.append(use)
            self._terminals[use] = -len(self.result.terminals)
        return self._terminals[use]

    # Repeats.

    def _repeated(self, children: list[Any]) -> list[Production]:
        item, op, *counts = children
        match str(op):
            case "?":
                return [*item, ()]
            case "*":
                return [(self._one_or_more(self._joined(item)),), ()]
            case "+":
                return [(self._one_or_more(self._joined(item)),)]
        low, high = int(counts[0]), int(counts[-1])
        if low < 0 or high < low:
            raise GrammarError(f"Bad count ~ {low}..{high}: it must not fall, nor be negative.")
        if high > _MOST_TIMES:
            raise GrammarError(f"Bad count ~ {low}..{high}: it is more than {_MOST_TIMES:,}.")
        return self._counted(self._joined(item), low, high)

    def _one_or_more(self, item: Production) -> int:
        key = ("+", item)
        known = self._helpers.get(key)
        if known is None:
            known = self._helpers[key] = self.result.new()
            self._put(known, [item, (*item, known)])
        return known

    def _counted(self, item: Production, low: int, high: int) -> list[Production]:
        if high == 0:
            return [()]
        if high > _LONG_COUNT and len(item) == 1 and item[0] < 0:
            use = self.result.terminals[-1 - item[0]]
            if use.name not in self.uncountable and use.high == 1:
                counted = (self._terminal(TerminalUse(use.name, max(low, 1), high)),)
                return [counted, ()] if low == 0 else [counted]
        first = self._exactly(item, low)
        return [first] if high == low else [(*first, *self._up_to(item, high - low))]

    def _exactly(self, item: Production, count: int) -> Production:
        if count <= 4:
            return item * count
        half = self._exactly(item, count // 2)
        helper = self._helper(("=", item, count // 2), [half])
        return (helper, helper, *(item * (count % 2)))

    def _up_to(self, item: Production, count: int) -> Production:
        """Every count has one derivation: fewer than half, or half and then up to the rest."""
        if count == 0:
            return ()
        key = ("<", item, count)
        if key in self._helpers:
            return (self._helpers[key],)
        if count <= _LONG_COUNT:
            return (self._helper(key, [(), (*item, *self._up_to(item, count - 1))]),)
        half = (count + 1) // 2
        more = (*self._exactly(item, half), *self._up_to(item, count - half))
        return (self._helper(key, [self._up_to(item, half - 1), more]),)
