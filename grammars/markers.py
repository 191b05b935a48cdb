"""Texts around a marker: the language of what comes before its first occurrence.

A reader who looks for the first marker in a text (`str.find`) and the machine must mean the same place. So the language
"text, then the marker" is not the concatenation of two languages (with the marker "aa", the text "aaa" would be "a"
before a marker), but: texts that end with the marker and hold it nowhere earlier.
"""

from __future__ import annotations

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError
from safegen.grammars.bans import Bans, Wrap
from safegen.grammars.options import Limits

__all__ = ["Wrap", "compile_free_text", "starting_with", "up_to_marker", "without_marker"]


def up_to_marker(builder: Builder, marker: bytes, bans: Bans | None = None) -> int:
    """The expr of UTF-8 texts that end with `marker`, which stands in them nowhere else. bans: what must not stand in
    the text before it."""
    anything = builder.repeat(_any_byte(builder), 0, None)
    ends = builder.concat([anything, builder.literal(marker)])
    earlier = builder.concat([ends, builder.repeat(_any_byte(builder), 1, None)])
    parts = [builder.any_text(), ends, builder.complement(earlier)]
    if bans is not None:
        parts.append(builder.concat([bans.language(builder), builder.literal(marker)]))
    return builder.intersect(parts)


def without_marker(builder: Builder, marker: bytes, bans: Bans | None = None) -> int:
    """The expr of UTF-8 texts in which `marker` does not stand, nor what bans forbid."""
    anything = builder.repeat(_any_byte(builder), 0, None)
    holds = builder.concat([anything, builder.literal(marker), anything])
    allowed = builder.any_text() if bans is None else bans.language(builder)
    return builder.intersect([allowed, builder.complement(holds)])


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
