"""Texts around a marker: the language of what comes before its first occurrence.

A reader who looks for the first marker in a text (`str.find`) and the machine must mean the same place. So the language
"text, then the marker" is not the concatenation of two languages (with the marker "aa", the text "aaa" would be "a"
before a marker), but: texts that end with the marker and hold it nowhere earlier.
"""

from __future__ import annotations

from collections.abc import Callable

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError
from safegen.grammars.options import Limits

Wrap = Callable[[Builder, int], int]
"""What to make of a node: called with its builder, before the program is built."""


def up_to_marker(builder: Builder, marker: bytes) -> int:
    """The expr of UTF-8 texts that end with `marker`, which stands in them nowhere else."""
    anything = builder.repeat(_any_byte(builder), 0, None)
    ends = builder.concat([anything, builder.literal(marker)])
    earlier = builder.concat([ends, builder.repeat(_any_byte(builder), 1, None)])
    return builder.intersect([builder.any_text(), ends, builder.complement(earlier)])


def without_marker(builder: Builder, marker: bytes) -> int:
    """The expr of UTF-8 texts in which `marker` does not stand."""
    anything = builder.repeat(_any_byte(builder), 0, None)
    holds = builder.concat([anything, builder.literal(marker), anything])
    return builder.intersect([builder.any_text(), builder.complement(holds)])


def starting_with(builder: Builder, num_continuation_bytes: int, text: bytes) -> int:
    """The expr of byte strings that start with so many UTF-8 continuation bytes and then `text`."""
    continuation = builder.repeat(builder.byte_set([(0x80, 0xBF)]), num_continuation_bytes, num_continuation_bytes)
    return builder.concat([continuation, builder.literal(text), builder.repeat(_any_byte(builder), 0, None)])


def compile_free_text(limits: Limits, *, wrap: Wrap) -> Program:
    """Any text, as a part of something larger. Raises GrammarError past a limit."""
    builder = Builder(max_states=limits.max_states)
    try:
        return builder.build(wrap(builder, builder.lexeme(builder.any_text())))
    except LimitExceeded as error:
        raise GrammarError(f"The type is too large for the machine: {error}.") from error


def _any_byte(builder: Builder) -> int:
    return builder.byte_set([(0, 255)])
