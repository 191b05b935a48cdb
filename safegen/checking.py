"""Looking at an output type without a model: `check` says how it is handled, `matches` what it accepts.

(The module is not called `check`: a submodule of that name would replace the function on the package.)
"""

from __future__ import annotations

import dataclasses
from typing import Any

from safegen.errors import GrammarError, RequestError, SchemaError
from safegen.grammars.json_schema import Finding, check_json_schema
from safegen.grammars.matcher import LimitExceeded
from safegen.grammars.options import SchemaOptions
from safegen.limits import Limits
from safegen.output_type import OutputType, check_schema_bytes, compile_type, python_adapter, python_schema_text
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think

__all__ = ["Finding", "check", "matches"]


def check(spec: Any, *, limits: Limits | None = None, **options: Any) -> list[Finding]:
    """How each keyword of an output type is handled: "enforced", "verified" or "refused", with its JSON Pointer.

    A type that would be refused gives the findings that say why, instead of raising; one without keywords (a regex, a
    choice) that is served gives none. options: see `matches`.
    """
    given = options_of(spec, options)
    try:
        if isinstance(spec, Tools):
            spec = dataclasses.replace(spec, on_bad_tool="drop")
        if spec is None or isinstance(spec, OutputType | Regex | Choice | Grammar | Tools | Think):
            return list(compile_type(spec, limits, given).findings)
        if isinstance(spec, JsonSchema):
            text, given = spec.text, given or spec.options
        else:
            text = python_schema_text(python_adapter(spec))
        check_schema_bytes(text, limits if limits is not None else Limits())
        return check_json_schema(text, given, limits)
    except SchemaError as error:
        return [Finding(error.pointer, error.keyword or "", "refused", error.reason)]
    except GrammarError as error:
        return [Finding("", "", "refused", str(error))]


def matches(spec: Any, text: str, *, limits: Limits | None = None, **options: Any) -> bool:
    """Would the decoder accept exactly this text as a whole answer? No model is needed.

    options: whitespace, property_order, spelling, formats, as in JsonSchema; they apply to JSON types and win over
    what a JsonSchema says itself. Raises SchemaError or GrammarError for a type that cannot be served (or a text
    whose automaton passes `limits`), and
    RequestError for an option that does not exist or a text that is not a str.
    """
    require_text(text)
    program = compile_type(spec, limits, options_of(spec, options)).program
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return False
    try:
        return program is None or program.matches(encoded)
    except LimitExceeded as error:
        raise SchemaError(f"this text cannot be judged: {error}", hint="Raise Limits(max_states=...).") from error


def require_text(text: object) -> None:
    """RequestError for anything but a str."""
    if not isinstance(text, str):
        raise RequestError(f"text is a str, got {type(text).__name__}", field="text", value=text)


def options_of(spec: Any, given: dict[str, Any]) -> SchemaOptions | None:
    """The options of writing that a call asks for; None where it asks for none. Raises RequestError."""
    if not given:
        return None
    known = [field.name for field in dataclasses.fields(SchemaOptions)]
    for name, value in given.items():
        if name not in known:
            raise RequestError(f"unknown option {name!r}; known: {', '.join(known)}", field=name, value=value)
    if isinstance(spec, Think):
        spec = spec.inner
    base = spec.options if isinstance(spec, JsonSchema | Tools) else SchemaOptions()
    return dataclasses.replace(base, **given)
