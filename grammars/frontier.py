"""Where a text stops being the beginning of an answer, and what could have stood there instead.

The native machine tells its state at that place: the lexemes that may go on, the values each lies in, and the nodes
that await those values. `safegen.grammars.origins` says what a node was built from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safegen._native import Program


@dataclass(frozen=True, slots=True)
class OpenValue:
    """A value that is not whole yet. nodes: of the builder, that await it. start: its first byte, None if unknown."""

    nodes: tuple[int, ...]
    start: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lexeme that may go on.

    role: "value", "key", "open", "close", "comma", "colon" or "blank". open: the values it lies in, innermost first.
    rules: nodes of the grammar rules it lies in, innermost first. texts: what completes it, or of a key the whole names
    that are declared; is_all: that leaves nothing out. first: the bytes that may come next.
    """

    role: str
    open: tuple[OpenValue, ...]
    rules: tuple[int, ...]
    texts: tuple[bytes, ...]
    is_all: bool
    first: bytes


@dataclass(frozen=True, slots=True)
class Frontier:
    """num_bytes: of the text, as many as some answer starts with. failures: verified parts that the next byte would
    end, and that are wrong as a whole: (first byte, schema pointer)."""

    num_bytes: int
    can_end: bool
    waiting: tuple[Waiting, ...]
    failures: tuple[tuple[int, str], ...]


def frontier_of(program: Program, text: bytes) -> Frontier:
    num_bytes, can_end, waiting, failures = program.frontier(text)
    lexemes = tuple(
        Waiting(
            role,
            tuple(OpenValue(tuple(nodes), start) for nodes, start in values),
            tuple(rules),
            tuple(texts),
            is_all,
            first,
        )
        for role, values, rules, texts, is_all, first in waiting
    )
    return Frontier(num_bytes, can_end, lexemes, tuple(failures))
