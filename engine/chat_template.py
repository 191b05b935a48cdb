"""Chat messages to one prompt, by the template that came with the model.

Messages are a list of {"role": ..., "content": ...}. Roles: system, developer, user, assistant, tool. Content is a str,
or a list of {"type": "text", "text": ...} parts, which are joined; an assistant message with tool_calls needs none.
Further keys a message may have: name, tool_calls, tool_call_id, reasoning_content.

Arguments a template may be given, and no others (ARGUMENTS): tools, documents, enable_thinking, reasoning_effort,
date_string. The template also sees messages, add_generation_prompt and the tokenizer's bos_token, eos_token, unk_token
and pad_token. Values must be plain JSON data: no object of the caller's is reachable from a template.

A model without a template gets PLAIN_TEMPLATE: one "Role: text" paragraph a message. Wrong messages or arguments, and a
template's own refusal (`raise_exception`), are RequestError; a template that does not compile is ModelLoadError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2

from safegen.engine.control_tokens import ControlToken, ControlTokens, Shield
from safegen.engine.template_sandbox import compile_template, run_template
from safegen.errors import ModelLoadError, RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
ARGUMENTS = ("tools", "documents", "enable_thinking", "reasoning_effort", "date_string")
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_MAX_DEPTH = 64


class ChatTemplate:
    """One model's template, compiled. Immutable and thread-safe.

    template: its text, None for the plain one. special_strings: bos_token and the like. source: the model's file.
    is_native: whether the model brought it; a native template writes BOS itself.
    """

    __slots__ = ("_special_strings", "_template", "is_native", "source")

    def __init__(self, template: str | None, special_strings: Mapping[str, str], *, source: str = "") -> None:
        self.is_native = template is not None
        self.source = source
        self._special_strings = {name: text for name, text in special_strings.items() if text}
        try:
            self._template = compile_template(PLAIN_TEMPLATE if template is None else template)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template does not compile: {error.message} (template line {error.lineno})",
                path=source or None,
                hint="repair or remove the template of this model",
            ) from None
        except (RecursionError, OverflowError, MemoryError) as error:
            raise ModelLoadError(
                f"the chat template does not compile: {type(error).__name__}",
                path=source or None,
                hint="repair or remove the template of this model",
            ) from None

    def render(self, messages: Any, *, add_generation_prompt: bool = True, **arguments: Any) -> str:
        """The prompt as text, for people to look at. Encode it with `render_pieces`: in this text a message's words
        and the template's control tokens cannot be told apart."""
        return self._run(self._variables(messages, add_generation_prompt, arguments))

    def render_pieces(
        self, messages: Any, control: ControlTokens, *, add_generation_prompt: bool = True, **arguments: Any
    ) -> list[str | ControlToken]:
        """The prompt as plain text and control tokens. Every control token is the template's own.

        Where the words hold no character that could start one, the template sees them as they are. Otherwise it
        sees a stand-in where a control string stands, and the control tokens must come out as they do with every
        such character replaced; if they do not (the template cuts and joins words), the latter rendering is taken.
        """
        variables = self._variables(messages, add_generation_prompt, arguments)
        words = list(_strings(variables))
        if not any(control.may_start_in(text) for text in words):
            return control.split(self._run(variables))
        shield = Shield(control, words)
        faithful = control.split(self._run(_map_words(variables, shield.shield_literals, shield)))
        strict = control.split(self._run(_map_words(variables, shield.shield_all, shield)))
        chosen = faithful if _control_ids(faithful) == _control_ids(strict) else strict
        return [piece if isinstance(piece, ControlToken) else shield.unshield(piece) for piece in chosen]

    def _variables(self, messages: Any, add_generation_prompt: bool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name not in ARGUMENTS:
                raise RequestError(
                    f"the chat template takes no argument {name!r}; it takes {', '.join(ARGUMENTS)}", field=name
                )
        if not isinstance(add_generation_prompt, bool):
            raise RequestError("add_generation_prompt must be True or False", field="add_generation_prompt")
        given = {name: _plain_data(value, name) for name, value in arguments.items() if value is not None}
        return {"messages": check_messages(messages), "add_generation_prompt": add_generation_prompt, **given}

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            return run_template(self._template, {**self._special_strings, **variables})
        except jinja2.TemplateError as error:
            raise RequestError(
                f"the model's chat template refused the messages: {error.message or type(error).__name__}",
                field="messages",
            ) from None
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
            raise RequestError(
                f"the model's chat template failed on these messages: {type(error).__name__}: {error}",
                field="messages",
            ) from None


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as the template gets them: copied, plain, content joined to one str. RequestError names the index
    and the key of what is wrong."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f'messages must be a list of {{"role": ..., "content": ...}}, got {type(messages).__name__}',
            field="messages",
            value=messages,
        )
    if not messages:
        raise RequestError("messages is empty; pass at least one", field="messages", value=messages)
    return [_check_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _check_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f'{where} must be a dict with "role" and "content", got {type(message).__name__}',
            field=where,
            value=message,
        )
    for key in message:
        if key not in _MESSAGE_KEYS:
            raise RequestError(
                f"{where} has the unknown key {key!r}; known are {', '.join(_MESSAGE_KEYS)}", field=where
            )
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}", field=f"{where}.role", value=role
        )
    checked: dict[str, Any] = {"role": str(role), "content": _check_content(message, role, where)}
    for key in _MESSAGE_KEYS[2:]:
        if message.get(key) is not None:
            checked[key] = _plain_data(message[key], f"{where}.{key}")
    return checked


def _check_content(message: Mapping[str, Any], role: str, where: str) -> str:
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return _check_string(content, f"{where}.content")
    if not isinstance(content, list | tuple):
        raise RequestError(
            f"{where}.content must be a str or a list of text parts, got {type(content).__name__}",
            field=f"{where}.content",
            value=content,
        )
    texts: list[str] = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError(
                f'{where}.content[{index}] must be {{"type": "text", "text": ...}}; no other part is served',
                field=f"{where}.content[{index}]",
                value=part,
            )
        texts.append(_check_string(text, f"{where}.content[{index}].text"))
    return "".join(texts)


def _check_string(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where} holds a lone surrogate at character {error.start}, which no UTF-8 text can", field=where
        ) from None
    return str.__str__(text)


def _plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of JSON-like data out of exact built-in types."""
    if depth > _MAX_DEPTH:
        raise RequestError(f"{where} is nested deeper than {_MAX_DEPTH} levels", field=where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_string(value, where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {_check_string(k, where): _plain_data(item, f"{where}.{k}", depth + 1) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise RequestError(f"{where} must be plain JSON data, got {type(value).__name__}", field=where, value=value)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _map_words(value: Any, change: Callable[[str], str], shield: Shield) -> Any:
    """`change` applied to all words in the variables. Roles are ours, and so are the names a template looks up: a key
    that is an identifier only loses control strings that stand in it whole."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        mapped: dict[str, Any] = {}
        for key, item in value.items():
            new_key = shield.shield_literals(key) if key.isidentifier() else change(key)
            mapped[new_key] = item if key == "role" and item in ROLES else _map_words(item, change, shield)
        return mapped
    if isinstance(value, list):
        return [_map_words(item, change, shield) for item in value]
    return value


def _control_ids(pieces: list[str | ControlToken]) -> list[int]:
    return [piece.id for piece in pieces if isinstance(piece, ControlToken)]
