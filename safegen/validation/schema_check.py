"""Is a schema served? Its metaschema, its references, its patterns and its formats are checked before any instance.

The metaschema check is exactly the draft's, with exact numbers. Metaschemas recurse only through one reference to
themselves (`#`, or the dynamic anchor `meta`); here that reference puts the subschema on a worklist instead, so the
nesting of the schema costs no stack, and equal leaf schemas are checked once.

The audit then walks every subschema that can be reached from the root, through references too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from jsonschema.exceptions import ValidationError

from safegen.errors import SchemaError
from safegen.validation.decimals import equality_key
from safegen.validation.dialects import METASCHEMAS, Dialect
from safegen.validation.evaluator import Evaluator, Library, Run
from safegen.validation.formats import FORMATS
from safegen.validation.keywords import KNOWN_FORMATS_HINT, Errors, ref
from safegen.validation.outcome import json_pointer

MAX_STEPS_PER_SCHEMA = 100_000
_SELF_REFERENCES = ("#", "#meta")
_FREE_TEXTS = ("$comment", "description", "pattern", "title")
_FREE_VALUES = ("const", "default")
_ONE_SCHEMA = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_SCHEMA_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("dependencies", "dependentSchemas", "patternProperties", "properties")


def check_against_metaschema(dialect: Dialect, schema: Any) -> None:
    """Raises SchemaError at the first place where a schema breaks its draft's metaschema."""
    worklist: list[Any] = [schema]
    checked_leaves: set[Any] = set()
    library = Library("annotation")
    checker = _deferring(dialect, worklist)
    resolver = METASCHEMAS.resolver(dialect.uri)
    while worklist:
        subschema = worklist.pop()
        if _is_leaf(subschema):
            key = _leaf_key(subschema)
            if key in checked_leaves:
                continue
            checked_leaves.add(key)
        evaluator = Evaluator(Run(library, MAX_STEPS_PER_SCHEMA), checker, resolver)
        error = evaluator.first_error(subschema, dialect.meta_schema, resolver)
        if error is not None:
            raise _schema_error(error, [*_path_to(schema, subschema), *error.path], dialect)


def _is_leaf(subschema: Any) -> bool:
    return not isinstance(subschema, dict) or not any(isinstance(part, dict | list) for part in subschema.values())


def _leaf_key(subschema: Any) -> Any:
    """Equal for leaf schemas on which every metaschema decides alike: what is free text or free value is left out."""
    if not isinstance(subschema, dict):
        return equality_key(subschema)
    return equality_key(
        {
            name: "" if name in _FREE_TEXTS and isinstance(value, str) else value
            for name, value in subschema.items()
            if name not in _FREE_VALUES
        }
    )


def _deferring(dialect: Dialect, worklist: list[Any]) -> Dialect:
    """The dialect with references of the metaschema to itself replaced by an entry in the worklist."""

    def defer(evaluator: Evaluator, reference: Any, instance: Any, schema: Any) -> Errors:
        if reference in _SELF_REFERENCES and isinstance(instance, dict):
            worklist.append(instance)
        elif reference in _SELF_REFERENCES:
            resolver = METASCHEMAS.resolver(dialect.uri)
            yield from evaluator.descend(instance, dialect.meta_schema, resolver=resolver)
        else:
            yield from ref(evaluator, reference, instance, schema)

    names = [name for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in dialect.keywords]
    keywords = MappingProxyType({**dialect.keywords, **dict.fromkeys(names, defer)})
    return dataclasses.replace(dialect, keywords=keywords)


def _schema_error(error: ValidationError, path: list[Any], dialect: Dialect) -> SchemaError:
    """The error at the schema position, with the keyword, in which the path ends."""
    steps = [index for index, step in enumerate(path) if step in dialect.keywords]
    position, inside = (path[: steps[-1]], path[steps[-1] + 1 :]) if steps else (path, [])
    keyword = path[steps[-1]] if steps else None
    where = f" at {json_pointer(inside)}" if inside else ""
    return SchemaError(f"not a valid schema{where}: {error.message}", pointer=json_pointer(position), keyword=keyword)


def _path_to(root: Any, part: Any) -> list[str | int]:
    """The path of a part, by identity."""
    stack: list[tuple[list[str | int], Any]] = [([], root)]
    while stack:
        path, node = stack.pop()
        if node is part:
            return path
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        stack.extend(([*path, step], child) for step, child in items)
    return []


def audit(root: Evaluator, schema: Any) -> None:
    """Compile every reachable pattern, resolve every reachable reference, look up every format that is asserted.

    Raises SchemaError with the pointer. Marks the library when meaning depends on the path (see Library).
    """
    seen: set[int] = set()
    stack: list[tuple[Evaluator, Any, tuple[str | int, ...]]] = [(root, schema, ())]
    while stack:
        evaluator, subschema, path = stack.pop()
        if isinstance(subschema, bool) or id(subschema) in seen:
            continue
        if not isinstance(subschema, dict):
            raise SchemaError("not a schema: it is neither an object nor a boolean", pointer=json_pointer(path))
        seen.add(id(subschema))
        if evaluator.dialect is not root.dialect:
            root.run.library.depends_on_path = True
        try:
            keywords = dict(evaluator.dialect.applicable(subschema))
            _audit_values(evaluator, keywords)
            stack.extend(_reachable(evaluator, keywords, subschema, path))
        except SchemaError as error:
            if error.pointer:
                raise
            raise SchemaError(
                error.reason, pointer=json_pointer(path), keyword=error.keyword, hint=error.hint
            ) from error


def _audit_values(evaluator: Evaluator, keywords: dict[str, Any]) -> None:
    library = evaluator.run.library
    if "pattern" in keywords:
        library.regex(keywords["pattern"])
    for pattern in keywords.get("patternProperties", ()):
        library.regex(pattern, "patternProperties")
    if "format" in keywords and library.formats == "assert":
        name = keywords["format"]
        if not isinstance(name, str) or name not in FORMATS:
            raise SchemaError(f"the format {name!r} is not known", keyword="format", hint=KNOWN_FORMATS_HINT)


def _reachable(
    evaluator: Evaluator, keywords: dict[str, Any], schema: dict[str, Any], path: tuple[str | int, ...]
) -> Iterator[tuple[Evaluator, Any, tuple[str | int, ...]]]:
    """The subschemas of a schema and the targets of its references."""
    for keyword, value in keywords.items():
        known = keyword in evaluator.dialect.keywords or (keyword in ("then", "else") and "if" in keywords)
        if not known:
            continue
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword != "$ref":
                evaluator.run.library.depends_on_path = True
            target = evaluator.resolve_recursive() if keyword == "$recursiveRef" else evaluator.resolve(value)
            yield evaluator.at(target.contents, target.resolver), target.contents, (*path, keyword)
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield evaluator.at(child), child, (*path, keyword, index)
        elif keyword in _ONE_SCHEMA:
            yield evaluator.at(value), value, (*path, keyword)
        elif keyword in _SCHEMA_MAPS:
            for name, child in value.items():
                if not (keyword == "dependencies" and isinstance(child, list)):
                    yield evaluator.at(child), child, (*path, keyword, name)
