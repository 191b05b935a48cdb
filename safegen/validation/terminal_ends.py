"""Where the terminals of one grammar may end: regexes, embedded JSON Schemas, and expressions with `&` and `~`.

An expression is the name of a terminal, or an operation (op, parts, low, high) with op "|", "&", "" (one after the
other), "~" (complement) or "#" (counted). A reserved character in the regex of a terminal stands for an expression;
such a regex means all its words, without preference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from re import _constants as c
from re import _parser
from typing import Any

from safegen.validation.outcome import ValidatorError
from safegen.validation.schema_validator import SchemaValidator
from safegen.validation.terminal_words import TerminalWords, char_test, set_source

Ends = Callable[[int], set[int]]


class TerminalEnds:
    """patterns: regexes by name. schemas: JSON Schemas by name. expressions: by reserved character."""

    def __init__(self, patterns: Mapping[str, str], schemas: Mapping[str, str], expressions: Mapping[str, Any]) -> None:
        self._patterns = patterns
        self._schemas = {name: SchemaValidator(schema) for name, schema in schemas.items()}
        self._expressions = expressions
        self._words: dict[str, TerminalWords] = {}

    def of(self, name: str, text: str, at: int) -> list[int]:
        """Ends of the words at `at`, in increasing order; no word is empty."""
        if name in self._schemas:
            return _schema_ends(self._schemas[name], text, at)
        return sorted(end for end in self._named(name, text, at) if end > at)

    def _named(self, name: str, text: str, at: int) -> set[int]:
        pattern = self._patterns[name]
        if any(char in pattern for char in self._expressions):
            parsed = _parser.parse(pattern)
            return self._sequence(list(parsed), parsed.state.flags, text, at)
        known = self._words.get(name)
        if known is None:
            known = self._words[name] = TerminalWords(pattern)
        return set(known.ends(text, at))

    def _expression(self, expression: Any, text: str, at: int) -> set[int]:
        if isinstance(expression, str):
            return self._named(expression, text, at)
        op, parts, low, high = expression
        if op == "|":
            return set().union(*(self._expression(part, text, at) for part in parts))
        if op == "&":
            return set.intersection(*(self._expression(part, text, at) for part in parts))
        if op == "~":
            return set(range(at, len(text) + 1)) - self._expression(parts[0], text, at)
        if op == "#":
            return _counted(lambda start: self._expression(parts[0], text, start), low, high, at)
        reached = {at}
        for part in parts:
            reached = {end for start in reached for end in self._expression(part, text, start)}
        return reached

    # Regexes with reserved characters.

    def _sequence(self, parts: list[tuple[Any, Any]], flags: int, text: str, at: int) -> set[int]:
        reached = {at}
        for op, value in parts:
            reached = {end for start in reached for end in self._one(op, value, flags, text, start)}
        return reached

    def _one(self, op: Any, value: Any, flags: int, text: str, at: int) -> set[int]:
        if op is c.LITERAL and chr(value) in self._expressions:
            return self._expression(self._expressions[chr(value)], text, at)
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return {at + 1} if at < len(text) and char_test(set_source(op, value), flags)(text[at]) else set()
        if op is c.BRANCH:
            return set().union(*(self._sequence(list(branch), flags, text, at) for branch in value[1]))
        if op is c.SUBPATTERN:
            return self._sequence(list(value[3]), (flags | value[1]) & ~value[2], text, at)
        if op in (c.MAX_REPEAT, c.MIN_REPEAT):
            low, high, inner = value
            most = None if high is c.MAXREPEAT else int(high)
            return _counted(lambda start: self._sequence(list(inner), flags, text, start), low, most, at)
        raise ValidatorError(f"a terminal with & or ~ holds {op}, which cannot be checked")


def _counted(ends: Ends, low: int, high: int | None, at: int) -> set[int]:
    reached, found, count = {at}, set[int](), 0
    seen: list[set[int]] = []
    while reached and (high is None or count <= high):
        if count >= low:
            if reached <= found:
                break
            found |= reached
        elif reached in seen[-1:]:  # only the empty word is left: it counts as often as one likes
            count = low
            continue
        seen.append(reached)
        reached = {end for start in reached for end in ends(start)}
        count += 1
    return found


def _schema_ends(validator: SchemaValidator, text: str, at: int) -> list[int]:
    try:
        _, end = json.JSONDecoder().raw_decode(text, at)
    except (json.JSONDecodeError, RecursionError):
        return []
    candidates = range(at + 1, end + 1) if text[at] in "-0123456789" else (end,)
    return [stop for stop in candidates if validator.outcome(text[at:stop]).status == "valid"]
