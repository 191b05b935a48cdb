"""%ignore: what may stand before a token and at the end of the text.

Lark lets ignored terminals stand between any two tokens and at both ends, and each run is taken where `re.match` ends
it: with `%ignore / +/` and the token `" b"`, the blanks of `a  b` are all ignored, none is left for the token. So a
run may only be followed by text that it cannot go on with. A gap is a sequence of such runs; it becomes part of the
lexeme of the token behind it, which costs the machine no further state.

When a run could go on over the end of the next token, the condition would tie two tokens together; that is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar.automaton import Automaton, words_along

if TYPE_CHECKING:
    from safegen._native import Builder


class Gaps:
    """ignored: the automata of the ignored terminals."""

    def __init__(self, builder: Builder, ignored: list[Automaton]) -> None:
        self.builder = builder
        self._runs: dict[int, list[int]] = {}  # runs by what they would go on with (an expr, closed to the right)
        self._undecided: list[int] = []  # beginnings of such, too short to tell
        for automaton in ignored:
            for state in sorted(automaton.accepting):
                self._add(automaton, state)
        self._gaps = self._solve()

    def _add(self, automaton: Automaton, state: int) -> None:
        builder = self.builder
        going_on = empty = builder.empty()
        if automaton.arrows[state]:
            start = len(automaton.arrows)
            stopped = tuple({} if s in automaton.accepting else row for s, row in enumerate(automaton.arrows))
            onwards = Automaton((*stopped, automaton.arrows[state]), automaton.accepting)
            going_on = builder.concat([onwards.words(builder, start), builder.any_text()])
            undecided = onwards.words(builder, start, set(range(start)) - automaton.accepting)
            if undecided != empty:
                self._undecided.append(undecided)
        self._runs.setdefault(going_on, []).append(automaton.words(builder, 0, (state,)))

    def _solve(self) -> dict[int, int]:
        """Gaps by what their last run would go on with."""
        builder, kinds = self.builder, list(self._runs)
        runs = [builder.alternate(self._runs[kind]) for kind in kinds]
        for run in runs:
            self._check(run, "another ignored terminal")
        states = range(len(kinds))
        source = len(kinds)
        arrows = [{to: self._without(runs[to], kinds[state]) for to in states} for state in states]
        arrows.append(dict(zip(states, runs)))
        return {kinds[state]: words_along(builder, arrows, source, (state,)) for state in states}

    def _without(self, expr: int, going_on: int) -> int:
        """The words that do not go on with a run."""
        builder = self.builder
        if builder.is_empty(builder.intersect([expr, going_on])):
            return expr
        return builder.intersect([expr, builder.complement(going_on)])

    def _check(self, expr: int, what: str) -> None:
        for undecided in self._undecided:
            if not self.builder.is_empty(self.builder.intersect([expr, undecided])):
                raise GrammarError(
                    f"An ignored terminal may go on over the end of {what}, which is not supported: let %ignore take "
                    "single characters or text with a definite end."
                )

    @property
    def trailing(self) -> int:
        """A gap or nothing."""
        return self.builder.alternate([self.builder.epsilon(), *self._gaps.values()])

    def before(self, token: int, name: str) -> int:
        """The token, with or without a gap in front."""
        if not self._gaps:
            return token
        self._check(token, f"the terminal {name}")
        builder = self.builder
        led = [builder.concat([gap, self._without(token, going_on)]) for going_on, gap in self._gaps.items()]
        return builder.alternate([token, *led])

    def before_json(self) -> int:
        """A gap or nothing, in front of JSON text."""
        builder = self.builder
        begins = [
            (0x22, 0x22),
            (0x2D, 0x2D),
            (0x30, 0x39),
            (0x5B, 0x5B),
            (0x66, 0x66),
            (0x6E, 0x6E),
            (0x74, 0x74),
            (0x7B, 0x7B),
        ]
        json = builder.concat([builder.chars(begins), builder.any_text()])
        for expr in [*self._gaps, *self._undecided]:
            if not builder.is_empty(builder.intersect([json, expr])):
                raise GrammarError("An ignored terminal may go on into a %json value, which is not supported.")
        return self.trailing
