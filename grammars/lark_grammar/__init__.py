"""Context-free grammars in Lark syntax to programs of the native constraint machine.

    text -> plain Lark + extensions -> rule trees, patterns -> productions -> no left recursion -> nodes
    (source)                           (reading)               (productions)  (recursion)          (emission)
                                       terminals: python_regex -> terminals, automaton -> lexicon, ignoring

The language is that of Lark's Earley parser with lexer="dynamic_complete", which is any split of the text into
terminals; priorities, aliases and `?` pick a tree, never membership. What cannot be held exactly is refused with line
and column. Nothing is read but the grammars that Lark itself brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import GrammarError
from safegen.grammars.json_schema import schema_builder
from safegen.grammars.lark_grammar.emission import Emission
from safegen.grammars.lark_grammar.lexicon import Lexicon
from safegen.grammars.lark_grammar.productions import productions_of
from safegen.grammars.lark_grammar.reading import read_grammar
from safegen.grammars.lark_grammar.recursion import without_left_recursion
from safegen.grammars.lark_grammar.source import Source, prepare
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.origins import Origins

__all__ = ["CompiledGrammar", "compile_grammar"]


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """source: the grammar with its extensions pulled out. num_productions: after the rewriting."""

    program: Program
    start: str
    source: Source
    num_productions: int
    compile_ms: float


def compile_grammar(
    text: str,
    *,
    start: str = "start",
    limits: Limits | None = None,
    make_builder: Callable[..., Builder] = Builder,
    wrap: Callable[[Builder, int], int] | None = None,
    origins: Origins | None = None,
) -> CompiledGrammar:
    """Compile a grammar in Lark syntax to the texts that derive from `start`. wrap: what to make of its node. origins:
    takes which rules and terminals the nodes were made from.

    Raises GrammarError, with line and column where one can be told, when the grammar is invalid, derives no finite
    text, uses something that cannot be held, or passes a limit.
    """
    started = perf_counter()
    limits = limits or Limits()
    source = prepare(text, limits)
    try:
        program, num_productions = _build(source, text, start, limits, make_builder, wrap, origins)
    except LimitExceeded as error:
        raise GrammarError(f"The grammar is too large for the machine: {error}.") from error
    except RecursionError:
        raise GrammarError("The grammar nests too deeply.") from None
    return CompiledGrammar(program, start, source, num_productions, (perf_counter() - started) * 1e3)


def _build(
    source: Source,
    text: str,
    start: str,
    limits: Limits,
    make_builder: Callable[..., Builder],
    wrap: Callable[[Builder, int], int] | None,
    origins: Origins | None,
) -> tuple[Program, int]:
    reading = read_grammar(source.text, start, limits, text)
    given = productions_of(reading, start, limits, frozenset(source.schemas))
    builder = schema_builder(SchemaOptions(), limits, make_builder)
    lexicon = Lexicon(builder, reading, source, text, limits)
    lexicon.lower_schemas(frozenset(use.name for use in given.terminals), origins)
    dead = frozenset(-1 - index for index, use in enumerate(given.terminals) if lexicon.is_dead(use))
    runnable = without_left_recursion(given, dead, limits)
    lexicon.ignore()
    emission = Emission(
        builder,
        runnable,
        lambda symbol: lexicon.node(given.terminals[-1 - symbol]),
        lambda symbols: lexicon.one_of([given.terminals[-1 - symbol] for symbol in symbols]),
    )
    nodes = [] if runnable.start is None else [emission.node(runnable.start)]
    if origins is not None:
        origins.start = start
        emission.tell(origins, list(reading.rules), [lexicon.shown(use.name) for use in given.terminals])
    if runnable.allows_empty:
        nodes.append(builder.lexeme(builder.epsilon()))
    root = nodes[0] if len(nodes) == 1 else builder.union(nodes)
    trailing = lexicon.trailing()
    if trailing is not None:
        root = builder.sequence([root, builder.lexeme(trailing)])
    if wrap is not None:
        root = wrap(builder, root)
    return builder.build(root), sum(len(productions) for productions in runnable.rules.values())
