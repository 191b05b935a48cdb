"""Regex and Choice constraints: one lexeme, no structure.

A regex is matched from end to end; anchors that repeat this are harmless. The language is that of ECMA-262 with the
`u` flag (see `regex_syntax`), recognised by a lazily determinised automaton, never by backtracking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError
from safegen.grammars.markers import Wrap
from safegen.grammars.options import Limits
from safegen.grammars.regex_lowering import RegexLowering
from safegen.grammars.regex_syntax import parse_regex


def compile_regex(
    pattern: str,
    limits: Limits | None = None,
    *,
    make_builder: Callable[..., Builder] = Builder,
    wrap: Wrap | None = None,
) -> Program:
    """Compile `pattern` to the texts it matches from end to end. wrap: what to make of its node.

    Raises GrammarError when it is invalid (with the column), uses something that is not supported, passes a limit, or
    matches no text at all.
    """
    limits = limits or Limits()
    tree = parse_regex(
        pattern, max_depth=limits.max_depth, max_chars=limits.max_pattern_chars, max_count=limits.max_count_product
    )
    builder = make_builder(max_states=limits.max_states, deadline_s=limits.compile_deadline_s)
    try:
        expr = RegexLowering(builder).full(tree)
        if builder.is_empty(expr):
            raise GrammarError(f"The regex {pattern[:80]!r} matches no text.")
        node = builder.lexeme(expr)
        return builder.build(node if wrap is None else wrap(builder, node))
    except LimitExceeded as error:
        raise GrammarError(f"The regex {pattern[:80]!r} is too large for the machine: {error}.") from error


def compile_choice(
    values: Sequence[str],
    limits: Limits | None = None,
    *,
    make_builder: Callable[..., Builder] = Builder,
    wrap: Wrap | None = None,
) -> Program:
    """Compile a choice between exact texts. wrap: what to make of its node.

    Raises GrammarError for an empty list, a duplicate or a value that is no text.
    """
    limits = limits or Limits()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise GrammarError(f"A choice takes a list of str, not {type(values).__name__}.")
    if not values:
        raise GrammarError("A choice needs at least one value.")
    encoded: dict[bytes, None] = {}
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise GrammarError(f"Choice value {index} is {type(value).__name__}, not str.")
        try:
            text = value.encode()
        except UnicodeEncodeError:
            raise GrammarError(f"Choice value {index} holds a lone surrogate, which no text can spell.") from None
        if text in encoded:
            raise GrammarError(f"Choice value {value[:80]!r} is listed twice.")
        encoded[text] = None
    builder = make_builder(max_states=limits.max_states, deadline_s=limits.compile_deadline_s)
    try:
        node = builder.lexeme(builder.strings(list(encoded)))
        return builder.build(node if wrap is None else wrap(builder, node))
    except LimitExceeded as error:
        raise GrammarError(f"The choice is too large for the machine: {error}. Shorten its values.") from error
