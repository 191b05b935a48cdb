"""One choice of an answer: the SDK's text as OpenAI's deltas, and deltas folded into a message.

Streams send these deltas; an answer that is not streamed is their fold, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from safegen.errors import GuardBlocked
from safegen.grammars.tool_formats import ToolFormat
from safegen.guards.refusal import Refusal
from safegen.result import Result
from safegen.server.errors import ApiError, Params, api_error
from safegen.server.tool_deltas import Delta, ToolDeltas

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Choice:
    """Turns text into deltas. form: of tool calls, None for an answer that is all content."""

    def __init__(self, form: ToolFormat | None, call_id: str) -> None:
        self._tools = None if form is None else ToolDeltas(form, call_id)

    def feed(self, text: str) -> Iterator[Delta]:
        if self._tools is not None:
            yield from self._tools.feed(text)
        elif text:
            yield {"content": text}

    def finish(self, result: Result[Any]) -> Iterator[Delta]:
        """What is left to send of a sample that has ended."""
        if self._tools is not None:
            yield from self._tools.finish()
        if isinstance(result.value, Refusal):
            yield {"refusal": result.value.message}

    def finish_reason(self, result: Result[Any]) -> FinishReason:
        if result.status == "truncated":
            return "length"
        if result.status == "blocked" and not isinstance(result.value, Refusal):
            return "content_filter"
        return "tool_calls" if self._tools is not None and self._tools.num_calls else "stop"


def failure_of(result: Result[Any], params: Params) -> ApiError | None:
    """Why a request has no answer at all: a sample that failed, or a prompt that a guard has stopped."""
    for each in (result, *result.alternatives):
        if each.status in ("ok", "truncated"):
            continue
        if each.status == "blocked":
            is_input = isinstance(each.error, GuardBlocked) and each.error.stage == "input"
            if is_input and not isinstance(each.value, Refusal) and each.error is not None:
                return api_error(each.error, params)
            continue
        error = each.error if each.error is not None else RuntimeError(each.status)
        return api_error(error, params)
    return None


def fold(deltas: list[Delta]) -> dict[str, Any]:
    """The message that deltas come to."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for name in ("content", "refusal"):
            if delta.get(name) is not None:
                message[name] = (message[name] or "") + delta[name]
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None and message["refusal"] is None:
        message["content"] = ""
    return message
