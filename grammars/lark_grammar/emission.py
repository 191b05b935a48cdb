"""From productions to nodes of the native builder.

Rules are visited callees first, so that the builder's own analysis needs few rounds; a call that leads back up is a
reserved node. Alternatives that are one terminal each become one lexeme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from safegen.grammars.lark_grammar.productions import Production
from safegen.grammars.lark_grammar.recursion import Runnable
from safegen.grammars.origins import Origins

if TYPE_CHECKING:
    from safegen._native import Builder


class Emission:
    """terminal_node: the node of a terminal symbol. one_of: the node of a choice between terminal symbols."""

    def __init__(
        self,
        builder: Builder,
        runnable: Runnable,
        terminal_node: Callable[[int], int],
        one_of: Callable[[list[int]], list[int]],
    ) -> None:
        self.builder = builder
        self.rules = runnable.rules
        self._terminal_node = terminal_node
        self._one_of = one_of
        self._nodes: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        self._terminals: dict[int, tuple[int, ...]] = {}  # symbols of the terminals that a node stands for

    def node(self, start: int) -> int:
        for symbol in self._callees_first(start):
            node = self._rule(self.rules[symbol])
            self._nodes[symbol] = node
            if symbol in self._reserved:
                self.builder.define(self._reserved[symbol], node)
        return self._nodes[start]

    def _callees_first(self, start: int) -> Iterator[int]:
        seen = {start}
        work: list[tuple[int, Iterator[int]]] = [(start, self._callees(start))]
        while work:
            symbol, following = work[-1]
            for callee in following:
                if callee not in seen:
                    seen.add(callee)
                    work.append((callee, self._callees(callee)))
                    break
            else:
                work.pop()
                yield symbol

    def _callees(self, symbol: int) -> Iterator[int]:
        return (part for production in self.rules[symbol] for part in production if part >= 0)

    def _rule(self, productions: list[Production]) -> int:
        builder = self.builder
        single = [production[0] for production in productions if len(production) == 1 and production[0] < 0]
        nodes = self._one_of(single) if single else []
        self._terminals.update(dict.fromkeys(nodes, tuple(single)))
        for production in productions:
            if not production:
                nodes.append(builder.lexeme(builder.epsilon()))
            elif len(production) > 1 or production[0] >= 0:
                parts = [self._part(part) for part in production]
                nodes.append(parts[0] if len(parts) == 1 else builder.sequence(parts))
        return builder.rule(nodes)

    def _part(self, symbol: int) -> int:
        if symbol < 0:
            node = self._terminal_node(symbol)
            self._terminals[node] = (symbol,)
            return node
        if symbol in self._nodes:
            return self._nodes[symbol]
        if symbol not in self._reserved:
            self._reserved[symbol] = self.builder.reserve()
        return self._reserved[symbol]

    def tell(self, origins: Origins, rules: list[str], terminals: list[str]) -> None:
        """Which rules and terminals the nodes were made from. rules: names of the first symbols; the others stand for
        parts of them, and are called by the rule that they belong to."""
        names = {symbol: name for symbol, name in enumerate(rules) if symbol in self.rules}
        pending = list(names)
        while pending:
            symbol = pending.pop(0)
            for callee in self._callees(symbol):
                if callee not in names:
                    names[callee] = names[symbol]
                    pending.append(callee)
        origins.rules.update((node, names[symbol]) for symbol, node in self._nodes.items() if symbol in names)
        for node, symbols in self._terminals.items():
            origins.terminals[node] = tuple(terminals[-1 - symbol] for symbol in symbols)
