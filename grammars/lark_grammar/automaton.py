"""The words that `re.match` takes whole: a regex with its order of preference, as a deterministic automaton.

Lark's dynamic lexer takes a terminal where `re.match` ends, and then where it ends in each shorter beginning of that
match. So a terminal stands for the words w with `re.match(w).end() == len(w)`: a lazy count stops at the first
chance, and an alternative hides later ones that go on from it. Such words are regular. The threads of a backtracking
matcher, in order of preference, are a state (Cox 2010, "Pike's VM"); a thread that has matched hides those after it.

Small automata are turned back into exprs by state elimination; `max_states` bounds them before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safegen.errors import GrammarError
from safegen.grammars import unicode_sets
from safegen.grammars.lark_grammar.tree import (
    Behind,
    Chars,
    Concatenation,
    Either,
    Repeat,
    Tree,
    parts_of,
    unrolled,
    width,
)
from safegen.grammars.unicode_sets import Ranges

if TYPE_CHECKING:
    from safegen._native import Builder

MAX_STATES = 300
_MAX_STEPS = 5_000
_MATCH = "match"


@dataclass(slots=True)
class _Step:
    """One instruction. chars: what it reads; look: the condition on the character before; next: by preference.

    entry: of the round of a repeat that ends here. A round that read nothing is the last one: then out comes next.
    """

    next: list[int]
    chars: Ranges | None = None
    look: Behind | None = None
    is_match: bool = False
    entry: int | None = None
    out: int = 0


@dataclass(frozen=True, slots=True)
class Automaton:
    """Deterministic and minimal; state 0 is the start. arrows[state]: the characters that lead to each state."""

    arrows: tuple[dict[int, Ranges], ...]
    accepting: frozenset[int]

    def words(self, builder: Builder, start: int = 0, accepting: Iterable[int] | None = None) -> int:
        """The language from `start` to `accepting` as an expr."""
        arrows = [{to: builder.chars(ranges) for to, ranges in row.items()} for row in self.arrows]
        return words_along(builder, arrows, start, self.accepting if accepting is None else accepting)

    def next_chars(self, state: int) -> Ranges:
        return unicode_sets.normalise(r for ranges in self.arrows[state].values() for r in ranges)


def preferred_words(tree: Tree) -> Automaton:
    """Raises GrammarError when the automaton is too large, or a look-behind may look outside of the terminal."""
    return _minimal(*_determinise(_compile(tree)))


# Threads.


def _compile(tree: Tree) -> list[_Step]:
    if unrolled(tree) > _MAX_STEPS:
        raise GrammarError(
            "A terminal's regex is too large to follow its order of preference (lazy counts, alternatives that are "
            "the beginning of others)."
        )
    program = [_Step([], is_match=True)]

    def add(step: _Step) -> int:
        program.append(step)
        return len(program) - 1

    def emit(node: Tree, after: int) -> int:
        match node:
            case Chars():
                return add(_Step([after], chars=node.ranges))
            case Concatenation():
                for part in reversed(node.parts):
                    after = emit(part, after)
                return after
            case Either():
                return add(_Step([emit(branch, after) for branch in node.branches]))
            case Repeat():
                return emit_repeat(node, after)
            case Behind():
                return add(_Step([after], look=node))
            case _:
                raise GrammarError(
                    "A terminal's regex mixes a look-ahead with lazy counts or alternatives that hide each other, "
                    "which is not supported."
                )

    def emit_repeat(node: Repeat, after: int) -> int:
        if width(node.part)[0] == 0 and _is_lazy(node.part):
            raise GrammarError("A terminal's regex repeats a lazy group that may be empty, which is not supported.")

        def optional_round(entry: int, following: int) -> None:
            end = add(_Step([following], entry=entry, out=after))
            inner = emit(node.part, end)
            program[entry].next = [after, inner] if node.lazy else [inner, after]

        entry = after
        if node.high is None:
            entry = add(_Step([]))
            optional_round(entry, entry)
        else:
            for _ in range(node.high - node.low):
                following, entry = entry, add(_Step([]))
                optional_round(entry, following)
        for _ in range(node.low):
            entry = emit(node.part, entry)
        return entry

    entry = emit(tree, 0)
    program.append(_Step([entry]))
    return program


def _is_lazy(tree: Tree) -> bool:
    return (isinstance(tree, Repeat) and tree.lazy) or any(_is_lazy(part) for part in parts_of(tree))


def _closure(program: list[_Step], seeds: Iterable[int], before: Ranges | None) -> tuple[int, ...]:
    """Threads that read or match, by preference, cut after the first match. before: the character just read."""
    threads: list[int] = []
    seen: set[int] = set()
    stack = list(reversed(list(seeds)))
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        step = program[at]
        if step.is_match:
            threads.append(at)
            break
        if step.chars is not None:
            threads.append(at)
            continue
        if step.look is not None and _behind(step.look, before) == step.look.negative:
            continue
        if step.entry is not None and step.entry in seen:
            stack.append(step.out)
            continue
        stack.extend(reversed(step.next))
    return tuple(threads)


def _behind(look: Behind, before: Ranges | None) -> bool:
    if before is None:
        raise GrammarError("A terminal's regex looks behind its own beginning, which is not supported.")
    return _within(before[0][0], look.ranges)


def _within(code: int, ranges: Ranges) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _classes(program: list[_Step]) -> list[Ranges]:
    """Characters that no instruction tells apart, each class as ranges."""
    sets = {step.chars for step in program if step.chars is not None}
    sets |= {step.look.ranges for step in program if step.look is not None}
    edges: dict[int, list[int]] = {0: []}
    for index, ranges in enumerate(sets):
        for low, high in ranges:
            edges.setdefault(low, []).append(index)
            edges.setdefault(high + 1, []).append(index)
    inside: set[int] = set()
    grouped: dict[frozenset[int], list[tuple[int, int]]] = {}
    starts = sorted(edges)
    for start, end in zip(starts, [*starts[1:], unicode_sets.MAX_CODE_POINT + 1]):
        inside.symmetric_difference_update(edges[start])
        if start < end:
            grouped.setdefault(frozenset(inside), []).append((start, end - 1))
    return [tuple(ranges) for ranges in grouped.values()]


_Raw = tuple[list[dict[int, int]], set[int], list[Ranges]]


def _determinise(program: list[_Step]) -> _Raw:
    """Arrows by class, accepting states, classes."""
    classes = _classes(program)
    start = _closure(program, [len(program) - 1], None)
    ids: dict[tuple[int, ...], int] = {start: 0}
    open_states = [start]
    arrows: list[dict[int, int]] = []
    accepting: set[int] = set()
    while open_states:
        threads = open_states.pop(0)
        row: dict[int, int] = {}
        if threads and program[threads[-1]].is_match:
            accepting.add(ids[threads])
        for index, ranges in enumerate(classes):
            moved = [program[at].next[0] for at in threads if _reads(program[at], ranges)]
            following = _closure(program, moved, ranges) if moved else ()
            if not following:
                continue
            if following not in ids:
                if len(ids) >= MAX_STATES:
                    raise GrammarError(
                        "A terminal's regex needs too large an automaton to follow its order of preference (lazy "
                        "counts, alternatives that are the beginning of others); write alternatives that exclude "
                        "each other."
                    )
                ids[following] = len(ids)
                open_states.append(following)
            row[index] = ids[following]
        arrows.append(row)
    return arrows, accepting, classes


def _reads(step: _Step, ranges: Ranges) -> bool:
    return step.chars is not None and _within(ranges[0][0], step.chars)


def _minimal(arrows: list[dict[int, int]], accepting: set[int], classes: list[Ranges]) -> Automaton:
    """Moore's refinement; states that reach no accepting one are dropped."""
    count = len(arrows)
    live = set(accepting)
    for _ in range(count):
        grown = {state for state in range(count) if live.intersection(arrows[state].values())} | live
        if grown == live:
            break
        live = grown
    block = [int(state in accepting) for state in range(count)]
    while True:
        keys = [
            (block[state], tuple(sorted((c, block[to]) for c, to in arrows[state].items() if to in live)))
            for state in range(count)
        ]
        numbers: dict[object, int] = {}
        refined = [numbers.setdefault(key, len(numbers)) for key in keys]
        if len(numbers) == len(set(block)):
            break
        block = refined
    order: dict[int, int] = {}
    for state in range(count):
        if state in live or state == 0:
            order.setdefault(block[state], len(order))
    merged: list[dict[int, list[tuple[int, int]]]] = [{} for _ in order]
    done: set[int] = set()
    for state in range(count):
        if block[state] in done or block[state] not in order or (state not in live and state != 0):
            continue
        done.add(block[state])
        for index, to in arrows[state].items():
            if to in live:
                merged[order[block[state]]].setdefault(order[block[to]], []).extend(classes[index])
    return Automaton(
        tuple({to: unicode_sets.normalise(ranges) for to, ranges in row.items()} for row in merged),
        frozenset(order[block[state]] for state in accepting),
    )


# Back to exprs.


def words_along(builder: Builder, arrows: Sequence[Mapping[int, int]], start: int, accepting: Iterable[int]) -> int:
    """The language of the paths from `start` to `accepting`. arrows[state]: the expr on the arrow to each state."""
    count = len(arrows)
    source, sink = count, count + 1
    out: dict[int, dict[int, int]] = {state: {} for state in range(count + 2)}
    into: dict[int, set[int]] = {state: set() for state in range(count + 2)}

    def join(a: int, b: int, expr: int) -> None:
        known = out[a].get(b)
        out[a][b] = expr if known is None else builder.alternate([known, expr])
        into[b].add(a)

    for state, row in enumerate(arrows):
        for to, expr in row.items():
            join(state, to, expr)
    join(source, start, builder.epsilon())
    for state in accepting:
        join(state, sink, builder.epsilon())
    remaining = set(range(count))
    while remaining:
        state = min(remaining, key=lambda s: (len(into[s]) * len(out[s]), s))
        remaining.discard(state)
        loop = out[state].pop(state, None)
        into[state].discard(state)
        around = [] if loop is None else [builder.repeat(loop, 0, None)]
        for a in into[state]:
            before = out[a].pop(state)
            for b, after in out[state].items():
                join(a, b, builder.concat([before, *around, after]))
        for b in out[state]:
            into[b].discard(state)
        out[state], into[state] = {}, set()
    return out[source].get(sink, builder.empty())
