"""Is a text derived by a grammar in Lark syntax? The judge of grammar answers.

The algorithm and the language are those of Lark's Earley parser with lexer="dynamic_complete" (Earley 1970; nullable
rules after Aycock and Horspool 2002), written again: Lark's own multiplies options out, which can take exponential
room, builds a forest of all derivations, and matches with a backtracking engine. Here an answer costs at worst the cube
of its length, usually a small multiple of it, and a deadline bounds it. A tree, where one is asked for, is Lark's.

Shares nothing with the decoder but the text in which extensions (`%json`, `&`, `~`) have been replaced by terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import thread_time
from typing import Any

from lark import Lark
from lark.exceptions import LarkError

from safegen.errors import GrammarError, InvalidOutput
from safegen.validation.grammar_rules import MAX_LARK_SYMBOLS, Automata, automata, lark_size, load
from safegen.validation.outcome import ValidatorError
from safegen.validation.terminal_ends import TerminalEnds

Item = tuple[int, int]  # state, where its rule began


class GrammarValidator:
    """Judges texts of one grammar; thread-safe.

    text: plain Lark. schemas, expressions: what stands for extensions, as `TerminalEnds` takes them. deadline_s:
    seconds of this thread's own work that one text may take.
    """

    def __init__(
        self,
        text: str,
        start: str,
        *,
        schemas: Mapping[str, str] | None = None,
        expressions: Mapping[str, Any] | None = None,
        deadline_s: float = 10.0,
    ) -> None:
        self.text, self.start, self.deadline_s = text, start, deadline_s
        self.grammar = load(text)
        self.terminals = TerminalEnds(self.grammar.terminals, schemas or {}, expressions or {})
        self._automata: dict[int, Automata] = {}

    def check(self, text: str) -> None:
        """Raises InvalidOutput when no derivation gives `text`, ValidatorError when none is found in time."""
        failed_at = _Run(self, text).failure()
        if failed_at is not None:
            raise InvalidOutput(f"the grammar does not derive this text; it goes wrong near character {failed_at}")

    def require_tree(self) -> None:
        """Raises GrammarError when Lark, which multiplies options out, could not hold the grammar."""
        if lark_size(self.grammar) > MAX_LARK_SYMBOLS:
            raise GrammarError(
                f"Lark would multiply this grammar out to more than {MAX_LARK_SYMBOLS:,} symbols, so it can make no "
                "tree; write options and counts as rules of their own, or leave tree=False."
            )
        try:
            Lark(self.text, start=self.start, parser="earley", lexer="dynamic_complete")
        except LarkError as error:
            raise GrammarError(f"Lark makes no trees of this grammar: {error}") from error

    def tree(self, text: str) -> Any:
        """Lark's tree of a text that `check` has passed."""
        lark = Lark(self.text, start=self.start, parser="earley", lexer="dynamic_complete")
        run = _Run(self, text)
        lark.parser.parser.term_matcher = run.match
        try:
            return lark.parse(text)
        except (LarkError, RuntimeError) as error:
            raise InvalidOutput(f"Lark made no tree of this text: {error}") from error

    def automata_for(self, num_chars: int) -> Automata:
        longest = 1 << max(4, (num_chars + 1).bit_length())
        made = self._automata.get(longest)
        if made is None:
            made = self._automata[longest] = automata(self.grammar, longest)
        return made


class _Match:
    """What Lark's scanner asks of a match."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text, self._start, self._end = text, start, end

    def end(self) -> int:
        return self._end

    def group(self, _: int) -> str:
        return self._text[self._start : self._end]


class _Run:
    """One text."""

    def __init__(self, validator: GrammarValidator, text: str) -> None:
        self.validator = validator
        self.text = text
        self.automata = validator.automata_for(len(text))
        self._until = thread_time() + validator.deadline_s
        self._ends: dict[tuple[str, int], list[int]] = {}

    def ends(self, name: str, at: int) -> list[int]:
        key = (name, at)
        known = self._ends.get(key)
        if known is None:
            if thread_time() > self._until:
                raise ValidatorError(f"checking this text took longer than {self.validator.deadline_s:g} s")
            known = self._ends[key] = self.validator.terminals.of(name, self.text, at)
        return known

    def match(self, term: Any, text: Any, index: int = 0) -> _Match | None:
        """Lark's scanner: the longest word at `index`; of a shorter text, the longest that is not longer."""
        plain = text if isinstance(text, str) else text.text
        is_whole = len(plain) == len(self.text)
        ends = self.ends(term.name, index) if is_whole else self.validator.terminals.of(term.name, plain, index)
        return _Match(plain, index, ends[-1]) if ends else None

    def failure(self) -> int | None:
        """None when the text is derived, else how far it got."""
        machine, start = self.automata, self.validator.start
        size = len(self.text)
        columns: list[set[Item]] = [set() for _ in range(size + 1)]
        waiting: list[dict[str, set[Item]]] = [{} for _ in range(size + 1)]
        columns[0].add((machine.first[start], 0))
        furthest = 0
        goal = (machine.last[start], 0)
        for at in range(size + 1):
            if columns[at]:
                furthest = at
                scans = self._complete(at, columns, waiting)
                if at < size:
                    self._scan(at, scans, goal, columns)
                    columns[at] = set()
        return None if goal in columns[size] else furthest

    def _complete(self, at: int, columns: list[set[Item]], waiting: list[dict[str, set[Item]]]) -> list[Item]:
        """Predict and complete; returns the items that wait for terminals."""
        machine, column = self.automata, columns[at]
        scans: list[Item] = []
        pending = list(column)

        def add(item: Item) -> None:
            if item not in column:
                column.add(item)
                pending.append(item)

        steps = 0
        while pending:
            steps += 1
            if steps % 4096 == 0 and thread_time() > self._until:
                raise ValidatorError(f"checking this text took longer than {self.validator.deadline_s:g} s")
            state, origin = pending.pop()
            for to in machine.empty[state]:
                add((to, origin))
            for rule, to in machine.rules[state]:
                waiting[at].setdefault(rule, set()).add((to, origin))
                add((machine.first[rule], at))
                if rule in machine.nullable:
                    add((to, origin))
            if machine.terminals[state]:
                scans.append((state, origin))
            if state in machine.ended and origin < at:
                for item in waiting[origin].get(machine.ended[state], ()):
                    add(item)
        return scans

    def _scan(self, at: int, scans: list[Item], goal: Item, columns: list[set[Item]]) -> None:
        for state, origin in scans:
            for name, to in self.automata.terminals[state]:
                for end in self.ends(name, at):
                    columns[end].add((to, origin))
        for name in self.validator.grammar.ignored:
            ends = self.ends(name, at)
            if ends:
                columns[ends[-1]].update(scans)
                if goal in columns[at]:
                    columns[ends[-1]].add(goal)
