"""How tool calls are written: the wire formats of model families, and any other by its strings.

A call is `{"name":"<tool>","arguments":{...}}`. One or more calls in a row make a block:

    begin lead call (separator call)* end

`begin` is the marker: what stands before it is free text, which cannot hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from safegen.errors import RequestError, SchemaError


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """begin: the marker that starts the calls. end: what ends them; may be empty. lead: between begin and the first
    call. separator: between two calls; None is `end + newline + begin + lead`, so that every call has its own markers.
    arguments_key: the name under which a call holds its arguments.

    Raises RequestError for a string that cannot serve.
    """

    begin: str
    end: str
    lead: str = ""
    separator: str | None = None
    arguments_key: str = "arguments"

    def __post_init__(self) -> None:
        for name in ("begin", "end", "lead", "separator", "arguments_key"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "separator" and value is None):
                raise RequestError(f"{name} is a string, got {type(value).__name__}", field=name, value=value)
            if value == "" and name in ("begin", "separator", "arguments_key"):
                raise RequestError(f"{name} of a tool format cannot be empty", field=name, value=value)
            try:
                (value or "").encode()
            except UnicodeEncodeError as error:
                raise RequestError(f"{name} holds a lone surrogate", field=name, value=value) from error
        if self.arguments_key == "name":
            raise RequestError('arguments_key cannot be "name"', field="arguments_key", value="name")

    @property
    def between(self) -> str:
        """The separator, the default filled in."""
        return f"{self.end}\n{self.begin}{self.lead}" if self.separator is None else self.separator

    @property
    def sample(self) -> str:
        """A call as the model is shown it."""
        return f'{self.begin}{self.lead}{{"name":"<tool>","{self.arguments_key}":{{...}}}}{self.end}'


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": ToolFormat("<tool_call>", "\n</tool_call>", lead="\n"),  # also Qwen and SmolLM2
        "mistral": ToolFormat("[TOOL_CALLS]", "]", lead=" [", separator=", "),
        "llama": ToolFormat("<|python_tag|>", "", separator="; ", arguments_key="parameters"),
        "phi": ToolFormat("<|tool_call|>", "]<|/tool_call|>", lead="[", separator=","),
    }
)


def tool_pointer(name: str) -> str:
    """Where a tool stands among the tools of a type, as the first part of a JSON Pointer."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def tool_error(name: str, error: SchemaError) -> SchemaError:
    """An error of a tool's own schema, with the tool's name in message and pointer."""
    return SchemaError(
        f"tool {name!r}: {error.reason}",
        pointer=tool_pointer(name) + error.pointer,
        keyword=error.keyword,
        hint=error.hint,
    )
