"""Why a text is no answer: the first byte that no answer has there, the places to blame, what was expected instead.

    program, text -> frontier -> open values, innermost first -> the first that refuses the text -> its keywords
                    (native)                                                                    (json_schema.blame)

For a grammar the places are its rules and terminals. What no schema at all would allow is told apart from what these
schemas forbid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from safegen._native import Program
from safegen.grammars.frontier import Frontier, Waiting, frontier_of
from safegen.grammars.json_schema.blame import Blame, Fault, Place
from safegen.grammars.json_schema.terms import Term
from safegen.grammars.origins import Origins, SchemaOrigin
from safegen.grammars.wording import expectations, shown

__all__ = ["Place", "Rejection", "rejection_of"]

_ENDS = (b"", b",", b"]", b"}", b" ", b"\t", b"\r", b"\n")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[ \t\r\n]++|[^\[\]{},: \t\r\n"]++', re.DOTALL)
Kind = Literal["ends early", "not JSON", "keyword", "structure"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """byte: offset of the first byte that no answer has there; the length of the text when it only lacks an end.

    kind: "ends early"; "not JSON": no schema would let the text go on so; "keyword": `places` are to blame;
    "structure": what the frame around the values, a grammar or a regex forbids. value_end: where the innermost JSON
    value ends that this byte stands in.
    """

    byte: int
    kind: Kind
    places: tuple[Place, ...]
    expected: tuple[str, ...]
    value_end: int | None = None


def rejection_of(program: Program, origins: Origins, text: bytes) -> Rejection | None:
    """None when the text is an answer. Raises LimitExceeded where its automaton passes a limit."""
    found = frontier_of(program, text)
    if found.num_bytes == len(text) and found.can_end:
        return None
    expected = expectations(found, is_json=bool(origins.schemas) and not origins.rules)
    if found.failures:  # the byte itself is legal, only not yet
        expected = tuple(word for word in expected if word != shown(text[found.num_bytes : found.num_bytes + 1]))
    kind, places = _blamed(found, origins, text)
    return Rejection(found.num_bytes, kind, tuple(places), expected, _value_end(found, text))


def _blamed(found: Frontier, origins: Origins, text: bytes) -> tuple[Kind, list[Place]]:
    byte = text[found.num_bytes : found.num_bytes + 1]
    unknown: Kind = "structure" if byte else "ends early"
    innermost, vague = list[Place](), list[Place]()
    for origin, blame, level, terms in _candidates(found, origins, byte):
        fault = Fault(text[level.start : found.num_bytes], byte, json_value_at(text, level.start))
        if not innermost:
            innermost = _under(origin, blame.positions(terms))
        if not fault.value and byte in _ENDS and not (byte and level.is_outermost):
            continue  # it has not begun: the value around it is at fault, or the text ends early
        if not (byte or (level.is_outermost and fault.ends_value)):
            continue
        if not blame.is_json(fault):
            return ("not JSON" if byte else unknown), innermost
        places = _under(origin, blame.places(terms, fault)) if level.is_shared else []
        if any(place.keyword for place in places):
            return "keyword", places
        vague = vague or places
    if vague or found.failures:
        return "keyword", vague or [Place(pointer, "") for _, pointer in found.failures]
    return unknown, innermost or _rules(found, origins)


def _candidates(
    found: Frontier, origins: Origins, byte: bytes
) -> Iterator[tuple[SchemaOrigin, Blame, _Level, list[Term]]]:
    """Open values with the terms that they have in a schema, innermost first."""
    blames = [(origin, Blame(origin)) for origin in origins.schemas if not found.waiting or _is_open(found, origin)]
    for level in _levels(found, byte):
        for origin, blame in blames:
            terms = list(dict.fromkeys(origin.terms[node] for node in level.nodes if node in origin.terms))
            if terms:
                yield origin, blame, level, terms
    if not found.waiting and len(blames) == 1:  # the whole text is an answer, and more follows
        origin, blame = blames[0]
        yield origin, blame, _Level(0, (), True, True), [origin.root]


@dataclass(frozen=True, slots=True)
class _Level:
    """The values that begin at one place. is_shared: whatever may come next lies in one of them. is_outermost: none of
    them lies in another."""

    start: int
    nodes: tuple[int, ...]
    is_shared: bool
    is_outermost: bool


def _levels(found: Frontier, byte: bytes) -> Iterator[_Level]:
    """By where they begin, latest first. A byte that ends no value tries to go on with the innermost one, so what else
    may come next is of no matter then."""
    starts = sorted({start for one in found.waiting for start in _starts(one)}, reverse=True)
    concerned = [one for one in found.waiting if byte in _ENDS or starts[0] in _starts(one)] if starts else []
    for start in starts:
        within = [(one, value) for one in found.waiting for value in one.open if value.start == start]
        yield _Level(
            start,
            tuple(dict.fromkeys(node for _, value in within for node in value.nodes)),
            all(start in _starts(one) for one in concerned),
            all(one.open[-1] is value for one, value in within),
        )


def _starts(waiting: Waiting) -> list[int]:
    return [value.start for value in waiting.open if value.start is not None]


def _value_end(found: Frontier, text: bytes) -> int | None:
    """Where the value ends in the text that the byte stands in, or that it would end."""
    byte, start = text[found.num_bytes : found.num_bytes + 1], 0
    for level in _levels(found, byte):
        if level.is_shared and not (level.start == found.num_bytes and byte in _ENDS):
            start = level.start
            break
    value = json_value_at(text, start)
    return None if value is None else start + len(value)


def json_value_at(text: bytes, start: int) -> bytes | None:
    """The JSON value that begins at a place, by its brackets and quotes alone. None where it does not end."""
    depth, at = 0, start
    while found := _TOKEN.match(text, at):
        at = found.end()
        opening = found[0][:1]
        if opening in b"[{":
            depth += 1
        elif opening in b"]}":
            depth -= 1
        if depth < 0:
            return None
        if depth == 0 and opening not in b",: \t\r\n":
            return text[start:at]
    return None


def _is_open(found: Frontier, origin: SchemaOrigin) -> bool:
    return any(node in origin.terms for one in found.waiting for value in one.open for node in value.nodes)


def _under(origin: SchemaOrigin, places: list[Place]) -> list[Place]:
    return [Place(origin.prefix + place.pointer, place.keyword) for place in places]


def _rules(found: Frontier, origins: Origins) -> list[Place]:
    """Of a grammar: the innermost rules, each with the terminals that could go on there."""
    places: dict[Place, None] = {}
    for waiting in found.waiting:
        rule = next((origins.rules[node] for node in waiting.rules if node in origins.rules), origins.start)
        nodes = waiting.open[0].nodes if waiting.open else ()
        names = [name for node in nodes for name in origins.terminals.get(node, ())]
        places.update(dict.fromkeys(Place(rule, name) for name in names or ([""] if rule else [])))
    return list(places)
