"""Evaluates an instance against a schema: the engine under `jsonschema`'s keyword functions.

An `Evaluator` is what those functions call "validator": it knows the draft and the base URI at a schema position, and
goes down into subschemas. It differs from the library's own in four ways. It looks for the first error only. It counts
its steps against a budget. It remembers verdicts of (instance, schema) pairs, so that references shared by many paths
are judged once. And a subschema's `$schema` picks one of our drafts, never a stock validator.

State of one validation is in `Run`; `Library` holds what a schema's validations share. Identities (`id`) serve as
keys: the schema and the instance are trees that live longer than the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import referencing.exceptions
from jsonschema.exceptions import ValidationError
from referencing.jsonschema import lookup_recursive_ref

from safegen.errors import GrammarError, SchemaError
from safegen.validation.decimals import equality_key, is_integer, is_number, is_written_as_integer
from safegen.validation.dialects import Dialect, dialect_of
from safegen.validation.ecma import EcmaRegex
from safegen.validation.keywords import ref
from safegen.validation.outcome import ValidatorError

MAX_REFERENCE_CHAIN = 256

FormatMode = Literal["assert", "known", "annotation"]


@dataclass(slots=True)
class Library:
    """What all validations with one schema share: compiled patterns, constants, resolved references.

    depends_on_path: what a schema means can depend on the way to it (`$dynamicRef`, `$recursiveRef`, parts in another
    draft); then neither targets of references nor verdicts are remembered.
    """

    formats: FormatMode
    depends_on_path: bool = False
    regexes: dict[str, EcmaRegex] = field(default_factory=dict)
    constants: dict[tuple[int, str], frozenset[Any]] = field(default_factory=dict)
    references: dict[int, Any] = field(default_factory=dict)

    def regex(self, pattern: Any, keyword: str = "pattern") -> EcmaRegex:
        regex = self.regexes.get(pattern) if isinstance(pattern, str) else None
        if regex is None:
            regex = self.regexes[pattern] = _compiled(pattern, keyword)
        return regex


def _compiled(pattern: Any, keyword: str) -> EcmaRegex:
    if not isinstance(pattern, str):
        raise SchemaError(f"a pattern must be a string, got {pattern!r}", keyword=keyword)
    try:
        return EcmaRegex(pattern)
    except GrammarError as error:
        raise SchemaError(str(error), keyword=keyword, hint="use ECMA-262 syntax") from error


class Run:
    """One validation. Not shared between threads."""

    def __init__(self, library: Library, max_steps: int) -> None:
        self.library = library
        self.formats = library.formats
        self.regex = library.regex
        self.max_steps = max_steps
        self.steps_left = max_steps
        self.verdicts: dict[tuple[int, int], ValidationError | None] = {}

    def spend_step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise ValidatorError(f"validation took more than {self.max_steps} steps; simplify the schema")

    def constants(self, schema: Any, keyword: str, values: list[Any]) -> frozenset[Any]:
        """Equality keys of the constants that a keyword of a schema lists."""
        key = (id(schema), keyword)
        keys = self.library.constants.get(key)
        if keys is None:
            keys = self.library.constants[key] = frozenset([equality_key(value) for value in values])
        return keys


class Evaluator:
    """A place in a schema: its draft and its base URI (in the resolver)."""

    __slots__ = ("dialect", "resolver", "run")

    def __init__(self, run: Run, dialect: Dialect, resolver: Any) -> None:
        self.run = run
        self.dialect = dialect
        self.resolver = resolver

    def at(self, schema: Any, resolver: Any = None) -> Evaluator:
        """The evaluator for a subschema of this place, or with a resolver for the target of a reference."""
        if not isinstance(schema, dict):
            return self
        dialect, specification = self.dialect, self.dialect.specification
        if "$schema" in schema and self._begins_resource(schema, resolver):
            named = dialect_of(schema)
            dialect = dialect if named.uri == dialect.uri else named
        if resolver is None:
            resolver = self.resolver
            if "$id" in schema or "id" in schema:
                resolver = resolver.in_subresource(specification.create_resource(schema))
        if dialect is self.dialect and resolver is self.resolver:
            return self
        return Evaluator(self.run, dialect, resolver)

    def _begins_resource(self, schema: dict[str, Any], resolver: Any) -> bool:
        """Whether a schema has an identifier, by the draft around it, or is a whole document. Only there a `$schema`
        counts."""
        if self.dialect.specification.create_resource(schema).id() is not None:
            return True
        return resolver is not None and resolver.lookup("").contents is schema

    def is_type(self, instance: Any, name: str) -> bool:
        match name:
            case "object":
                return isinstance(instance, dict)
            case "array":
                return isinstance(instance, list)
            case "string":
                return isinstance(instance, str)
            case "number":
                return is_number(instance)
            case "integer":
                return is_written_as_integer(instance) if self.dialect.integers_by_text else is_integer(instance)
            case "boolean":
                return isinstance(instance, bool)
            case "null":
                return instance is None
        raise SchemaError(f"the type {name!r} is not known", keyword="type")

    def is_valid(self, instance: Any, schema: Any) -> bool:
        return self.first_error(instance, schema) is None

    def descend(
        self, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
    ) -> tuple[ValidationError, ...]:
        """The first error of an instance under a subschema, if any, with the steps to both prepended."""
        error = self.first_error(instance, schema, resolver)
        if error is None:
            return ()
        if path is not None:
            error.path.appendleft(path)
        if schema_path is not None:
            error.schema_path.appendleft(schema_path)
        return (error,)

    def first_error(self, instance: Any, schema: Any, resolver: Any = None) -> ValidationError | None:
        """The first error of an instance under a subschema. resolver: that of the reference which led to it, if any."""
        scope, schema, num_references = self._followed(schema, resolver)
        if schema is True:
            return None
        run = self.run
        run.spend_step()
        key = (id(instance), id(schema))
        if key in run.verdicts:
            known = run.verdicts[key]
            error = None if known is None else ValidationError.create_from(known)
        else:
            # In line, not a method: every frame a level of nesting saves is depth gained.
            error = None if schema is not False else ValidationError("no value is allowed here")
            checks = scope.dialect.keywords
            for keyword, value in scope.dialect.applicable(schema) if error is None else ():
                check = checks.get(keyword)
                if check is not None:
                    for error in check(scope, value, instance, schema):
                        if not isinstance(error.validator, str):
                            error.validator = keyword
                        error.schema_path.appendleft(keyword)
                        break
                    if error is not None:
                        break
            if not run.library.depends_on_path:
                run.verdicts[key] = None if error is None else ValidationError.create_from(error)
        if error is not None:
            error.schema_path.extendleft(("$ref",) * num_references)
        return error

    def _followed(self, schema: Any, resolver: Any) -> tuple[Evaluator, Any, int]:
        """Where a chain of schemas that are nothing but a `$ref` ends: evaluator, schema, number of references."""
        scope = self.at(schema, resolver)
        num_references = 0
        while isinstance(schema, dict) and "$ref" in schema and scope.dialect.keywords["$ref"] is ref:
            if len(schema) > 1 and not scope.dialect.ref_hides_siblings:
                break
            num_references += 1
            if num_references > MAX_REFERENCE_CHAIN:
                raise SchemaError("references lead to one another without end", keyword="$ref")
            resolved = scope.resolve_static(schema["$ref"], schema)
            schema = resolved.contents
            scope = scope.at(schema, resolved.resolver)
        if not isinstance(schema, dict | bool):
            raise SchemaError(
                f"a schema must be an object or a boolean, got {str(schema)[:60]!r}", hint="check the $ref"
            )
        return scope, schema, num_references

    # -- references ------------------------------------------------------------------------------------------------

    def resolve(self, reference: Any) -> Any:
        """The target of a reference (referencing.Resolved). Nothing is ever fetched."""
        if not isinstance(reference, str):
            raise SchemaError(f"a reference must be a string, got {reference!r}", keyword="$ref")
        try:
            return self.resolver.lookup(reference)
        except (referencing.exceptions.Unresolvable, ValueError) as error:
            raise SchemaError(
                f"the reference {reference!r} leads nowhere in this schema",
                keyword="$ref",
                hint="references are never fetched; put the target under $defs",
            ) from error

    def resolve_static(self, reference: Any, schema: dict[str, Any]) -> Any:
        """The target of the `$ref` of a schema, which its place alone decides."""
        library = self.run.library
        if library.depends_on_path:
            return self.resolve(reference)
        resolved = library.references.get(id(schema))
        if resolved is None:
            resolved = library.references[id(schema)] = self.resolve(reference)
        return resolved

    def resolve_recursive(self) -> Any:
        """The target of `$recursiveRef` (draft 2019-09)."""
        return lookup_recursive_ref(self.resolver)
