r"""Linear-time matcher of ECMA-262 regular expressions: "does the pattern occur anywhere in the text?"

The tree of `ecma_syntax` becomes a nondeterministic automaton (Thompson's construction; counted repetitions are
unrolled up to MAX_PROGRAM_STATES), simulated on sets of states that are remembered as a lazily built, bounded
deterministic automaton. Nothing backtracks.

Look-arounds are solved innermost first, each by one pass over the text that fills a table of the positions where it
holds: a look-ahead by running its reversed body from the end of the text, a look-behind by running its body forwards.
In the automaton that uses them, and for `^`, `$` and `\b`, they are conditions on a position, given as context bits.
So the whole costs O(text length * program size), with or without look-arounds.

A match that would take more than MAX_STEPS elementary steps is a `ValidatorError`, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from safegen.validation.ecma_classes import LINE_TERMINATORS, Predicate, word_predicate
from safegen.validation.ecma_syntax import parse_regex
from safegen.validation.ecma_tree import Alternate, Assertion, Chars, Concat, Look, Node, RegexUnsupported, Repeat
from safegen.validation.outcome import ValidatorError

MAX_PROGRAM_STATES = 20_000
MAX_STEPS = 5_000_000
MAX_CACHED_STATES = 2_000
MAX_CACHED_MEMBERS = 200_000
MAX_CACHED_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class _Read:
    matches: Predicate
    target: int


@dataclass(slots=True)
class _Split:
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Test:
    bit: int
    negated: bool
    target: int


_Instruction = _Read | _Split | _Test
_ACCEPT = 0


def _program_size(node: Node) -> int:
    """Instructions that a node unrolls to (bodies of look-arounds count once, where they stand)."""
    match node:
        case Concat(parts=parts):
            return sum(_program_size(part) for part in parts)
        case Alternate(branches=branches):
            return 1 + sum(_program_size(branch) for branch in branches)
        case Repeat(body=body, low=low, high=high):
            body_size = _program_size(body)
            copies = low + 1 if high is None else high
            return copies * (1 + body_size) if body_size else 0
        case Look(body=body):
            return 1 + _program_size(body)
    return 1


@dataclass(slots=True)
class _State:
    """A set of instructions, as one state of the deterministic automaton. reads: targets by predicate."""

    members: frozenset[int]
    accepting: bool
    reads: list[tuple[Predicate, list[int]]]
    next: dict[tuple[str, int], _State] = field(default_factory=dict)


class _Automaton:
    """One direction of one pattern or look-around body; a match may start at every position."""

    def __init__(self, node: Node, bits: _ContextBits, *, backwards: bool) -> None:
        self._bits = bits
        self._backwards = backwards
        self._instructions: list[_Instruction] = [_Split(())]
        self._start = self._emit(node, _ACCEPT)
        self._forget()

    # -- construction ----------------------------------------------------------------------------------------------

    def _add(self, instruction: _Instruction) -> int:
        self._instructions.append(instruction)
        return len(self._instructions) - 1

    def _emit(self, node: Node, target: int) -> int:
        """Instructions for a node that go on at target; returns their entry."""
        match node:
            case Chars(matches=matches):
                return self._add(_Read(matches, target))
            case Concat(parts=parts):
                for part in parts if self._backwards else reversed(parts):
                    target = self._emit(part, target)
                return target
            case Alternate(branches=branches):
                return self._add(_Split(tuple(self._emit(branch, target) for branch in branches)))
            case Repeat():
                return self._emit_repeat(node, target)
        return self._add(_Test(self._bits.of(node), node.negated, target))

    def _emit_repeat(self, node: Repeat, target: int) -> int:
        if not _program_size(node.body):
            return target  # only the empty text, however often
        if node.high is None:
            loop = _Split(())
            exit_target, target = target, self._add(loop)
            loop.targets = (self._emit(node.body, target), exit_target)
        else:
            exit_target = target
            for _ in range(node.high - node.low):
                target = self._add(_Split((self._emit(node.body, target), exit_target)))
        for _ in range(node.low):
            target = self._emit(node.body, target)
        return target

    # -- simulation ------------------------------------------------------------------------------------------------

    def occurs(self, text: str, contexts: Sequence[int]) -> bool:
        """Whether a match ends anywhere. contexts: [len(text) + 1] context bits of each position."""
        budget = _Budget(MAX_STEPS)
        state = self._closure((), contexts[0], budget)
        for position, char in enumerate(text, 1):
            if state.accepting:
                return True
            key = (char, contexts[position])
            state = state.next.get(key) or self._step(state, key, budget)
        return state.accepting

    def ends(self, text: str, contexts: Sequence[int]) -> list[bool]:
        """For each of the len(text) + 1 positions whether a match ends there."""
        budget = _Budget(MAX_STEPS)
        state = self._closure((), contexts[0], budget)
        flags = [state.accepting]
        for position, char in enumerate(text, 1):
            key = (char, contexts[position])
            state = state.next.get(key) or self._step(state, key, budget)
            flags.append(state.accepting)
        return flags

    def _step(self, state: _State, key: tuple[str, int], budget: _Budget) -> _State:
        char, context = key
        targets: list[int] = []
        for matches, after in state.reads:
            if matches(char):
                targets += after
        budget.spend(len(state.members) + 1)
        following = self._closure(targets, context, budget)
        if len(state.next) >= MAX_CACHED_CHARS:
            state.next.clear()
        state.next[key] = following
        return following

    def _closure(self, targets: Iterable[int], context: int, budget: _Budget) -> _State:
        """The state reached by instructions that read nothing, from targets and from a fresh start."""
        seen: set[int] = set()
        stack = [*targets, self._start]
        members: list[int] = []
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            instruction = self._instructions[index]
            if index == _ACCEPT or isinstance(instruction, _Read):
                members.append(index)
            elif isinstance(instruction, _Split):
                stack.extend(instruction.targets)
            elif bool(context >> instruction.bit & 1) != instruction.negated:
                stack.append(instruction.target)
        budget.spend(len(seen))
        return self._interned(frozenset(members))

    def _interned(self, members: frozenset[int]) -> _State:
        state = self._states.get(members)
        if state is None:
            reads: dict[int, tuple[Predicate, list[int]]] = {}
            for index in members:
                instruction = self._instructions[index]
                if isinstance(instruction, _Read):
                    key = id(instruction.matches)
                    reads.setdefault(key, (instruction.matches, []))[1].append(instruction.target)
            state = _State(members, _ACCEPT in members, list(reads.values()))
            if len(self._states) >= MAX_CACHED_STATES or self._cached_members > MAX_CACHED_MEMBERS:
                self._forget()
            self._states[members] = state
            self._cached_members += len(members)
        return state

    def _forget(self) -> None:
        for state in getattr(self, "_states", {}).values():
            state.next.clear()
        self._states: dict[frozenset[int], _State] = {}
        self._cached_members = 0


class _Budget:
    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise ValidatorError(f"matching a pattern took more than {MAX_STEPS} steps; simplify the pattern")


class _ContextBits:
    """Numbers the conditions of a pattern, and computes for a text which of them hold at each position."""

    def __init__(self) -> None:
        self._bit_of_kind: dict[str, int] = {}
        self._bit_of_look: dict[int, int] = {}
        self._looks: list[tuple[int, Look, _Automaton]] = []
        self._count = 0

    def of(self, node: Assertion | Look) -> int:
        if isinstance(node, Assertion):
            if node.kind not in self._bit_of_kind:
                self._bit_of_kind[node.kind] = self._new()
            return self._bit_of_kind[node.kind]
        if id(node) not in self._bit_of_look:
            automaton = _Automaton(
                node.body, self, backwards=not node.behind
            )  # inner look-arounds get their bits first
            self._bit_of_look[id(node)] = self._new()
            self._looks.append((self._bit_of_look[id(node)], node, automaton))
        return self._bit_of_look[id(node)]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def contexts(self, text: str) -> list[int]:
        contexts = [0] * (len(text) + 1)
        for kind, bit in self._bit_of_kind.items():
            for position in _positions(kind, text):
                contexts[position] |= 1 << bit
        for bit, node, automaton in self._looks:
            if node.behind:
                flags = automaton.ends(text, contexts)
            else:
                flags = automaton.ends(text[::-1], contexts[::-1])[::-1]
            for position, holds in enumerate(flags):
                if holds:
                    contexts[position] |= 1 << bit
        return contexts


def _positions(kind: str, text: str) -> Iterable[int]:
    """Where an assertion (not negated) holds."""
    if kind == "start":
        return (0,)
    if kind == "end":
        return (len(text),)
    if kind == "line_start":
        return [0] + [index for index, char in enumerate(text, 1) if char in LINE_TERMINATORS]
    if kind == "line_end":
        return [index for index, char in enumerate(text) if char in LINE_TERMINATORS] + [len(text)]
    is_word = word_predicate(kind == "word_folded")
    sides = [False, *(is_word(char) for char in text), False]
    return [index for index in range(len(text) + 1) if sides[index] != sides[index + 1]]


class EcmaRegex:
    """A compiled pattern. Safe to share between threads.

    lenient: see ecma_syntax. whole: a match must span the whole text, as if between `^(?:` and `)$`.
    """

    def __init__(self, pattern: str, *, lenient: bool = True, whole: bool = False) -> None:
        self.pattern = pattern
        node = parse_regex(pattern, lenient=lenient)
        if whole:
            node = Concat((Assertion("start"), node, Assertion("end")), node.depth + 1)
        size = _program_size(node)
        if size > MAX_PROGRAM_STATES:
            raise RegexUnsupported(
                f"unsupported regular expression: it unrolls to {size} states, the limit is {MAX_PROGRAM_STATES}; "
                "use smaller repetition counts"
            )
        self._bits = _ContextBits()
        self._automaton = _Automaton(node, self._bits, backwards=False)

    def search(self, text: str) -> bool:
        """Whether the pattern matches: anywhere in text, or with `whole` all of it."""
        return self._automaton.occurs(text, self._bits.contexts(text))
