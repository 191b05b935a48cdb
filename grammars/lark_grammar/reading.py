"""A grammar as Lark reads it: rule trees over symbols, terminals as Lark's patterns, ignored terminals.

Lark's own loader does the reading, so templates, imports, modifiers, priorities and aliases are Lark's; the rules are
taken before Lark multiplies their options out, which costs exponential room for `a? b? c? ...`. Every complaint of
Lark's becomes a GrammarError with the place in the text, as far as one can be told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lark import load_grammar as lark_loader
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError, UnexpectedInput
from lark.grammar import NonTerminal
from lark.lexer import Pattern, TerminalDef
from lark.tree import Tree

from safegen.errors import GrammarError
from safegen.grammars.lark_grammar.source import place
from safegen.grammars.options import Limits

_loader: Any = lark_loader  # its functions carry no types
RuleTree = Tree[Any]
_MAX_NAME_CHARS = 4096  # a template's instance is named by its arguments
_PLACE = re.compile(r"at line (\d+),? column (\d+)")
_QUOTED_NAME = re.compile(r"['\s(]([!?]*_?[A-Za-z][_A-Za-z0-9]*)['\s):]")


@dataclass(frozen=True, slots=True)
class Reading:
    """rules: tree by name, only those that the start needs. terminals: by name. ignored: names."""

    rules: dict[str, RuleTree]
    terminals: dict[str, Pattern]
    ignored: tuple[str, ...]


def read_grammar(text: str, start: str, limits: Limits, original: str) -> Reading:
    """text: plain Lark. original: the text as it was written, for places. Raises GrammarError."""
    try:
        grammar, _ = _loader.load_grammar(text, "<grammar>", [], False)
        return _compiled(grammar, start, limits)
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError("The grammar nests too deeply for Lark to read it.") from None
    except UnexpectedInput as error:
        line, column = getattr(error, "line", None), getattr(error, "column", None)
        raise GrammarError("Lark cannot read the grammar here.", line=line, column=column) from None
    except (LarkError, AssertionError, OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise _translated(error, original) from None


def _translated(error: BaseException, original: str) -> GrammarError:
    message = str(error).strip() or type(error).__name__
    found = _PLACE.search(message)
    if found:
        reason = message.split(found[0])[0].rstrip(" ,") or message
        return GrammarError(f"{reason}.", line=int(found[1]), column=int(found[2]))
    reason = message.split("\n")[0][:300] + ("" if isinstance(error, LarkError) else f" ({type(error).__name__})")
    for name in _QUOTED_NAME.findall(f" {reason} "):
        defined = list(re.finditer(rf"(?<![_A-Za-z0-9]){re.escape(name)}(?![_A-Za-z0-9])", original))
        if defined and name not in ("rule", "terminal", "Rule", "Terminal"):
            at = defined[-1].start() if "more than once" in reason and len(defined) > 1 else defined[0].start()
            line, column = place(original, at)
            return GrammarError(reason, line=line, column=column)
    return GrammarError(reason)


def _compiled(grammar: Any, start: str, limits: Limits) -> Reading:
    terminals = [
        TerminalDef(name, _pattern(tree, name), priority) for name, (tree, priority) in grammar.term_defs if tree
    ]
    rule_defs = list(grammar.rule_defs)
    if start not in {name for name, params, _, _ in rule_defs if not params}:
        known = ", ".join(sorted(name for name, params, _, _ in rule_defs if not params)[:10]) or "none"
        raise GrammarError(f"The grammar has no rule {start!r} to start from; its rules: {known}.")
    anonymous = _loader.PrepareAnonTerminals(terminals)
    transformer = _loader.PrepareLiterals() * _loader.ValidateSymbols() * anonymous
    transformer = transformer * _loader.ApplyTemplates(rule_defs)
    rules: dict[str, RuleTree] = {}
    at = 0
    while at < len(rule_defs):  # templates append the rules they make
        name, params, tree, options = rule_defs[at]
        at += 1
        if len(name) > _MAX_NAME_CHARS:
            raise GrammarError(f"The template {name.split('{')[0]!r} calls itself with ever longer arguments.")
        if len(rule_defs) > limits.max_productions:
            raise GrammarError(f"The grammar has more than {limits.max_productions:,} rules (max_productions).")
        if params or tree is None:
            continue
        anonymous.rule_options = options if options is not None and options.keep_all_tokens else None
        rules[name] = _without_aliases(transformer.transform(tree))
    used = _reachable(rules, start)
    return Reading(used, {terminal.name: terminal.pattern for terminal in terminals}, tuple(grammar.ignore))


def _without_aliases(tree: RuleTree) -> RuleTree:
    """An alias names a tree, it does not call a rule."""
    for node in tree.find_data("alias"):
        node.children = node.children[:1]
    return tree


def _pattern(tree: RuleTree, name: str) -> Pattern:
    expansions = list(tree.find_data("expansion"))
    if len(expansions) == 1 and not expansions[0].children:
        raise LarkGrammarError(f"Terminals cannot be empty ({name})")
    transformer = _loader.PrepareLiterals() * _loader.TerminalTreeToPattern()
    pattern = transformer.transform(_loader.nr_deepcopy_tree(tree))
    assert isinstance(pattern, Pattern)
    return pattern


def _reachable(rules: dict[str, RuleTree], start: str) -> dict[str, RuleTree]:
    found = {start: rules[start]}
    pending = [start]
    while pending:
        for symbol in rules[pending.pop()].scan_values(lambda value: isinstance(value, NonTerminal)):
            if symbol.name not in found:
                if symbol.name not in rules:
                    raise GrammarError(f"The rule {symbol.name!r} is used but has no definition.")
                found[symbol.name] = rules[symbol.name]
                pending.append(symbol.name)
    return found
