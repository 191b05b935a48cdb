"""Rows in the format of OpenAI's batch files: `{"custom_id": ..., "body": {"messages": [...], ...}}`.

What of a body can be served here is served; a field that asks for anything else is refused by name, alone. `model` is
not looked at: the model is the one that is loaded. `response_format` of type json_schema is the row's output type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from safegen.errors import RequestError, RowError
from safegen.prompt import Prompt
from safegen.types import JsonSchema

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop": "stop",
}
_IGNORED = frozenset({"messages", "response_format", "model", "user", "metadata", "store", "service_tier"})
_HARMLESS = {"n": (1,), "stream": (False,), "logprobs": (False,), "tools": ([],), "logit_bias": ({},)}


@dataclass(frozen=True, slots=True)
class OpenAiCall:
    """has_type: whether the row says what comes out; spec is None then for free text."""

    prompt: Prompt
    has_type: bool
    spec: Any
    sampling: Mapping[str, Any]


def openai_call(columns: Mapping[str, Any], schema_of: Callable[[Any], JsonSchema]) -> OpenAiCall:
    """Raises RequestError or SchemaError that names the field."""
    body = columns.get("body")
    if not isinstance(body, Mapping):
        raise RowError("a row of a batch file needs an object under 'body'", field="body")
    url = columns.get("url", "/v1/chat/completions")
    if url != "/v1/chat/completions":
        raise RowError(f"url={url!r} is not served; it is /v1/chat/completions", field="url", value=url)
    sampling: dict[str, Any] = {}
    for name, value in body.items():
        if name in _SAMPLING:
            if value is not None:
                sampling[_SAMPLING[name]] = value
        elif name not in _IGNORED and value is not None and value not in _HARMLESS.get(name, ()):
            raise RowError(f"body.{name}={value!r:.80} is not served in a job", field=name, value=value)
    has_type, spec = _response_format(body.get("response_format"), schema_of)
    return OpenAiCall(_messages(body.get("messages")), has_type, spec, sampling)


def _response_format(given: Any, schema_of: Callable[[Any], JsonSchema]) -> tuple[bool, Any]:
    if given is None:
        return False, None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return True, None
    if kind == "json_object":
        return True, schema_of({"type": "object"})
    if kind == "json_schema":
        described = given.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if schema is None:
            raise RowError("response_format has no json_schema.schema", field="response_format")
        return True, schema_of(schema)
    raise RowError(
        f"response_format is of type json_schema, json_object or text, got {kind!r}", field="response_format"
    )


def _messages(given: Any) -> Prompt:
    if not isinstance(given, list):
        raise RowError("body.messages is a list of messages", field="messages")
    return [_message(each) for each in given]


def _message(given: Any) -> Any:
    """Content may be a list of parts; those that are text are joined. `safegen.prompt` checks the rest."""
    parts = given.get("content") if isinstance(given, Mapping) else None
    if not isinstance(parts, list):
        return given
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError("a message holds a part that is no text", field="messages")
        texts.append(part["text"])
    return {**given, "content": "".join(texts)}
