"""Tool calls: free text, or one or several calls in a row, each with the schema of its own tool.

    answer = text                                       where no call is demanded; without the marker
           | text begin lead call (separator call)* end

The text ends at the first marker, as a reader with `str.find` takes it. All tools lie in one program, as alternatives
of a call, so that the masks of their common beginnings are shared. A tool whose schema cannot be served is refused by
name; with `drop` the others are compiled without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import SchemaError
from safegen.grammars.bans import Bans, Step
from safegen.grammars.json_schema import Finding, lower_schema, schema_builder
from safegen.grammars.markers import Wrap, up_to_marker, without_marker
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.origins import Origins
from safegen.grammars.tool_formats import ToolFormat, tool_error, tool_pointer


@dataclass(frozen=True, slots=True)
class ToolsSyntax:
    """What an answer may look like. max_calls: None is any number. Without text there is at least one call."""

    form: ToolFormat
    allow_text: bool = True
    min_calls: int = 0
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class CompiledTools:
    """findings: of the tools that are served, their pointers under `/<tool>`. dropped: tool name -> why."""

    program: Program
    findings: tuple[Finding, ...]
    dropped: Mapping[str, SchemaError] = field(default_factory=dict)


def compile_tools(
    schemas: Mapping[str, str],
    syntax: ToolsSyntax,
    options: SchemaOptions,
    limits: Limits,
    *,
    drop: bool = False,
    make_builder: Callable[..., Builder] = Builder,
    wrap: Wrap | None = None,
    origins: Origins | None = None,
    bans: Bans | None = None,
) -> CompiledTools:
    """schemas: tool name -> JSON text of the schema of its arguments, which are objects. origins: takes what the nodes
    were made from, pointers under `/<tool>`. bans: what must not stand in the text (at "$.text") and in the arguments
    (at "$.calls[i].arguments").

    Raises SchemaError whose pointer starts with the name of the tool that cannot be served; with `drop` only when none
    can.
    """
    remaining, dropped = dict(schemas), dict[str, SchemaError]()
    one_by_one = False
    while remaining:
        builder = schema_builder(options, limits, make_builder)
        if origins is not None:
            origins.schemas.clear()  # of a builder that was given up
        try:
            calls, findings = _call_nodes(
                builder, remaining, syntax.form, options, limits, check_empty=one_by_one, origins=origins, bans=bans
            )
        except _BadTool as bad:
            if not drop:
                raise bad.error from bad
            dropped[bad.name] = bad.error
            del remaining[bad.name]
            continue
        if not one_by_one and builder.node_is_empty(builder.sequence(calls)):
            one_by_one = True  # slower; it names the tool
            continue
        return CompiledTools(_build(builder, calls, syntax, wrap, bans), findings, dropped)
    reasons = "; ".join(str(error) for error in dropped.values())
    raise SchemaError(f"no tool can be served: {reasons}" if reasons else "there is no tool")


class _BadTool(Exception):
    def __init__(self, name: str, error: SchemaError) -> None:
        super().__init__(str(error))
        self.name = name
        self.error = error


def _call_nodes(
    builder: Builder,
    schemas: Mapping[str, str],
    form: ToolFormat,
    options: SchemaOptions,
    limits: Limits,
    *,
    check_empty: bool,
    origins: Origins | None,
    bans: Bans | None,
) -> tuple[list[int], tuple[Finding, ...]]:
    calls, findings = [], list[Finding]()
    inside = None if bans is None else bans.below(Step("name", b"calls"), Step("index"), Step("name", b"arguments"))
    for name, schema in schemas.items():
        try:
            lowered = lower_schema(
                builder, schema, options, limits, check_empty=check_empty, origins=origins, prefix=tool_pointer(name)
            )
            arguments = lowered.node if inside is None else inside.on_json()(builder, lowered.node)
        except SchemaError as error:
            raise _BadTool(name, tool_error(name, error)) from error
        written = builder.lexeme(builder.literal(json.dumps(name, ensure_ascii=False).encode()))
        members = [(b"name", written, True), (form.arguments_key.encode(), arguments, True)]
        calls.append(builder.object(members, [], 2, 2))
        findings += (found._replace(pointer=tool_pointer(name) + found.pointer) for found in lowered.findings)
    return calls, tuple(findings)


def _build(
    builder: Builder, calls: Sequence[int], syntax: ToolsSyntax, wrap: Wrap | None, bans: Bans | None
) -> Program:
    try:
        node = _answer(builder, builder.union(list(calls)), syntax, bans)
        return builder.build(node if wrap is None else wrap(builder, node))
    except LimitExceeded as error:
        hint = "Raise that limit, or pass fewer tools."
        raise SchemaError(f"the tools are too large for the machine: {error}", hint=hint) from error


def _answer(builder: Builder, call: int, syntax: ToolsSyntax, bans: Bans | None) -> int:
    form = syntax.form
    marker = form.begin.encode()
    in_text = None if bans is None else bans.below(Step("name", b"text"))
    begin = up_to_marker(builder, marker, in_text) if syntax.allow_text else builder.literal(marker)
    opening = builder.lexeme(builder.concat([begin, builder.literal(form.lead.encode())]))
    with_calls = builder.sequence([opening, call, _rest(builder, call, syntax)])
    if not syntax.allow_text or syntax.min_calls > 0:
        return with_calls
    return builder.union([builder.lexeme(without_marker(builder, marker, in_text)), with_calls])


def _rest(builder: Builder, call: int, syntax: ToolsSyntax) -> int:
    """What follows the first call, built from the last call backwards."""
    end = builder.lexeme(builder.literal(syntax.form.end.encode()))
    separator = builder.lexeme(builder.literal(syntax.form.between.encode()))
    if syntax.max_calls is None:
        rest = builder.reserve()
        builder.define(rest, builder.union([end, builder.sequence([separator, call, rest])]))
        num_calls = max(1, syntax.min_calls)
    else:
        rest, num_calls = end, syntax.max_calls
    for number in range(num_calls - 1, 0, -1):
        further = builder.sequence([separator, call, rest])
        rest = builder.union([end, further]) if number >= syntax.min_calls else further
    return rest
