"""Token-level automata of small regexes: a mask is a table row, a step is a look-up, and the whole fits on a device.
On a CPU the native machine's cached rows are as fast, so that is what the tables are for, and a second opinion.

outlines-core builds the index (its determiniser and token walk share no code with the native machine); this module
makes an exact constraint of it:

- A regex goes over in plain syntax, every character written as a code point, since the dialects differ.
- The index drops tokens that lead from an accepting state to one that is not (its match states tell of the byte
  before), which would lose texts such as "abc" of `a(bc)?`. So it is built for the regex followed by an end mark, a
  character that the regex cannot read, and a state accepts where the mark's own token leads to the end.
- What is left of states from which no tokens reach an end is trimmed, so rows are live over this very vocabulary.
- Each state's row is compared with the native machine's. A difference is an error, never a wider mask.

The number of states is bounded by the native machine before outlines-core, which knows no bounds, is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from outlines_core import Index  # type: ignore[import-untyped]
from outlines_core import Vocabulary as OutlinesVocabulary

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError
from safegen.grammars.constraint import ConstraintViolation, MaskRows, Retract, TokenTable
from safegen.grammars.disk_cache import DiskCache
from safegen.grammars.options import Limits
from safegen.grammars.plain_regex import end_mark, plain_syntax, unanchored
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex
from safegen.grammars.regex_tree import Kind, Pattern
from safegen.grammars.token_fsm import NO_TOKEN, TokenFsm, Transitions
from safegen.grammars.vocabulary import Vocabulary

_MAX_FORCED = 4096
_FORMAT = "1"


@dataclass(frozen=True)
class FsmProgram:
    """A regex that is to run on tables. Immutable but for a cache of them; thread-safe. mark: a character that it does
    not read. program: its native twin."""

    pattern: str
    tree: Pattern
    mark: str
    program: Program
    num_states: int
    _tables: dict[str, TokenFsm] = field(default_factory=dict, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def table(self, vocabulary: Vocabulary, cache: DiskCache | None = None) -> TokenFsm:
        """Made at the first use with a vocabulary, or read from the cache. Raises GrammarError."""
        with self._lock:
            if vocabulary.fingerprint not in self._tables:
                self._tables[vocabulary.fingerprint] = self._made(vocabulary, cache)
            return self._tables[vocabulary.fingerprint]

    def constraint(self, vocabulary: Vocabulary, cache: DiskCache | None = None) -> FsmConstraint:
        return FsmConstraint(self.table(vocabulary, cache))

    def _made(self, vocabulary: Vocabulary, cache: DiskCache | None) -> TokenFsm:
        key = ("token fsm", _FORMAT, vocabulary.fingerprint, self.pattern)
        content = None if cache is None else cache.get(*key)
        transitions = None if content is None else Transitions.unpacked(content, vocabulary)
        if transitions is not None:
            fsm = TokenFsm.over(vocabulary, self.program, transitions)
            if fsm.agrees() is None:
                return fsm
        made = token_fsm(self, vocabulary)
        if cache is not None:
            cache.put(made.transitions.packed(), *key)
        return made


def compile_fsm(pattern: str, program: Program, limits: Limits) -> FsmProgram:
    """program: the native one of the same pattern. Raises GrammarError when the regex is too large or looks around."""
    tree = parse_regex(
        pattern, max_depth=limits.max_depth, max_chars=limits.max_pattern_chars, max_count=limits.max_count_product
    )
    tree = unanchored(tree)
    builder = Builder(max_states=limits.max_states, deadline_s=limits.compile_deadline_s)
    try:
        num_states = builder.count_states(RegexLowering(builder).full(tree), limits.max_fsm_states + 1)
    except LimitExceeded as error:
        raise GrammarError(f"The regex {pattern[:80]!r} is too large for the machine: {error}.") from error
    if num_states > limits.max_fsm_states:
        raise GrammarError(
            f"fsm=True is for small regexes; {pattern[:80]!r} has more than {limits.max_fsm_states} states "
            "(max_fsm_states). Leave fsm out."
        )
    return FsmProgram(pattern, tree, end_mark(tree), program, num_states)


def token_fsm(program: FsmProgram, vocabulary: Vocabulary) -> TokenFsm:
    """Raises GrammarError when no text can be spelled, or when the two machines differ."""
    trimmed = _Trimmed(_Indexed(program, vocabulary), program.pattern)
    fsm = TokenFsm.over(vocabulary, program.program, trimmed.transitions())
    differing = fsm.agrees()
    if differing is not None:
        place = f"after {differing!r:.80}"
        raise GrammarError(f"outlines-core's index and the native machine differ {place}. Leave fsm out; report it.")
    return fsm


class _Indexed:
    """outlines-core's index of a regex and its end mark, state by state."""

    def __init__(self, program: FsmProgram, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._mark_id, self._eos_id = vocabulary.size, vocabulary.size + 1
        listed: dict[bytes, list[int]] = {}
        used = [
            (token, text)
            for token, text in enumerate(vocabulary.token_bytes)
            if text and token not in vocabulary.stop_ids
        ]
        alphabet = {text[0] for _, text in used if len(text) == 1}
        for token, text in used:
            if alphabet.issuperset(text):  # the native machine, too, wants every byte as a token of its own
                listed.setdefault(text, []).append(token)
        listed.setdefault(program.mark.encode(), []).append(self._mark_id)
        pattern = f"(?:{plain_syntax(program.tree)}){plain_syntax(Pattern(Kind.TEXT, text=program.mark))}"
        try:
            self._index: Any = Index(pattern, OutlinesVocabulary(self._eos_id, listed))
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | MemoryError):
                raise
            raise GrammarError(f"outlines-core cannot index {program.pattern[:80]!r}: {error!s:.300}") from error
        self.initial: int = self._index.get_initial_state()

    def accepts(self, state: int) -> bool:
        after = self._index.get_next_state(state, self._mark_id)
        return after is not None and bool(self._index.is_final_state(after))

    def transitions(self, state: int) -> dict[int, int]:
        allowed = self._index.get_allowed_tokens(state) or ()
        tokens = sorted(token for token in allowed if token < self._mark_id)
        return {token: self._index.get_next_state(state, token) for token in tokens}


class _Trimmed:
    """The states that lie on a way from the first to an end, in the order they are first met."""

    def __init__(self, index: _Indexed, pattern: str) -> None:
        self.vocabulary = index.vocabulary
        self.texts = {index.initial: b""}
        self.out: dict[int, dict[int, int]] = {}
        self.final: set[int] = set()
        pending = [index.initial]
        for state in pending:  # grows
            self.out[state] = index.transitions(state)
            if index.accepts(state):
                self.final.add(state)
            for token, target in self.out[state].items():
                if target not in self.texts:
                    self.texts[target] = self.texts[state] + (self.vocabulary.token_bytes[token] or b"")
                    pending.append(target)
        self.closing = self._closings()  # of the states that reach an end
        if index.initial not in self.closing:
            raise GrammarError(f"This vocabulary cannot spell a text of {pattern[:80]!r}.")

    def _closings(self) -> dict[int, int]:
        """The first token of the way to an end with the fewest bytes, of those the fewest tokens (Dijkstra)."""
        into: dict[int, list[tuple[int, int, int]]] = {}
        for state, transitions in self.out.items():
            best: dict[int, tuple[int, int]] = {}
            for token, target in transitions.items():
                size = len(self.vocabulary.token_bytes[token] or b"")
                best[target] = min(best.get(target, (size, token)), (size, token))
            for target, (size, token) in best.items():
                into.setdefault(target, []).append((size, token, state))
        found: dict[int, int] = {}
        queue = [(0, 0, NO_TOKEN, state) for state in sorted(self.final)]
        while queue:
            size, num_tokens, token, state = heapq.heappop(queue)
            if state not in found:
                found[state] = token
                for more, first, source in into.get(state, ()):
                    if source not in found:
                        heapq.heappush(queue, (size + more, num_tokens + 1, first, source))
        return found

    def transitions(self) -> Transitions:
        states = [state for state in self.texts if state in self.closing]
        number = {state: place for place, state in enumerate(states)}
        kept = [[(t, number[to]) for t, to in self.out[state].items() if to in number] for state in states]
        return Transitions(
            offsets=np.cumsum([0, *map(len, kept)], dtype=np.int64),
            tokens=np.array([token for row in kept for token, _ in row], dtype=np.int32),
            targets=np.array([target for row in kept for _, target in row], dtype=np.int32),
            is_final=np.array([state in self.final for state in states], dtype=np.bool_),
            closings=np.array([self.closing[state] for state in states], dtype=np.int32),
            texts=tuple(self.texts[state] for state in states),
        )


class FsmConstraint:
    """Constraint state of one sequence over a table. Nothing is ever taken back."""

    __slots__ = ("_fsm", "_num_tokens", "_state", "_stopped", "_ways")

    def __init__(self, fsm: TokenFsm) -> None:
        self._fsm = fsm
        self._ways = fsm.transitions
        self._state = 0
        self._num_tokens = 0
        self._stopped = False

    @property
    def token_table(self) -> TokenTable:
        return self._fsm.token_table

    @property
    def table_state(self) -> int:
        return self._fsm.num_states if self._stopped else self._state

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        fsm, state, stopped = self._fsm, self._state, self._stopped
        rows.words[len(draft) :] = 0
        for place, token in enumerate([*draft, NO_TOKEN]):
            rows.words[place] = fsm.stop_row if stopped else fsm.masks[state]
            after = None if token == NO_TOKEN else self._after(state, stopped, token)
            if after is None:
                rows.words[place + 1 :] = 0
                return place
            state, stopped = after
        return len(draft)

    def advance(self, ids: Sequence[int]) -> Retract | None:
        state, stopped = self._state, self._stopped
        for token in ids:
            after = self._after(state, stopped, token)
            if after is None:
                raise ConstraintViolation(f"token {token} is not legal here")
            state, stopped = after
        self._state, self._stopped = state, stopped
        self._num_tokens += len(ids)
        return None

    def _after(self, state: int, stopped: bool, token: int) -> tuple[int, bool] | None:
        fsm = self._fsm
        if stopped:
            return None
        if token in fsm.vocabulary.stop_ids:
            return (state, True) if self._ways.is_final[state] else None
        target = self._ways.next_state(state, token)
        return None if target is None else (target, False)

    def settled(self) -> int:
        return self._num_tokens

    def forced(self) -> bytes:
        """The native machine's answer after a text that leads to the same state."""
        begin = text = self._ways.texts[self._state]
        program = self._fsm.program
        while not self._stopped and len(text) - len(begin) < _MAX_FORCED and not program.matches(text):
            following = program.expected(text)
            if len(following) != 1:
                break
            text += following
        return text[len(begin) :]

    def can_end(self) -> bool:
        return self._stopped or bool(self._ways.is_final[self._state])

    def is_complete(self) -> bool:
        offsets = self._ways.offsets
        return self._stopped or (self.can_end() and bool(offsets[self._state] == offsets[self._state + 1]))

    def shortest_completion(self) -> tuple[int, ...]:
        state, ids = self._state, list[int]()
        while not self._stopped and not self._ways.is_final[state]:
            token = int(self._ways.closings[state])
            ids.append(token)
            after = self._ways.next_state(state, token)
            assert after is not None  # a way to an end is made of transitions
            state = after
        return tuple(ids)

    def fork(self) -> FsmConstraint:
        copied = FsmConstraint(self._fsm)
        copied._state, copied._num_tokens, copied._stopped = self._state, self._num_tokens, self._stopped
        return copied
