"""The jinja environment that chat templates run in: a program that came with a model file, so it is not trusted.

Same language as in `transformers` (trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`,
`tojson` without HTML escapes, `{% generation %}` blocks), inside jinja's immutable sandbox: no attribute of Python's
machinery, no change to what it is given. On top of that a run is bounded: MAX_OUTPUT_CHARACTERS of output, TIME_LIMIT_S
of time (looked at on every call, attribute, item and operator, so a run may overstay by one bare inner loop, which
jinja's sandbox holds to 100,000 rounds), MAX_REPEATED_CHARACTERS in one repetition of a string. Not bounded: the memory
of strings that a template joins to themselves.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARACTERS = 16_000_000
MAX_REPEATED_CHARACTERS = 1_000_000
TIME_LIMIT_S = 5.0

_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
# The JSON escape of a character of supplementary private use area A, which stand-ins are taken from.
_PRIVATE_USE_ESCAPE = re.compile(r"\\ud([b][89a-f][0-9a-f])\\ud([c-f][0-9a-f]{2})")
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})")
_deadline_s: ContextVar[float] = ContextVar("deadline_s", default=float("inf"))


class TemplateLimit(jinja2.TemplateError):
    """A bound of the sandbox was reached."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote, for training. Here it is its contents."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own protocol)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. Thread-safe: the deadline is the running context's."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
        self.filters["tojson"] = to_json
        self.filters.pop("center")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name)

    def run(self, template: jinja2.Template, arguments: Mapping[str, Any]) -> str:
        """The rendered text. Raises jinja2.TemplateError, TemplateLimit among them."""
        token = _deadline_s.set(time.monotonic() + TIME_LIMIT_S)
        try:
            chunks: list[str] = []
            num_characters = 0
            for chunk in template.generate(arguments):
                _check_time()
                num_characters += len(chunk)
                if num_characters > MAX_OUTPUT_CHARACTERS:
                    raise TemplateLimit(f"the output is longer than {MAX_OUTPUT_CHARACTERS:,} characters")
                chunks.append(chunk)
            return "".join(chunks)
        finally:
            _deadline_s.reset(token)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: str | Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_time()
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        elif operator == "**" and abs(right) > 64:
            raise TemplateLimit(f"the power {right} is above 64")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise TemplateLimit("a % format pads to more than 999 characters")
        return super().call_binop(context, operator, left, right)


def _check_time() -> None:
    if time.monotonic() > _deadline_s.get():
        raise TemplateLimit(f"it ran for more than {TIME_LIMIT_S} s")


def _check_repetition(sequence: Any, times: Any) -> None:
    repeats = isinstance(sequence, str | list | tuple) and isinstance(times, int)
    if repeats and len(sequence) * times > MAX_REPEATED_CHARACTERS:
        raise TemplateLimit(f"a repetition gives more than {MAX_REPEATED_CHARACTERS:,} items")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the templates expect it: `<` and `&` stay as they are. Stand-ins of protected characters stay
    characters, even where ensure_ascii would escape them."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    return _PRIVATE_USE_ESCAPE.sub(lambda match: str(json.loads(f'"{match[0]}"')), text)


_sandbox = TemplateSandbox()
compile_template: Callable[[str], jinja2.Template] = _sandbox.from_string
run_template = _sandbox.run
