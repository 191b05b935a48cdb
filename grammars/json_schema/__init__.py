"""JSON Schema (draft 2020-12, older drafts by mapping) to programs of the native constraint machine.

    document -> terms -> canonical shapes -> nodes
    (documents)  (terms)  (reader, canonical)  (lowering)

A schema is compiled exactly or refused with the JSON Pointer and keyword of what cannot be held; the language is never
a superset of what a validator accepts. Nothing is fetched, and no validator library is called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import Any, Literal, NamedTuple

from safegen._native import Builder, LimitExceeded, Program
from safegen.errors import SchemaError
from safegen.grammars.json_schema.canonical import Algebra, Deadline
from safegen.grammars.json_schema.documents import Document, SchemaValue
from safegen.grammars.json_schema.loader import load_schema
from safegen.grammars.json_schema.lowering import Lowering
from safegen.grammars.json_schema.naming import named
from safegen.grammars.json_schema.reader import Reader
from safegen.grammars.json_schema.terms import Position
from safegen.grammars.json_schema.verification import Verification
from safegen.grammars.markers import Wrap
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.origins import Origins, SchemaOrigin

__all__ = [
    "CompiledSchema",
    "Finding",
    "LoweredSchema",
    "check_json_schema",
    "compile_json_schema",
    "lower_schema",
    "schema_builder",
    "verification_of",
]

Schema = dict[str, Any] | bool | str
Verified = dict[tuple[str, str], str]  # by pointer and keyword, a note
_MAX_REFUSALS = 50


class Finding(NamedTuple):
    """How one keyword occurrence is handled. pointer: JSON Pointer of the schema object that holds the keyword."""

    pointer: str
    keyword: str
    handling: Literal["enforced", "verified", "refused"]
    note: str = ""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    program: Program
    findings: tuple[Finding, ...]
    compile_ms: float


@dataclass(frozen=True, slots=True)
class LoweredSchema:
    """A schema's node in the builder it was lowered into."""

    node: int
    findings: tuple[Finding, ...]


def compile_json_schema(
    schema: Schema,
    options: SchemaOptions | None = None,
    limits: Limits | None = None,
    *,
    make_builder: Callable[..., Builder] = Builder,
    wrap: Wrap | None = None,
    origins: Origins | None = None,
) -> CompiledSchema:
    """Compile a schema, given as a dict, a boolean or JSON text. wrap: what to make of its node, given the builder.
    origins: takes what the nodes were made from.

    Raises SchemaError (pointer, keyword, hint) when the schema is invalid, cannot be satisfied, holds something that
    cannot be enforced, or passes a limit.
    """
    started = perf_counter()
    options, limits = options or SchemaOptions(), limits or Limits()
    document = _document(schema, options, limits)
    program, verified = _build(document, options, limits, make_builder, wrap, origins)
    return CompiledSchema(program, _findings(document, verified), (perf_counter() - started) * 1e3)


def lower_schema(
    builder: Builder,
    schema: Schema,
    options: SchemaOptions | None = None,
    limits: Limits | None = None,
    *,
    check_empty: bool = True,
    origins: Origins | None = None,
    prefix: str = "",
) -> LoweredSchema:
    """Add a schema to a builder, which may hold others: `schema_builder` makes one with the settings of the options.

    check_empty: whether some text is legal is asked at once. It costs a walk over the whole builder, so a caller who
    adds many schemas may leave it out and ask `node_is_empty` for all of them together. origins: takes what the nodes
    were made from, with `prefix` before the pointers.

    Raises what `compile_json_schema` raises; the builder is then spoilt, as it may hold nodes that lead nowhere.
    """
    options, limits = options or SchemaOptions(), limits or Limits()
    document = _document(schema, options, limits)
    node, verified = _lower(builder, document, options, limits, check_empty, origins, prefix)
    return LoweredSchema(node, _findings(document, verified))


def _document(schema: Schema, options: SchemaOptions, limits: Limits) -> Document:
    return Document(load_schema(schema, limits), _others(options, limits))


def _others(options: SchemaOptions, limits: Limits) -> dict[str, SchemaValue]:
    return {uri: load_schema(schema, limits) for uri, schema in options.documents.items()}


def schema_builder(options: SchemaOptions, limits: Limits, make_builder: Callable[..., Builder] = Builder) -> Builder:
    return make_builder(
        max_states=limits.max_states,
        whitespace=limits.max_whitespace if options.whitespace == "flexible" else 0,
        any_order=options.property_order == "any",
        any_spelling=options.spelling == "any",
        max_digits=limits.max_digits,
        max_exponent_digits=limits.max_exponent_digits,
        deadline_s=limits.compile_deadline_s,
        max_nesting=limits.max_nesting,
    )


def check_json_schema(
    schema: Schema,
    options: SchemaOptions | None = None,
    limits: Limits | None = None,
    *,
    make_builder: Callable[..., Builder] = Builder,
) -> list[Finding]:
    """How every keyword occurrence of a schema is handled, refused ones included. Raises nothing for a bad schema."""
    options, limits = options or SchemaOptions(), limits or Limits()
    try:
        root = load_schema(schema, limits)
        others = _others(options, limits)
        document = Document(root, others, collect=True)
    except SchemaError as error:
        return [_refusal(error)]
    refused = [_refusal(problem) for problem in document.problems]
    served: tuple[Finding, ...] = ()
    if not refused:
        refused, served = _refusals(root, others, options, limits, make_builder)
    # What was compiled knows how each keyword is handled, also of parts that only references reach; what was walked
    # knows the keywords inside of refused ones.
    findings: dict[tuple[str, str], Finding] = {}
    for finding in (*refused, *served, *_findings(document, {})):
        findings.setdefault((finding.pointer, finding.keyword), finding)
    return list(findings.values())


def _build(
    document: Document,
    options: SchemaOptions,
    limits: Limits,
    make_builder: Callable[..., Builder],
    wrap: Wrap | None = None,
    origins: Origins | None = None,
) -> tuple[Program, Verified]:
    builder = schema_builder(options, limits, make_builder)
    node, verified = _lower(builder, document, options, limits, origins=origins)
    try:
        return builder.build(wrap(builder, node) if wrap is not None else node), verified
    except LimitExceeded as error:
        raise named(_too_large(error), document.root, "") from error


def _lower(
    builder: Builder,
    document: Document,
    options: SchemaOptions,
    limits: Limits,
    check_empty: bool = True,
    origins: Origins | None = None,
    prefix: str = "",
) -> tuple[int, Verified]:
    algebra = Algebra(builder, limits)
    reader = Reader(document, algebra, options, limits)
    verification = verification_of(document, options, limits, algebra.deadline)
    lowering = Lowering(reader, algebra, options, limits, verification.predicate, shares_nodes=origins is None)
    try:
        root = reader.root()
        node = lowering.root_node(root, check_empty=check_empty)
    except LimitExceeded as error:
        raise named(_too_large(error), document.root, lowering.worked_on) from error
    except RecursionError:
        deep = SchemaError("the schema nests too deeply", hint="Flatten allOf, anyOf and $ref chains.")
        raise named(deep, document.root, lowering.worked_on) from None
    except SchemaError as error:
        raise named(error, document.root, lowering.worked_on) from error.__cause__
    if origins is not None:
        origins.schemas.append(SchemaOrigin(prefix, document, options, limits, root, lowering.terms_by_node()))
    return node, lowering.verified


def verification_of(document: Document, options: SchemaOptions, limits: Limits, deadline: Deadline) -> Verification:
    """Programs of parts of the schema judge values, so they take every text of a value."""
    every_text = replace(options, whitespace="flexible", property_order="any", spelling="any")

    def compile_exactly(position: Position) -> Program:
        builder = schema_builder(every_text, limits)
        algebra = Algebra(builder, limits, deadline)
        reader = Reader(document, algebra, every_text, limits)
        lowering = Lowering(reader, algebra, every_text, limits, verification.predicate)
        term = algebra.terms.position(position.schema, position.pointer, position.base)
        return builder.build(lowering.exact_root_node(term))

    verification = Verification(document, compile_exactly)
    return verification


def _too_large(error: LimitExceeded) -> SchemaError:
    return SchemaError(f"the schema is too large for the machine: {error}", hint="Raise that limit, or ask for less.")


def _findings(document: Document, verified: Verified) -> tuple[Finding, ...]:
    noted = {(pointer, keyword) for pointer, keyword, _ in document.notes} | verified.keys()
    enforced = (place for place in document.occurrences if place not in noted)
    return (
        *(Finding(pointer, keyword, "enforced") for pointer, keyword in enforced),
        *(Finding(pointer, keyword, "enforced", note) for pointer, keyword, note in document.notes),
        *(Finding(pointer, keyword, "verified", note) for (pointer, keyword), note in verified.items()),
    )


def _refusal(error: SchemaError) -> Finding:
    return Finding(error.pointer, error.keyword or "", "refused", error.reason)


def _refusals(
    root: SchemaValue,
    others: Mapping[str, SchemaValue],
    options: SchemaOptions,
    limits: Limits,
    make_builder: Callable[..., Builder],
) -> tuple[list[Finding], tuple[Finding, ...]]:
    """Compile again and again, each time without the keyword that was refused last: the refusals, and the findings of
    what remains once it is served. All of it within one deadline."""
    found: list[Finding] = []
    remaining = copy.deepcopy(root)
    until = monotonic() + limits.compile_deadline_s
    for _ in range(_MAX_REFUSALS):
        left = replace(limits, compile_deadline_s=max(until - monotonic(), 1e-9))
        try:
            document = Document(remaining, others)
            return found, _findings(document, _build(document, options, left, make_builder)[1])
        except SchemaError as error:
            found.append(_refusal(error))
            if error.keyword is None or not _delete(remaining, error.pointer, error.keyword):
                break
    return found, ()


def _delete(root: SchemaValue, pointer: str, keyword: str) -> bool:
    """Take one keyword out of a document; False when it is not there."""
    current: Any = root
    for raw in pointer.split("/")[1:]:
        token = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(current, list) and token.isdecimal() and int(token) < len(current):
            current = current[int(token)]
        elif isinstance(current, dict) and token in current:
            current = current[token]
        else:
            return False
    if not isinstance(current, dict) or keyword not in current:
        return False
    del current[keyword]
    return True
