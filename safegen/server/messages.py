"""OpenAI's messages as those of the SDK: a role and a text.

An assistant's tool calls are written into its text in the model's own wire format, which is how the model made them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from safegen.grammars.tool_formats import ToolFormat
from safegen.server.errors import ApiError
from safegen.server.schemas import AssistantMessage, CalledTool, Message, RefusalPart, TextPart


def sdk_messages(messages: Sequence[Message], form: ToolFormat) -> list[dict[str, str]]:
    """Raises ApiError 400 that names the message."""
    return [_sdk_message(number, message, form) for number, message in enumerate(messages)]


def _sdk_message(number: int, message: Any, form: ToolFormat) -> dict[str, str]:
    if isinstance(message, AssistantMessage):
        return {"role": "assistant", "content": _assistant_text(number, message, form)}
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": _text(message.content)}


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _assistant_text(number: int, message: AssistantMessage, form: ToolFormat) -> str:
    if message.content is None and message.refusal is None and not message.tool_calls:
        raise ApiError(
            400,
            f"messages[{number}] of the assistant has neither content nor tool_calls",
            param=f"messages[{number}].content",
            code="missing_required_parameter",
        )
    text = _text(message.content) or message.refusal or ""
    if not message.tool_calls:
        return text
    calls = [
        _call(f"messages[{number}].tool_calls[{place}]", call, form) for place, call in enumerate(message.tool_calls)
    ]
    return text + form.begin + form.lead + form.between.join(calls) + form.end


def _call(where: str, call: CalledTool, form: ToolFormat) -> str:
    try:
        arguments = json.loads(call.function.arguments or "{}")
        text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        param = f"{where}.function.arguments"
        raise ApiError(400, f"{param} is no JSON", param=param, code="invalid_value") from None
    name, key = json.dumps(call.function.name, ensure_ascii=False), json.dumps(form.arguments_key)
    return f'{{"name":{name},{key}:{text}}}'
