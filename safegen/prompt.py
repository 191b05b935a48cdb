"""From a prompt (a string or chat messages) and an output type to the messages the model is given.

A string is one user message. What the answer must look like is appended to the system message (made where there is
none), compactly, unless the caller switches it off: the constraint holds either way, but a model that knows the
schema needs less force. Messages are checked here; rendering and encoding belong to the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from safegen.errors import RequestError

Message = dict[str, str]
Prompt = str | Sequence[Mapping[str, Any]]


class RawPrompt(str):
    """A prompt that the model goes on with as it stands: no chat template, and no type shown in it."""


_ROLES = ("system", "user", "assistant", "tool")


def chat_messages(prompt: Prompt, shown: str | None) -> list[Message]:
    """Checked messages with `shown` appended to the system message. Raises RequestError for anything malformed."""
    messages = _from_text(prompt) if isinstance(prompt, str) else _from_messages(prompt)
    if shown is None:
        return messages
    if messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{shown}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": shown}, *messages]


def plain_text(messages: Sequence[Message]) -> str:
    """The prompt of a model without a chat template: the contents, one after the other."""
    return "\n\n".join(message["content"] for message in messages) + "\n"


def takes_tools(template: str, marker: str) -> bool:
    """Whether a chat template lists tools and teaches the wire format that starts calls with `marker`."""
    return re.search(r"\btools\b", template) is not None and marker in template


def _from_text(prompt: str) -> list[Message]:
    if not prompt.strip():
        raise RequestError("the prompt is empty; pass some text or chat messages", field="prompt", value=prompt)
    return [{"role": "user", "content": _well_formed(prompt, "the prompt")}]


def _from_messages(prompt: object) -> list[Message]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise RequestError(
            f"the prompt is a string or a list of messages, got {type(prompt).__name__}", field="prompt", value=prompt
        )
    if not prompt:
        raise RequestError("the list of messages is empty", field="prompt", value=prompt)
    messages = [_message(position, entry) for position, entry in enumerate(prompt)]
    if not any(message["content"].strip() for message in messages):
        raise RequestError("every message is empty; pass some text", field="prompt", value=prompt)
    return messages


def _message(position: int, entry: object) -> Message:
    where = f"message {position}"
    if not isinstance(entry, Mapping):
        raise RequestError(
            f'{where} is {type(entry).__name__}, not a dict such as {{"role": "user", "content": "..."}}',
            field="prompt",
            value=entry,
        )
    for name in ("role", "content"):
        if not isinstance(entry.get(name), str):
            raise RequestError(f"{where} needs a string under {name!r}", field="prompt", value=entry)
    if entry["role"] not in _ROLES:
        raise RequestError(
            f"{where} has the role {entry['role']!r}; choose one of {', '.join(_ROLES)}", field="prompt", value=entry
        )
    extra = set(entry) - {"role", "content", "name"}
    if extra:
        raise RequestError(f"{where} has the unknown field {sorted(extra)[0]!r}", field="prompt", value=entry)
    return {name: _well_formed(str(entry[name]), where) for name in ("role", "content")}


def _well_formed(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} holds a lone surrogate at character {error.start}", field="prompt") from error
    return text
