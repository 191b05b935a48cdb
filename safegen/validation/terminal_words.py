"""Where a terminal of a Lark grammar may end: the judge's own reading of its regex, in time linear in the text.

Lark's dynamic lexer takes a terminal where `re.match` ends and where it ends in each shorter beginning of that match.
Those ends are found by running all threads of the regex side by side, in order of preference (Thompson 1968, Pike), so
no regex of a user runs on a backtracking engine: `re` itself only ever sees one character against one set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from re import _constants as c
from re import _parser
from typing import Any

from safegen.validation.outcome import ValidatorError

CharTest = Callable[[str], bool]
_MAX_STEPS = 500_000
_CLASSES = {"DIGIT": "d", "NOT_DIGIT": "D", "SPACE": "s", "NOT_SPACE": "S", "WORD": "w", "NOT_WORD": "W"}


class TerminalWords:
    """The ends of one terminal's regex."""

    def __init__(self, pattern: str) -> None:
        parsed = _parser.parse(pattern)
        self._parsed, self._flags = parsed, parsed.state.flags
        self._programs: dict[int, _Program] = {}

    def ends(self, text: str, at: int) -> list[int]:
        """Ends of the words at `at`, in increasing order."""
        longest = 1 << max(4, (len(text) - at).bit_length())  # counts past this cannot matter
        program = self._programs.get(longest)
        if program is None:
            program = self._programs[longest] = _Program(self._parsed, self._flags, longest)
        return program.ends(text, at)


class _Program:
    """steps: ("char", test, next) | ("split", nexts) | ("round", entry, following, out) | ("look", test, next) |
    ("end",). A round ends one pass of a repeat; one that read nothing is the last."""

    def __init__(self, parsed: Any, flags: int, longest: int) -> None:
        self.longest = longest
        self.steps: list[tuple[Any, ...]] = [("end",)]
        self.entry = self._sequence(parsed, flags, 0)

    def ends(self, text: str, at: int) -> list[int]:
        found: list[int] = []
        threads = self._closure([self.entry], text, at, found)
        while threads and at < len(text):
            char = text[at]
            at += 1
            threads = self._closure((nxt for test, nxt in threads if test(char)), text, at, found)
        return found

    def _closure(self, seeds: Iterable[int], text: str, at: int, found: list[int]) -> list[tuple[CharTest, int]]:
        threads: list[tuple[CharTest, int]] = []
        seen: set[int] = set()
        stack = list(seeds)[::-1]
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            step = self.steps[index]
            if step[0] == "char":
                threads.append((step[1], step[2]))
            elif step[0] == "split":
                stack.extend(reversed(step[1]))
            elif step[0] == "round":
                stack.append(step[3] if step[1] in seen else step[2])
            elif step[0] == "look":
                if step[1](text, at):
                    stack.append(step[2])
            else:
                found.append(at)
                break
        return threads

    def _add(self, *step: Any) -> int:
        if len(self.steps) > _MAX_STEPS:
            raise ValidatorError("a terminal's regex is too large to be checked")
        self.steps.append(step)
        return len(self.steps) - 1

    def _sequence(self, parts: Any, flags: int, after: int) -> int:
        for op, value in reversed(list(parts)):
            after = self._one(op, value, flags, after)
        return after

    def _one(self, op: Any, value: Any, flags: int, after: int) -> int:
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return self._add("char", char_test(set_source(op, value), flags), after)
        if op is c.BRANCH:
            return self._add("split", [self._sequence(branch, flags, after) for branch in value[1]])
        if op is c.SUBPATTERN:
            return self._sequence(value[3], (flags | value[1]) & ~value[2], after)
        if op in (c.MAX_REPEAT, c.MIN_REPEAT):
            return self._repeat(value, op is c.MIN_REPEAT, flags, after)
        if op in (c.ASSERT, c.ASSERT_NOT):
            return self._add("look", self._look(value, op is c.ASSERT_NOT, flags), after)
        raise ValidatorError(f"a terminal's regex holds {op}, which is not supported")

    def _repeat(self, value: Any, lazy: bool, flags: int, after: int) -> int:
        low, high, inner = value
        low = min(low, self.longest)
        entry = after

        def optional(entry: int, following: int) -> None:
            body = self._sequence(inner, flags, self._add("round", entry, following, after))
            self.steps[entry] = ("split", [after, body] if lazy else [body, after])

        if high is c.MAXREPEAT:
            entry = self._add("split", [])
            optional(entry, entry)
        else:
            for _ in range(min(int(high), self.longest) - low):
                following, entry = entry, self._add("split", [])
                optional(entry, following)
        for _ in range(low):
            entry = self._sequence(inner, flags, entry)
        return entry

    def _look(self, value: Any, negative: bool, flags: int) -> Callable[[str, int], bool]:
        direction, inner = value
        if direction > 0:
            ahead = _Program(inner, flags, self.longest)
            return lambda text, at: bool(ahead.ends(text, at)) != negative
        ((op, one),) = inner
        test = char_test(set_source(op, one), flags)
        return lambda text, at: (at > 0 and test(text[at - 1])) != negative


def set_source(op: Any, value: Any) -> str:
    """A pattern for exactly one character."""
    if op is c.ANY:
        return "."
    items = value if op is c.IN else [(c.LITERAL, value)]
    source = "^" if op is c.NOT_LITERAL else ""
    for kind, item in items:
        if kind is c.NEGATE:
            source += "^"
        elif kind is c.LITERAL:
            source += f"\\U{item:08x}"
        elif kind is c.RANGE:
            source += f"\\U{item[0]:08x}-\\U{item[1]:08x}"
        else:
            source += "\\" + _CLASSES[str(kind if kind is not c.CATEGORY else item).removeprefix("CATEGORY_")]
    return f"[{source}]"


@cache
def char_test(source: str, flags: int) -> CharTest:
    kept = flags & int(re.IGNORECASE | re.DOTALL | re.ASCII)
    one = re.compile(source, kept)
    known: dict[str, bool] = {}

    def test(char: str) -> bool:
        verdict = known.get(char)
        if verdict is None:
            verdict = known[char] = one.match(char) is not None
        return verdict

    return test
