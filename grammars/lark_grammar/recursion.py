"""Productions of the same language without empty ones and without left recursion, which the machine cannot run.

1. Symbols that no finite text derives from, or that the start does not need, are dropped.
2. Empty productions: A is replaced by what A derives without the empty text, and each use of a nullable symbol by
   both readings; long productions are cut in pieces first, so this at most quadruples them.
3. Unit cycles (A: B, B: A) are merged.
4. Left recursion, direct or through other rules: the left-corner transform (Rosenkrantz and Lewis 1970), within each
   strongly connected component of the relation "may begin with". With A/X for "what is left of A once an X has been
   read": A -> b A/X for every X -> b that begins outside of the component, A/Y -> c A/Z for every Z -> Y c within it,
   and A/A may be empty. Its size is bounded by `max_productions`.

The helpers A/X end in calls of each other, which cost the machine nothing, so lists of any length stay linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar.productions import Production, Productions
from safegen.grammars.options import Limits

Rules = dict[int, list[Production]]
_MAX_NULLABLE = 2


@dataclass(frozen=True, slots=True)
class Runnable:
    """Rules without left recursion. start: None when there is no text but the empty one."""

    rules: Rules
    start: int | None
    allows_empty: bool


def without_left_recursion(given: Productions, dead_terminals: frozenset[int], limits: Limits) -> Runnable:
    """dead_terminals: terminals without any word. Raises GrammarError: no text at all, or past max_productions."""
    rules = _productive({symbol: list(of) for symbol, of in enumerate(given.of)}, dead_terminals)
    if not rules.get(given.start):
        raise GrammarError("No finite text derives from the start rule: every alternative leads back to itself.")
    rules = _reachable(rules, given.start)
    fresh = _Fresh(len(given.of), limits)
    nullable = _closure_of(rules, lambda symbol: False)
    rules = _without_empty(_in_pieces(rules, nullable, fresh), fresh)
    rules = _productive(rules, frozenset())
    if not rules.get(given.start):
        return Runnable({}, None, True)
    rules, start = _without_unit_cycles(rules, given.start)
    rules = _reachable(rules, start)
    rules = _left_corner(rules, start, fresh)
    return Runnable(_reachable(rules, start), start, given.start in nullable)


class _Fresh:
    """New symbols, and the bound on productions."""

    def __init__(self, first: int, limits: Limits) -> None:
        self.next = first
        self.limit = limits.max_productions
        self.made = 0

    def symbol(self) -> int:
        self.next += 1
        return self.next - 1

    def count(self, productions: int) -> None:
        self.made += productions
        if self.made > self.limit:
            raise GrammarError(
                f"Without empty rules and left recursion the grammar has more than {self.limit:,} productions "
                "(max_productions); let fewer rules begin with each other."
            )


def _closure_of(rules: Rules, is_given: Callable[[int], bool]) -> set[int]:
    """Nonterminals with a production of which every symbol is in the set or given."""
    waiting: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}
    found: set[int] = set()
    pending: list[int] = []
    for symbol, productions in rules.items():
        for index, production in enumerate(productions):
            open_symbols = {part for part in production if not is_given(part)}
            missing[symbol, index] = len(open_symbols)
            for part in open_symbols:
                waiting.setdefault(part, []).append((symbol, index))
            if not open_symbols and symbol not in found:
                found.add(symbol)
                pending.append(symbol)
    while pending:
        for owner, index in waiting.get(pending.pop(), ()):
            missing[owner, index] -= 1
            if missing[owner, index] == 0 and owner not in found:
                found.add(owner)
                pending.append(owner)
    return found


def _productive(rules: Rules, dead_terminals: frozenset[int]) -> Rules:
    live = _closure_of(rules, lambda symbol: symbol < 0 and symbol not in dead_terminals)

    def is_live(production: Production) -> bool:
        return all(part in live or (part < 0 and part not in dead_terminals) for part in production)

    return {symbol: [p for p in productions if is_live(p)] for symbol, productions in rules.items() if symbol in live}


def _reachable(rules: Rules, start: int) -> Rules:
    found = {start: None}
    pending = [start]
    while pending:
        for production in rules[pending.pop()]:
            for part in production:
                if part >= 0 and part not in found:
                    found[part] = None
                    pending.append(part)
    return {symbol: rules[symbol] for symbol in found}


# Empty productions.


def _in_pieces(rules: Rules, nullable: set[int], fresh: _Fresh) -> Rules:
    """Cut productions with many nullable symbols, so that both readings of each stay few."""
    result: Rules = {}
    for symbol, productions in rules.items():
        kept = result.setdefault(symbol, [])
        for production in productions:
            owner = kept
            rest = production
            while len(rest) > 2 and sum(part in nullable for part in rest) > _MAX_NULLABLE:
                piece = fresh.symbol()
                owner.append((rest[0], piece))
                owner = result[piece] = []
                rest = rest[1:]
                fresh.count(1)
            owner.append(rest)
    return result


def _without_empty(rules: Rules, fresh: _Fresh) -> Rules:
    nullable = _closure_of(rules, lambda symbol: False)
    result: Rules = {}
    for symbol, productions in rules.items():
        readings = dict.fromkeys(r for production in productions for r in _readings(production, nullable))
        readings.pop((), None)
        readings.pop((symbol,), None)
        fresh.count(len(readings))
        result[symbol] = list(readings)
    return result


def _readings(production: Production, nullable: set[int]) -> list[Production]:
    readings: list[Production] = [()]
    for part in production:
        taken = [(*reading, part) for reading in readings]
        readings = [*taken, *readings] if part in nullable else taken
    return readings


# Unit cycles.


def _without_unit_cycles(rules: Rules, start: int) -> tuple[Rules, int]:
    def units(symbol: int) -> Iterator[int]:
        return (p[0] for p in rules[symbol] if len(p) == 1 and p[0] >= 0)

    merged: dict[int, int] = {}
    for component in components(rules, units):
        merged.update(dict.fromkeys(component, component[0]))
    result: dict[int, dict[Production, None]] = {}
    for symbol, productions in rules.items():
        owner = merged[symbol]
        kept = result.setdefault(owner, {})
        for production in productions:
            renamed = tuple(merged[part] if part >= 0 else part for part in production)
            if renamed != (owner,):
                kept[renamed] = None
    return {symbol: list(productions) for symbol, productions in result.items()}, merged[start]


def components(nodes: Iterable[int], arrows: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """Strongly connected components, those that others lead to first (Tarjan 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = []

        def enter(node: int, work: list[tuple[int, Iterator[int]]] = work) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            on_stack.add(node)
            work.append((node, iter(arrows(node))))

        enter(root)
        while work:
            node, following = work[-1]
            for to in following:
                if to not in index:
                    enter(to)
                    break
                if to in on_stack:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
    return found


# Left recursion.


def _left_corner(rules: Rules, start: int, fresh: _Fresh) -> Rules:
    def corners(symbol: int) -> Iterator[int]:
        return (production[0] for production in rules[symbol] if production[0] >= 0)

    recursive: dict[int, frozenset[int]] = {}
    for component in components(rules, corners):
        if len(component) > 1 or component[0] in set(corners(component[0])):
            recursive.update(dict.fromkeys(component, frozenset(component)))
    if not recursive:
        return rules
    called = _called_from_outside(rules, start, recursive)
    result = {symbol: productions for symbol, productions in rules.items() if symbol not in recursive}
    for goal in called:
        _transform(rules, goal, recursive[goal], result, fresh)
    return result


def _called_from_outside(rules: Rules, start: int, recursive: dict[int, frozenset[int]]) -> list[int]:
    """Recursive symbols that are used elsewhere than at the beginning of a production of their own component."""
    called = {start: None} if start in recursive else {}
    for symbol, productions in rules.items():
        for production in productions:
            for place, part in enumerate(production):
                if part in recursive and (place or symbol not in recursive[part]):
                    called[part] = None
    return list(called)


def _transform(rules: Rules, goal: int, component: frozenset[int], result: Rules, fresh: _Fresh) -> None:
    rest = {symbol: fresh.symbol() for symbol in sorted(component)}
    result[goal] = []
    for symbol in rest.values():
        result[symbol] = []
    result[rest[goal]].append(())
    for symbol in sorted(component):
        for production in rules[symbol]:
            fresh.count(1)
            if production[0] in component:
                result[rest[production[0]]].append((*production[1:], rest[symbol]))
            else:
                result[goal].append((*production, rest[symbol]))
