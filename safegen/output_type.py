"""The second argument of `generate`, compiled: what may come out, how it is shown, how it is judged.

`compile_type` resolves a Python type, `JsonSchema`, `Regex`, `Choice` or None into an `OutputType`: a native program
for the decoder and an independent `read` for the finished text. The two share no code, so a bug in one is an
"invalid" result and never a wrong "ok". An OutputType is immutable, knows no vocabulary and no model, and may be used
by any number of threads, requests and LLMs. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from safegen.errors import InvalidOutput, SchemaError
from safegen.grammars.options import SchemaOptions
from safegen.limits import Limits
from safegen.types import Choice, JsonSchema, Regex, parse_json

if TYPE_CHECKING:
    from safegen.grammars.json_schema import Finding
    from safegen.grammars.matcher import Program

T = TypeVar("T")

_DESCRIPTIONS = (JsonSchema, Regex, Choice)  # dataclasses, so pydantic would take the bare classes for types
Kind = Literal["text", "json", "regex", "choice"]


@dataclass(frozen=True, slots=True)
class OutputType(Generic[T]):
    """A compiled output type, reusable and thread-safe. Pass it wherever a type is expected.

    kind: how the text is read. program: what the decoder is held to, None for free text. shown: what the model is
    told. findings: how each keyword of the schema is handled. compile_ms: what compiling took. labels: of a Choice.
    """

    kind: Kind
    program: Program | None = field(repr=False)
    shown: str | None = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    compile_ms: float
    _read: Callable[[str], T] = field(repr=False)
    labels: tuple[str, ...] = ()
    probabilities: bool = False

    def read(self, text: str) -> T:
        """Parse and validate a finished text, independently of the decoder. Raises InvalidOutput with the reason."""
        return self._read(text)


class TypeCache:
    """Compiled types of one LLM, the most recently used kept. Thread-safe; two threads may compile the same type."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._types: OrderedDict[Any, OutputType[Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, spec: Any) -> OutputType[Any]:
        if isinstance(spec, OutputType):
            return spec
        key = (type(spec), spec)
        try:
            with self._lock:
                if key in self._types:
                    self._types.move_to_end(key)
                    return self._types[key]
        except TypeError:  # unhashable, such as Annotated[...] with a list inside: compiled each time
            return compile_type(spec, self._limits)
        compiled = compile_type(spec, self._limits)
        with self._lock:
            self._types[key] = compiled
            while len(self._types) > self._limits.max_cached_types:
                self._types.popitem(last=False)
        return compiled


def compile_type(spec: Any, limits: Limits | None = None, options: SchemaOptions | None = None) -> OutputType[Any]:
    """Compile an output type. options: how JSON may be written, instead of what the type itself says.

    Raises SchemaError (with a JSON Pointer) or GrammarError for what cannot be served.
    """
    started = time.perf_counter()
    limits = limits if limits is not None else Limits()
    if spec is None:
        return _finish(started, "text", None, None, (), str)
    if isinstance(spec, OutputType):
        return spec
    if isinstance(spec, Regex):
        return _compile_regex(spec, limits, started)
    if isinstance(spec, Choice):
        return _compile_choice(spec, limits, started)
    if isinstance(spec, JsonSchema):
        return _compile_json(spec.text, options or spec.options, limits, started, json.loads)
    adapter = python_adapter(spec)
    text = python_schema_text(adapter)
    return _compile_json(
        text, options or SchemaOptions(), limits, started, lambda answer: _validate_python(adapter, answer)
    )


def python_adapter(spec: Any) -> Any:
    """The pydantic TypeAdapter of a Python type. Raises SchemaError for what is none."""
    if isinstance(spec, dict | str | bool | int | float | list | tuple | set):
        raise SchemaError(
            f"{spec!r:.80} is a value, not an output type",
            hint="wrap it: JsonSchema({...}), Choice([...]) or Regex('...')",
        )
    if inspect.isroutine(spec) or any(spec is description for description in _DESCRIPTIONS):
        raise SchemaError(f"{spec!r:.80} is no output type", hint="pass a type, or an instance such as Regex('[0-9]+')")
    from safegen.python_types import adapter_of

    return adapter_of(spec)


def python_schema_text(adapter: Any) -> str:
    """The closed JSON Schema of an adapter's type, as JSON text. Raises SchemaError when it has none."""
    from safegen.python_types import json_schema_of

    return json.dumps(json_schema_of(adapter), ensure_ascii=False)


def _validate_python(adapter: Any, text: str) -> Any:
    from pydantic import ValidationError

    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise InvalidOutput(f"the type's validator refused the answer: {error}") from error


def _compile_json(
    schema_text: str, options: SchemaOptions, limits: Limits, started: float, parse: Callable[[str], Any]
) -> OutputType[Any]:
    num_bytes = len(schema_text.encode())
    if num_bytes > limits.max_schema_bytes:
        raise SchemaError(
            f"the schema has {num_bytes:,} bytes, more than max_schema_bytes={limits.max_schema_bytes:,}",
            hint="split the type, or raise Limits(max_schema_bytes=...)",
        )
    from safegen.grammars.json_schema import compile_json_schema
    from safegen.validation import SchemaValidator

    compiled = compile_json_schema(schema_text, options, limits)
    validator = SchemaValidator(schema_text, formats=options.formats)

    def read(text: str) -> Any:
        validator.validate(text)
        return parse(text)

    shown = f"Answer with JSON that matches this JSON Schema, and nothing else:\n{_compact(parse_json(schema_text))}"
    return _finish(started, "json", compiled.program, shown, compiled.findings, read)


def _compile_regex(spec: Regex, limits: Limits, started: float) -> OutputType[str]:
    from safegen.grammars.regex import compile_regex
    from safegen.validation import EcmaRegex

    program = compile_regex(spec.pattern, limits)
    judge = EcmaRegex(f"^(?:{spec.pattern})$", lenient=False)

    def read(text: str) -> str:
        if not judge.search(text):
            raise InvalidOutput(f"{text!r:.200} does not match {spec.pattern!r:.200}")
        return text

    shown = f"Answer with a text that matches this regular expression, and nothing else:\n{spec.pattern}"
    return _finish(started, "regex", program, shown, (), read)


def _compile_choice(spec: Choice, limits: Limits, started: float) -> OutputType[str]:
    from safegen.grammars.regex import compile_choice

    program = compile_choice(spec.labels, limits)
    allowed = frozenset(spec.labels)

    def read(text: str) -> str:
        if text not in allowed:
            raise InvalidOutput(f"{text!r:.200} is none of the labels")
        return text

    shown = "Answer with exactly one of these, and nothing else:\n" + "\n".join(spec.labels)
    made = _finish(started, "choice", program, shown, (), read)
    return OutputType(
        made.kind, program, shown, (), made.compile_ms, read, labels=spec.labels, probabilities=spec.probabilities
    )


def _finish(
    started: float,
    kind: Kind,
    program: Program | None,
    shown: str | None,
    findings: tuple[Finding, ...],
    read: Callable[[str], Any],
) -> OutputType[Any]:
    return OutputType(kind, program, shown, findings, (time.perf_counter() - started) * 1e3, read)


def _compact(schema: Any) -> str:
    return json.dumps(_without_titles(schema), ensure_ascii=False, separators=(",", ":"))


def _without_titles(schema: Any, is_schema: bool = True) -> Any:
    """The schema as it is shown: without the titles that pydantic derives from names. A property may be named title."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if is_schema and name in ("const", "enum", "default", "examples"):
            kept[name] = value
        elif not (is_schema and name == "title" and isinstance(value, str)):
            kept[name] = _without_titles(
                value, not (is_schema and name in ("properties", "$defs", "patternProperties"))
            )
    return kept
