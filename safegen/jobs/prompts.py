"""From a row to a prompt: a template with `{column}` places, chat messages of such templates, a function, or a column.

Templates know column names and nothing else: no attributes, no formats, no code. A value that is no string is written
as JSON. What is wrong with a template is told before the job begins, what is missing in a row is that row's error.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safegen.errors import RequestError, RowError
from safegen.jobs.keys import describe_function
from safegen.jobs.rows import plain
from safegen.prompt import Prompt

PROMPT_COLUMNS = ("messages", "prompt", "text")  # taken in this order where no prompt is given

PromptSource = str | Sequence[Mapping[str, str]] | Callable[[Mapping[str, Any]], Prompt] | None
MakePrompt = Callable[[Mapping[str, Any]], Prompt]


def make_prompt(given: PromptSource) -> MakePrompt:
    """What makes a prompt of a row's columns; it raises RequestError for a row that gives none."""
    if given is None:
        return prompt_column
    if callable(given):
        return _calling(given)
    if isinstance(given, str):
        template = Template(given)
        if not template.columns:
            raise RequestError(
                "the prompt names no column, so every row would ask the same; write a place such as {text}",
                field="prompt",
                value=given,
            )
        return template.fill
    return _messages(given)


def describe_prompt(given: PromptSource) -> Any:
    """The prompt as data, for the job's configuration."""
    return describe_function(given) if callable(given) else given


def prompt_column(columns: Mapping[str, Any]) -> Prompt:
    for name in PROMPT_COLUMNS:
        if columns.get(name) is not None:
            found: Prompt = columns[name]
            return json.loads(found) if name == "messages" and isinstance(found, str) else found
    hint = (
        "; pass format='openai' for OpenAI's batch files" if "body" in columns else "; pass prompt='... {column} ...'"
    )
    raise RowError(f"the row has none of the columns {', '.join(PROMPT_COLUMNS)}{hint}", field="prompt")


class Template:
    """columns: the names of its places. `{{` and `}}` stand for braces. Raises RequestError for a malformed one."""

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, str | None]] = []
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise RequestError(
                f"the prompt is no template: {error}; write {{{{ and }}}} for braces", field="prompt", value=text
            ) from error
        for literal, name, spec, conversion in parsed:
            if spec or conversion or name == "":
                raise RequestError(
                    f"the prompt has the place {{{name}{'!' if conversion else ''}{conversion or ''}"
                    f"{':' if spec else ''}{spec or ''}}}; a place is the name of a column alone, and braces of the "
                    "text are written {{ and }}",
                    field="prompt",
                    value=text,
                )
            self._pieces.append((literal, name))
        self.columns = frozenset(name for _, name in self._pieces if name is not None)

    def fill(self, columns: Mapping[str, Any]) -> str:
        """Raises RowError for a column that the row has not."""
        filled = []
        for literal, name in self._pieces:
            filled.append(literal)
            if name is not None:
                if name not in columns:
                    raise RowError(
                        f"the row has no column {name!r}; it has {', '.join(sorted(columns)) or 'none'}", field="prompt"
                    )
                filled.append(_as_text(columns[name]))
        return "".join(filled)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain)


def _messages(given: object) -> MakePrompt:
    if not isinstance(given, Sequence) or not given or not all(isinstance(each, Mapping) for each in given):
        raise RequestError(
            'prompt is a template, a function of the row, or messages such as [{"role": "user", "content": "{text}"}]',
            field="prompt",
            value=given,
        )
    templates = [{**message, "content": Template(str(message.get("content", "")))} for message in given]
    if not any(message["content"].columns for message in templates):
        raise RequestError("no message names a column, so every row would ask the same", field="prompt", value=given)

    def fill(columns: Mapping[str, Any]) -> Prompt:
        return [{**message, "content": message["content"].fill(columns)} for message in templates]

    return fill


def _calling(function: Callable[[Mapping[str, Any]], Prompt]) -> MakePrompt:
    def call(columns: Mapping[str, Any]) -> Prompt:
        try:
            return function(columns)
        except Exception as error:  # the caller's own code, on one row
            raise RowError(f"the prompt function raised {type(error).__name__}: {error}", field="prompt") from error

    return call
