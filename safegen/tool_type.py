"""Compiles `Tools`: each tool's schema and validator, one program for all, and what the model is told.

A tool that cannot be served is named in the SchemaError, or dropped (`on_bad_tool="drop"`) and listed in the findings
as refused. The arguments of a call are judged as any other typed answer is: by the independent schema validator, then
by the type's own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NotRequired, get_type_hints

from safegen.errors import SchemaError
from safegen.grammars.bans import Bans
from safegen.grammars.json_schema import Finding
from safegen.grammars.markers import Wrap
from safegen.grammars.options import SchemaOptions
from safegen.grammars.origins import Origins
from safegen.grammars.tool_formats import tool_error
from safegen.grammars.tools import CompiledTools, ToolsSyntax, compile_tools
from safegen.limits import Limits
from safegen.output_type import compact_schema, json_reader, python_adapter, python_schema_text, validate_python
from safegen.tool_reader import ToolReader
from safegen.tools import Tool, Tools
from safegen.types import parse_json


@dataclass(frozen=True, slots=True)
class Served:
    """One tool, ready. schema: JSON text of the schema of its arguments. read: parses and validates them."""

    tool: Tool
    schema: str
    read: Callable[[str], Any]

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates take it."""
        parameters = parse_json(compact_schema(self.schema))
        parameters.pop("description", None)
        return {
            "type": "function",
            "function": {"name": self.tool.name, "description": self.tool.description, "parameters": parameters},
        }


@dataclass(frozen=True, slots=True)
class ToolsType:
    """Everything that an OutputType of tools is made from. shown: what the model is told where its chat template does
    not say it; tools: what such a template takes."""

    compiled: CompiledTools
    findings: tuple[Finding, ...]
    reader: ToolReader
    shown: str
    tools: tuple[dict[str, Any], ...]


def compile_tools_type(
    spec: Tools,
    options: SchemaOptions,
    limits: Limits,
    wrap: Wrap | None,
    origins: Origins | None = None,
    bans: Bans | None = None,
) -> ToolsType:
    """Raises SchemaError that names the tool."""
    served, refused = _served(spec, options, limits)
    syntax = ToolsSyntax(spec.format, spec.allow_text, spec.min_calls, spec.max_calls)
    schemas = {one.tool.name: one.schema for one in served}
    if not schemas:
        raise SchemaError("no tool can be served: " + "; ".join(str(error) for error in refused.values()))
    drop = spec.on_bad_tool == "drop"
    compiled = compile_tools(schemas, syntax, options, limits, drop=drop, wrap=wrap, origins=origins, bans=bans)
    refused |= compiled.dropped
    kept = [one for one in served if one.tool.name not in refused]
    readers = {one.tool.name: one.read for one in kept}
    findings = tuple(Finding(bad.pointer, bad.keyword or "", "refused", bad.reason) for bad in refused.values())
    tools = tuple(one.shown for one in kept)
    reader = ToolReader(spec.format, spec.allow_text, spec.min_calls, spec.max_calls, readers)
    return ToolsType(compiled, findings + compiled.findings, reader, _instructions(spec, tools), tools)


def _served(spec: Tools, options: SchemaOptions, limits: Limits) -> tuple[list[Served], dict[str, SchemaError]]:
    served, refused = [], dict[str, SchemaError]()
    for tool in spec.tools:
        try:
            served.append(_serve(tool, options, limits))
        except SchemaError as error:
            named = tool_error(tool.name, error)
            if spec.on_bad_tool == "raise":
                raise named from error
            refused[tool.name] = named
    return served, refused


def _serve(tool: Tool, options: SchemaOptions, limits: Limits) -> Served:
    parse: Callable[[str], Any] = json.loads
    schema = tool.parameters
    if tool.source is not None:
        adapter = python_adapter(tool.source if isinstance(tool.source, type) else _parameters(tool.source))
        schema, parse = python_schema_text(adapter), partial(validate_python, adapter)
    document = parse_json(schema)
    if not isinstance(document, dict) or document.get("type", "object") != "object":
        raise SchemaError("the arguments of a tool are an object", keyword="type", hint='write {"type": "object", ...}')
    if "type" not in document:
        schema = '{"type":"object"' + ("," if document else "") + schema.lstrip()[1:]
    return Served(tool, schema, json_reader(schema, options, limits, parse))


def _parameters(function: Any) -> Any:
    """The TypedDict of a function's parameters: those with a default may be left out."""
    from typing_extensions import TypedDict  # typing's own lacks what pydantic needs before 3.12

    try:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise SchemaError(f"the signature cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SchemaError(f"the parameter {parameter} cannot be passed by name", hint="name each parameter")
        if name not in hints:
            raise SchemaError(f"the parameter {name!r} has no type", hint=f"annotate it, such as {name}: str")
        fields[name] = hints[name] if parameter.default is parameter.empty else NotRequired[hints[name]]
    return TypedDict(function.__name__, fields)  # type: ignore[operator]


def _instructions(spec: Tools, tools: tuple[dict[str, Any], ...]) -> str:
    lines = [json.dumps(tool["function"], ensure_ascii=False, separators=(",", ":")) for tool in tools]
    calls = _demand(spec)
    return "\n".join(
        [
            "You can call these tools; each line is one, its parameters as JSON Schema:",
            *lines,
            f"Write a call exactly like this, and several one after the other:\n{spec.format.sample}",
            calls,
        ]
    )


def _demand(spec: Tools) -> str:
    if spec.allow_text and not spec.min_calls:
        return "Call tools where they help; else answer in plain text."
    return "Call a tool." if spec.max_calls == 1 else f"Make at least {max(1, spec.min_calls)} tool call(s)."
