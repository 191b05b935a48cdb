"""Output types that are not Python types: `JsonSchema`, `Regex`, `Choice`, `Grammar`, `Think` (`Tools`: safegen.tools).

They are plain descriptions: frozen, hashable, checked for shape at construction, compiled by `safegen.output_type`.
Anything that `pydantic.TypeAdapter` takes needs no description of ours and is passed as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from safegen.errors import GrammarError, RequestError, SchemaError
from safegen.grammars.options import Formats, PropertyOrder, SchemaOptions, Spelling, Whitespace


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON Schema, taken literally: an object it leaves open stays open.

    schema: a dict, a bool, or the JSON text of one. `Result.value` is the parsed JSON. Raises SchemaError when it is
    no JSON value that can be a schema, RequestError for an unknown option.

    whitespace: "compact" allows none, "flexible" a bounded amount. property_order: "schema" is first appearance in
    the schema, "any" is any order. spelling: "canonical" gives listed names, listed values and integers one spelling,
    "any" accepts every spelling of an equal value. formats: "assert" enforces `format` and refuses unknown ones,
    "known" takes unknown ones as annotations, "annotation" ignores the keyword.

    documents: further schemas by URI, which references may lead to. Nothing is ever fetched; the drafts' metaschemas
    are there without asking.
    """

    schema: Mapping[str, Any] | bool | str = field(hash=False, compare=False)
    whitespace: Whitespace = "compact"
    property_order: PropertyOrder = "schema"
    spelling: Spelling = "canonical"
    formats: Formats = "assert"
    documents: Mapping[str, Any] = field(default_factory=dict, hash=False)
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = self.schema if isinstance(self.schema, str) else schema_text(self.schema)
        document = parse_json(text)
        if not isinstance(document, dict | bool):
            raise SchemaError(
                f"a JSON Schema is an object or a boolean, not {type(document).__name__}",
                hint='pass a dict such as {"type": "object", "properties": {...}}',
            )
        object.__setattr__(self, "text", text)
        _ = self.options

    @property
    def options(self) -> SchemaOptions:
        return SchemaOptions(self.whitespace, self.property_order, self.spelling, self.formats, self.documents)


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole answer matches `pattern` (ECMA-262 syntax, matched against the full text). `Result.value` is a str.

    fsm: hold the decoder to a table over the model's tokens (outlines-core's index), made at the first use: a mask is
    a row of it, a step a look-up, so that it can lie on a device. For small regexes (`Limits.max_fsm_states`). The
    answers are the same, and no faster on a CPU.
    """

    pattern: str
    fsm: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise GrammarError(f"Regex takes a pattern string, got {type(self.pattern).__name__}")
        if not isinstance(self.fsm, bool):
            raise RequestError(f"fsm is True or False, got {self.fsm!r}", field="fsm", value=self.fsm)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The whole answer derives from the rule `start` of a context-free grammar in Lark syntax (docs/grammars.md).

    `Result.value` is the text, or with `tree` the `lark.Tree` that Lark's Earley parser makes of it.
    """

    text: str
    start: str = "start"
    tree: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise GrammarError(f"Grammar takes a grammar as a string, got {type(self.text).__name__}")
        if not isinstance(self.start, str):
            raise GrammarError(f"Grammar(start=...) is the name of a rule, got {type(self.start).__name__}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer is one of `labels`, verbatim. `Result.value` is the label.

    probabilities: also fill `Result.choices` with the probability of each label, summed over all its tokenizations,
    under the masked law at temperature 1. Raises GrammarError for no labels, empty ones or duplicates.
    """

    labels: tuple[str, ...]
    probabilities: bool = False

    def __init__(self, labels: Iterable[str], probabilities: bool = False) -> None:
        if isinstance(labels, str):
            raise GrammarError(f"Choice takes a list of labels, got the string {labels!r}; write Choice([{labels!r}])")
        if not isinstance(labels, Iterable):
            raise GrammarError(f"Choice takes a list of labels, got {labels!r}")
        listed = tuple(labels)
        for label in listed:
            if not isinstance(label, str) or not label:
                raise GrammarError(f"Choice labels are non-empty strings, got {label!r}")
        if not listed:
            raise GrammarError("Choice needs at least one label")
        if len(set(listed)) != len(listed):
            twice = next(label for label in listed if listed.count(label) > 1)
            raise GrammarError(f"Choice label {twice!r} is listed twice")
        object.__setattr__(self, "labels", listed)
        object.__setattr__(self, "probabilities", probabilities)


@dataclass(frozen=True, slots=True)
class Think:
    """Free reasoning, then the answer: `<think> ... </think>` and a text of the type `inner`.

    inner: any output type but Think; None is free text. max_tokens: after so many tokens of reasoning the end marker
    is forced; None is no cap. start, end: the markers, as texts; a control token of the model that is written so counts
    as that text. An answer begins with `start`, unless the chat template has written it already; an empty one is left
    out. The first `end` ends the reasoning.

    `Result.value` is that of `inner`, `Result.thinking` the reasoning. Raises RequestError for an option that cannot
    serve.
    """

    inner: Any
    max_tokens: int | None = None
    end: str = "</think>"
    start: str = "<think>"

    def __post_init__(self) -> None:
        if isinstance(self.inner, Think):
            raise RequestError("the inner type of Think cannot be Think", field="inner", value=self.inner)
        if isinstance(self.inner, Choice) and self.inner.probabilities:
            raise RequestError(
                "a Choice after reasoning has no label probabilities; leave probabilities=True out",
                field="inner",
                value=self.inner,
            )
        if isinstance(self.inner, Regex) and self.inner.fsm:
            raise RequestError(
                "a Regex after reasoning has no table of its own; leave fsm=True out", field="inner", value=self.inner
            )
        limit = self.max_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise RequestError(
                f"max_tokens is None or a number from 0 on, got {limit!r}", field="max_tokens", value=limit
            )
        for name in ("end", "start"):
            value = getattr(self, name)
            if not isinstance(value, str) or (name == "end" and not value) or not _is_encodable(value):
                raise RequestError(f"{name} is a text, got {value!r}", field=name, value=value)
        if self.end in self.start:
            raise RequestError("start cannot hold the end marker", field="start", value=self.start)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_json(text: str) -> Any:
    """Parse the JSON text of a schema strictly: no NaN, no key twice, no lone surrogate. Raises SchemaError."""
    try:
        text.encode()
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_pairs)
    except UnicodeEncodeError as error:
        raise SchemaError(f"the schema holds a lone surrogate at character {error.start} of its JSON") from error
    except json.JSONDecodeError as error:
        raise SchemaError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise SchemaError(f"the schema cannot be read: {error}") from error
    except RecursionError as error:
        raise SchemaError("nested too deeply to be read") from error


def schema_text(schema: object) -> str:
    """A schema as JSON text. Raises SchemaError for what is none."""
    if not isinstance(schema, Mapping | bool):
        raise SchemaError(
            f"JsonSchema takes a dict, a bool or JSON text, got {type(schema).__name__}",
            hint="a Python type is passed as it is: generate(prompt, Person)",
        )
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_plain)
        _check_keys(schema)
        return text
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the schema cannot be written as JSON: {error}") from error
    except RecursionError as error:
        raise SchemaError("nested too deeply to be read") from error


def _check_keys(schema: object) -> None:
    """json.dumps writes a key 1 as "1". The schema holds no cycle."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise SchemaError(f"the key {key!r:.80} is {type(key).__name__}, not str")
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _refuse_constant(name: str) -> NoReturn:
    raise SchemaError(f"{name} is not a JSON number")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise SchemaError(f"the name {twice!r} stands twice in one object of the schema")
    return document
