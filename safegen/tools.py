"""`Tools`: an output type of free text and tool calls, and `ToolCalls`, its value.

A tool is a pydantic model, a dataclass, a function with a typed signature, or a dict in the form of OpenAI's API. It
is read here into a name, a description and whatever gives its arguments' schema; nothing is compiled and pydantic is
not imported before the type is used (`safegen.tool_type`).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from safegen.errors import RequestError, SchemaError
from safegen.grammars.options import SchemaOptions, Whitespace
from safegen.grammars.tool_formats import TOOL_FORMATS, ToolFormat, tool_error

__all__ = ["Tool", "ToolCall", "ToolCalls", "ToolFormat", "Tools"]

MAX_CALLS = 256


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: the validated instance of a model or dataclass tool; of a function or a dict tool a dict,
    to be passed as `function(**call.arguments)`. raw: the JSON text of the arguments."""

    name: str
    arguments: Any
    raw: str


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The value of `Tools`. text: the free text before the first call, or the whole answer. calls: in order."""

    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as it was given. source: the class or function, None for a dict. parameters: JSON text of the schema,
    for a dict."""

    name: str
    description: str
    source: Any = None
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """The answer is free text, or one or several tool calls in a row, each valid against its own tool's schema.

    tools: pydantic models, dataclasses, functions with typed parameters, or dicts {"name", "description",
    "parameters"} (also inside {"type": "function", "function": ...}). allow_text: False demands at least one call,
    and nothing else. min_calls, max_calls: how many; None is any number. format: how calls are written, "hermes" (also
    Qwen, SmolLM2), "mistral", "llama", "phi", or a ToolFormat. on_bad_tool: "raise", or "drop" to go on without a tool
    that cannot be served; `llm.compile(...).findings` says why. whitespace: as in JsonSchema.

    `Result.value` is a ToolCalls. Raises SchemaError for something that is no tool, and for a name given twice;
    RequestError for an option out of range.
    """

    tools: tuple[Tool, ...]
    allow_text: bool = True
    min_calls: int = 0
    max_calls: int | None = None
    format: ToolFormat = TOOL_FORMATS["hermes"]
    on_bad_tool: Literal["raise", "drop"] = "raise"
    whitespace: Whitespace = "compact"

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        allow_text: bool = True,
        min_calls: int = 0,
        max_calls: int | None = None,
        format: str | ToolFormat = "hermes",
        on_bad_tool: Literal["raise", "drop"] = "raise",
        whitespace: Whitespace = "compact",
    ) -> None:
        if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
            raise SchemaError(f"Tools takes a list of tools, got {type(tools).__name__}", hint="write Tools([tool])")
        listed = tuple(_tool(number, given) for number, given in enumerate(tools))
        _check_names(listed)
        _check_counts(allow_text, min_calls, max_calls)
        if on_bad_tool not in ("raise", "drop"):
            raise RequestError(
                f"on_bad_tool is 'raise' or 'drop', got {on_bad_tool!r}", field="on_bad_tool", value=on_bad_tool
            )
        SchemaOptions(whitespace)
        values = (listed, allow_text, min_calls, max_calls, _format(format), on_bad_tool, whitespace)
        for field, value in zip(dataclasses.fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def options(self) -> SchemaOptions:
        return SchemaOptions(self.whitespace)


def _tool(number: int, given: Any) -> Tool:
    if isinstance(given, Tool):
        return given
    if isinstance(given, Mapping):
        return _tool_of_dict(number, given)
    if isinstance(given, type) or inspect.isroutine(given):
        return Tool(given.__name__, _description(given.__name__, given), given)
    raise SchemaError(
        f"tool {number} is {given!r:.80}, which is no tool",
        pointer=f"/{number}",
        hint='pass a pydantic model, a dataclass, a typed function, or {"name": ..., "parameters": {...}}',
    )


def _tool_of_dict(number: int, given: Mapping[str, Any]) -> Tool:
    from safegen.types import schema_text

    inner = given.get("function") if given.get("type") == "function" else given
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise SchemaError(
            f'tool {number} has no name; a dict tool is {{"name": ..., "description": ..., "parameters": {{...}}}}',
            pointer=f"/{number}",
        )
    name = inner["name"]
    description, parameters = inner.get("description") or "", inner.get("parameters")
    if not isinstance(description, str):
        raise tool_error(name, SchemaError("the description is no text", keyword="description"))
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        text = schema_text(parameters)
    except SchemaError as error:
        raise tool_error(name, error) from error
    return Tool(name, description, None, text)


def _description(name: str, source: Any) -> str:
    text = inspect.cleandoc(source.__doc__ or "")
    is_made_up = dataclasses.is_dataclass(source) and text.startswith(f"{name}(")  # by dataclasses itself
    return "" if is_made_up else text


def _check_names(tools: tuple[Tool, ...]) -> None:
    if not tools:
        raise SchemaError("Tools needs at least one tool")
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise tool_error(tool.name, SchemaError("the name is given twice"))
        seen.add(tool.name)
        try:
            tool.name.encode()
        except UnicodeEncodeError as error:
            raise tool_error(tool.name, SchemaError("the name holds a lone surrogate")) from error


def _check_counts(allow_text: bool, min_calls: int, max_calls: int | None) -> None:
    if not isinstance(allow_text, bool):
        raise RequestError(f"allow_text is True or False, got {allow_text!r}", field="allow_text", value=allow_text)
    for name, value, low in (("min_calls", min_calls, 0), ("max_calls", max_calls, max(1, min_calls or 0))):
        if value is None and name == "max_calls":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_CALLS:
            raise RequestError(f"{name} is a number from {low} to {MAX_CALLS}, got {value!r}", field=name, value=value)


def _format(given: str | ToolFormat) -> ToolFormat:
    if isinstance(given, ToolFormat):
        return given
    if given not in TOOL_FORMATS:
        known = ", ".join(repr(name) for name in TOOL_FORMATS)
        raise RequestError(f"format is one of {known}, or a ToolFormat; got {given!r}", field="format", value=given)
    return TOOL_FORMATS[given]
