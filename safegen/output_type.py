"""The second argument of `generate`, compiled: what may come out, how it is shown, how it is judged.

`compile_type` resolves a Python type, `JsonSchema`, `Regex`, `Choice`, `Grammar`, `Tools`, `Think` or None into an
`OutputType`: a native program for the decoder and an independent `read` for the finished text. The two share no code,
so a bug in one is an "invalid" result and never a wrong "ok". An OutputType is immutable, knows no vocabulary and no
model, and may be used by any number of threads, requests and LLMs. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from safegen.errors import InvalidOutput, SchemaError
from safegen.grammars.options import SchemaOptions
from safegen.limits import Limits
from safegen.partial_json import PartialJson
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think, parse_json

if TYPE_CHECKING:
    from safegen.grammars.bans import Bans
    from safegen.grammars.fsm import FsmProgram
    from safegen.grammars.json_schema import Finding
    from safegen.grammars.markers import Wrap
    from safegen.grammars.matcher import Program
    from safegen.grammars.origins import Origins
    from safegen.grammars.tool_formats import ToolFormat
    from safegen.think import Partial, ThinkType

T = TypeVar("T")

_DESCRIPTIONS = (
    JsonSchema,
    Regex,
    Choice,
    Grammar,
    Tools,
    Think,
)  # dataclasses, so pydantic would take the bare classes for types
Kind = Literal["text", "json", "regex", "choice", "grammar", "tools", "think"]


@dataclass(frozen=True, slots=True)
class TemplateTools:
    """What a chat template is given in place of words. It must know the argument `tools` and write calls with `marker`,
    else it would teach the model another format. shown: what remains to be told."""

    tools: tuple[dict[str, Any], ...]
    marker: str
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class OutputType(Generic[T]):
    """A compiled output type, reusable and thread-safe. Pass it wherever a type is expected.

    kind: how the text is read. program: what the decoder is held to, None for free text. shown: what the model is told.
    findings: how each keyword of the schema is handled. compile_ms: what compiling took. labels: of a Choice. partial:
    makes a reader of snapshots, of the answer without reasoning. template_tools: of Tools. markers: texts of the wire
    format; a control token that stands in one of them counts as its text. think: of a Think. fsm: of a Regex(fsm=True),
    what the decoder is held to in place of program. pattern: of a Regex that no ban narrows. answer_kind: of the answer
    without its reasoning. tool_format: of Tools. schema_text: of JSON. source: what it was compiled from, and how JSON
    may be written. text_program: of a Grammar under bans, what the decoder holds the whole text to beside program.
    worn_at: fullness of the programs from which on new answers get programs of their own.
    """

    kind: Kind
    program: Program | None = field(repr=False)
    shown: str | None = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    compile_ms: float
    _read: Callable[[str], T] = field(repr=False)
    labels: tuple[str, ...] = ()
    probabilities: bool = False
    partial: Callable[[], Partial] | None = field(default=None, repr=False)
    template_tools: TemplateTools | None = field(default=None, repr=False)
    markers: tuple[str, ...] = field(default=(), repr=False)
    think: ThinkType | None = field(default=None, repr=False)
    fsm: FsmProgram | None = field(default=None, repr=False)
    inner_kind: Kind | None = field(default=None, repr=False)
    source: Any = field(default=None, repr=False)
    text_program: Program | None = field(default=None, repr=False)
    worn_at: float = field(default=1.0, repr=False)
    tool_format: ToolFormat | None = field(default=None, repr=False)
    schema_text: str | None = field(default=None, repr=False)
    pattern: str | None = field(default=None, repr=False)

    @property
    def answer_kind(self) -> Kind:
        return self.kind if self.inner_kind is None else self.inner_kind

    @property
    def is_worn(self) -> bool:
        """Whether the programs have met so many states that they come near a limit: programs learn and never forget."""
        return self.worn_at < _fullness(self)

    def read(self, text: str) -> T:
        """Parse and validate a finished text, independently of the decoder. Raises InvalidOutput with the reason."""
        return self._read(text)


class TypeCache:
    """Compiled types of one LLM, the most recently used kept. Thread-safe; two threads may compile the same type."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._types: OrderedDict[Any, OutputType[Any]] = OrderedDict()
        self._lock = Lock()

    def get(self, spec: Any, bans: Bans | None = None) -> OutputType[Any]:
        """bans: what must not stand in the type's values, besides what a compiled type was held to before."""
        options: SchemaOptions | None = None
        if isinstance(spec, OutputType):
            if bans is None and not spec.is_worn:
                return spec
            spec, options, bans = _source_of(spec, bans)
        # repr beside it: typing takes A | B and B | A for equal, and pydantic does not.
        key: Any = spec if isinstance(spec, type | JsonSchema | Regex | Choice) else (type(spec), spec, repr(spec))
        if bans is not None or options is not None:
            key = (key, bans, options)
        try:
            with self._lock:
                known = self._types.get(key)
                if known is not None and not known.is_worn:
                    self._types.move_to_end(key)
                    return known
        except TypeError:  # unhashable, such as Annotated[...] with a list inside: compiled each time
            return compile_type(spec, self._limits, options, bans=bans)
        compiled = compile_type(spec, self._limits, options, bans=bans)
        with self._lock:
            self._types[key] = compiled
            while len(self._types) > self._limits.max_cached_types:
                self._types.popitem(last=False)
        return compiled


def compile_type(
    spec: Any,
    limits: Limits | None = None,
    options: SchemaOptions | None = None,
    *,
    origins: Origins | None = None,
    bans: Bans | None = None,
) -> OutputType[Any]:
    """Compile an output type. options: how JSON may be written, instead of what the type itself says. origins: takes
    what the program was made from. bans: what must not stand in its values.

    Raises SchemaError (with a JSON Pointer) or GrammarError for what cannot be served.
    """
    limits = limits if limits is not None else Limits()
    if isinstance(spec, Think):
        compiled = _compile_think(spec, limits, options, origins, bans)
    else:
        compiled = _compile(spec, limits, options, None, origins, bans)
    if isinstance(spec, OutputType):
        return compiled
    return replace(compiled, source=(spec, options, bans), worn_at=(1 + _fullness(compiled)) / 2)


def _source_of(compiled: OutputType[Any], bans: Bans | None) -> tuple[Any, SchemaOptions | None, Bans | None]:
    """What a compiled type is compiled from again, so that further bans hold in it, too."""
    spec, options, held = compiled.source
    return spec, options, held if bans is None else bans if held is None else held.plus(bans)


def _fullness(compiled: OutputType[Any]) -> float:
    programs = (compiled.program, compiled.text_program)
    return max((program.fullness() for program in programs if program is not None), default=0.0)


def _compile(
    spec: Any,
    limits: Limits,
    options: SchemaOptions | None,
    wrap: Wrap | None,
    origins: Origins | None,
    bans: Bans | None,
) -> OutputType[Any]:
    """wrap: what to make of the type's node, where it is a part of something larger."""
    started = time.perf_counter()
    if bans is not None and not isinstance(spec, OutputType | Grammar | Tools):
        from safegen.grammars.bans import chained

        is_text = spec is None or isinstance(spec, Regex | Choice)
        wrap = chained(bans.on_text() if is_text else bans.on_json(), wrap)
    if spec is None:
        return _compile_text(limits, started, wrap)
    if isinstance(spec, OutputType):
        if bans is not None:
            spec, options, bans = _source_of(spec, bans)
            return compile_type(spec, limits, options, origins=origins, bans=bans)
        if wrap is not None:
            raise SchemaError("a compiled type cannot be the inner type of Think", hint="pass the type itself")
        return spec
    if isinstance(spec, Regex):
        return _compile_regex(spec, limits, started, wrap, bans)
    if isinstance(spec, Choice):
        return _compile_choice(spec, limits, started, wrap, bans)
    if isinstance(spec, Grammar):
        return _compile_grammar(spec, limits, started, wrap, origins, bans)
    if isinstance(spec, Tools):
        return _compile_tools(spec, options or spec.options, limits, started, wrap, origins, bans)
    if isinstance(spec, JsonSchema):
        return _compile_json(spec.text, options or spec.options, limits, started, json.loads, wrap, origins)
    adapter = python_adapter(spec)
    text = python_schema_text(adapter)
    return _compile_json(
        text,
        options or SchemaOptions(),
        limits,
        started,
        lambda answer: validate_python(adapter, answer),
        wrap,
        origins,
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
    if isinstance(spec, re.Pattern):
        raise SchemaError(f"{spec!r:.80} is no output type", hint="pass its text: Regex(pattern.pattern)")
    if hasattr(type(spec), "__pydantic_validator__") or (is_dataclass(spec) and not isinstance(spec, type)):
        name = type(spec).__name__
        raise SchemaError(f"{spec!r:.80} is a value, not an output type", hint=f"pass the class: {name}")
    from safegen.python_types import adapter_of

    return adapter_of(spec)


def python_schema_text(adapter: Any) -> str:
    """The closed JSON Schema of an adapter's type, as JSON text. Raises SchemaError when it has none."""
    from safegen.python_types import json_schema_of

    return json.dumps(json_schema_of(adapter), ensure_ascii=False)


def validate_python(adapter: Any, text: str) -> Any:
    """The instance of a JSON text. Raises InvalidOutput with the reason of the type's validator."""
    from pydantic import ValidationError

    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise InvalidOutput(f"the type's validator refused the answer: {error}") from error


def check_schema_bytes(schema: str, limits: Limits) -> None:
    """schema: JSON text. Raises SchemaError past the limit."""
    num_bytes = len(schema.encode())
    if num_bytes > limits.max_schema_bytes:
        raise SchemaError(
            f"the schema has {num_bytes:,} bytes, more than max_schema_bytes={limits.max_schema_bytes:,}",
            hint="split the type, or raise Limits(max_schema_bytes=...)",
        )


def json_reader(
    schema: str, options: SchemaOptions, limits: Limits, parse: Callable[[str], Any]
) -> Callable[[str], Any]:
    """What parses and validates a text of a schema, given as JSON text. Raises SchemaError."""
    check_schema_bytes(schema, limits)
    from safegen.validation import SchemaValidator
    from safegen.validation.strict_json import MAX_DEPTH

    depth = max(MAX_DEPTH, limits.max_nesting)
    validator = SchemaValidator(schema, formats=options.formats, documents=options.documents, max_depth=depth)

    def read(text: str) -> Any:
        validator.validate(text)
        return parse(text)

    return read


def _compile_text(limits: Limits, started: float, wrap: Wrap | None) -> OutputType[str]:
    program = None
    if wrap is not None:
        from safegen.grammars.markers import compile_free_text

        program = compile_free_text(limits, wrap=wrap)
    return _finish(started, "text", program, None, (), str)


def _compile_json(
    schema_text: str,
    options: SchemaOptions,
    limits: Limits,
    started: float,
    parse: Callable[[str], Any],
    wrap: Wrap | None,
    origins: Origins | None,
) -> OutputType[Any]:
    from safegen.grammars.json_schema import compile_json_schema

    read = json_reader(schema_text, options, limits, parse)
    compiled = compile_json_schema(schema_text, options, limits, wrap=wrap, origins=origins)
    shown = f"Answer with JSON that matches this JSON Schema, and nothing else:\n{compact_schema(schema_text)}"
    made = _finish(started, "json", compiled.program, shown, compiled.findings, read)
    return replace(made, partial=PartialJson, schema_text=schema_text)


def _compile_regex(
    spec: Regex, limits: Limits, started: float, wrap: Wrap | None, bans: Bans | None
) -> OutputType[str]:
    from safegen.grammars.regex import compile_regex
    from safegen.validation import EcmaRegex

    program = compile_regex(spec.pattern, limits, wrap=wrap)
    judge = EcmaRegex(f"^(?:{spec.pattern})$", lenient=False)

    def read(text: str) -> str:
        if not judge.search(text):
            raise InvalidOutput(f"{text!r:.200} does not match {spec.pattern!r:.200}")
        return text

    fsm: FsmProgram | None = None
    if spec.fsm and bans is None:
        from safegen.grammars.fsm import compile_fsm

        fsm = compile_fsm(spec.pattern, program, limits)
    shown = f"Answer with a text that matches this regular expression, and nothing else:\n{spec.pattern}"
    pattern = spec.pattern if bans is None else None
    return replace(_finish(started, "regex", program, shown, (), read), fsm=fsm, pattern=pattern)


def _compile_choice(
    spec: Choice, limits: Limits, started: float, wrap: Wrap | None, bans: Bans | None
) -> OutputType[str]:
    from safegen.grammars.regex import compile_choice

    program = compile_choice(spec.labels, limits, wrap=wrap)
    allowed = frozenset(spec.labels)

    def read(text: str) -> str:
        if text not in allowed:
            raise InvalidOutput(f"{text!r:.200} is none of the labels")
        return text

    shown = "Answer with exactly one of these, and nothing else:\n" + "\n".join(spec.labels)
    labels = spec.labels
    if bans is not None:
        left = compile_choice(labels, limits, wrap=bans.on_text())
        labels = tuple(label for label in labels if left.matches(label.encode()))
    made = _finish(started, "choice", program, shown, (), read)
    return replace(made, labels=labels, probabilities=spec.probabilities)


def _compile_grammar(
    spec: Grammar,
    limits: Limits,
    started: float,
    wrap: Wrap | None,
    origins: Origins | None,
    bans: Bans | None,
) -> OutputType[Any]:
    from safegen.grammars.lark_grammar import compile_grammar
    from safegen.validation.grammar_validator import GrammarValidator

    text_program: Program | None = None
    if bans is not None and wrap is not None:  # as a part of something larger: in each terminal by itself
        from safegen.grammars.bans import chained

        wrap = chained(bans.on_text(), wrap)
    compiled = compile_grammar(spec.text, start=spec.start, limits=limits, wrap=wrap, origins=origins)
    if bans is not None and wrap is None and bans.at_root() is not None:
        from safegen.grammars.ban_product import check_satisfiable
        from safegen.grammars.markers import compile_free_text

        text_program = compile_free_text(limits, wrap=bans.on_text())
        check_satisfiable(compiled.program, text_program, ", ".join(repr(ban.name) for ban in bans.bans))
    judge = GrammarValidator(
        compiled.source.text,
        spec.start,
        schemas=compiled.source.schemas,
        expressions=compiled.source.plain_expressions(),
        deadline_s=limits.grammar_check_deadline_s,
    )
    if spec.tree:
        judge.require_tree()

    def read(text: str) -> Any:
        judge.check(text)
        return judge.tree(text) if spec.tree else text

    shown = f"Answer with a text that this grammar (Lark syntax) derives, and nothing else:\n{spec.text.strip()}"
    made = _finish(started, "grammar", compiled.program, shown, (), read)
    return made if text_program is None else replace(made, text_program=text_program)


def _compile_tools(
    spec: Tools,
    options: SchemaOptions,
    limits: Limits,
    started: float,
    wrap: Wrap | None,
    origins: Origins | None,
    bans: Bans | None,
) -> OutputType[Any]:
    from safegen.tool_reader import PartialTools
    from safegen.tool_type import compile_tools_type

    made, form = compile_tools_type(spec, options, limits, wrap, origins, bans), spec.format
    compiled = _finish(started, "tools", made.compiled.program, made.shown, made.findings, made.reader.read)
    return replace(
        compiled,
        partial=lambda: PartialTools(form),
        template_tools=TemplateTools(made.tools, form.begin),
        markers=(form.begin, form.end, form.between),
        tool_format=form,
    )


def _compile_think(
    spec: Think, limits: Limits, options: SchemaOptions | None, origins: Origins | None, bans: Bans | None
) -> OutputType[Any]:
    from safegen.grammars.think import ThinkProgram, ThinkSyntax
    from safegen.think import ThinkType

    syntax = ThinkSyntax(spec.start.encode(), spec.end.encode(), spec.max_tokens)
    in_reasoning = None if bans is None else bans.at_root()
    inner = _compile(spec.inner, limits, options, syntax.wrap(in_reasoning), origins, bans)
    assert inner.program is not None  # a wrapped type has one
    think = ThinkType(ThinkProgram(inner.program, syntax), spec.start, spec.end)
    tools = inner.template_tools

    def read(text: str) -> Any:
        reasoning, found = think.split(text)
        if found is None:
            raise InvalidOutput(f"the reasoning has no end marker {spec.end!r} ({len(reasoning):,} characters)")
        return inner.read(found)

    def told(shown: str | None) -> str:
        place = f"between {spec.start} and {spec.end}" if spec.start else f"and end it with {spec.end}"
        first = f"First think: write your reasoning {place}. After it comes the answer alone."
        return f"{first}\n{shown}" if shown else first

    return replace(
        inner,
        kind="think",
        inner_kind=inner.kind,
        shown=told(inner.shown),
        _read=read,
        template_tools=None if tools is None else replace(tools, shown=told(tools.shown)),
        markers=(*inner.markers, spec.start, spec.end),
        think=think,
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


def compact_schema(schema: str) -> str:
    """A schema, given as JSON text, as it is shown to a model."""
    return json.dumps(_without_titles(parse_json(schema)), ensure_ascii=False, separators=(",", ":"))


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
