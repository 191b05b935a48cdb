"""`unevaluatedProperties` and `unevaluatedItems` of drafts 2019-09 and 2020-12.

What is evaluated is collected over the schema itself and every in-place subschema that the instance satisfies. A
subschema that holds and has `additionalProperties` or `unevaluatedProperties` (for arrays `items`, `unevaluatedItems`)
has judged all that was left, so everything counts as evaluated there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from safegen.validation.keywords import Errors, is_listed_property

if TYPE_CHECKING:
    from safegen.validation.evaluator import Evaluator


def unevaluated_properties(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        evaluated = _evaluated_names(evaluator, instance, schema, is_own=True)
        for name, value in instance.items():
            if name not in evaluated:
                yield from evaluator.descend(value, subschema, path=name)


def unevaluated_items(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, list):
        evaluated = _evaluated_indexes(evaluator, instance, schema, is_own=True)
        for index, item in enumerate(instance):
            if index not in evaluated:
                yield from evaluator.descend(item, subschema, path=index)


def _evaluated_names(evaluator: Evaluator, instance: dict[str, Any], schema: Any, *, is_own: bool) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    if "additionalProperties" in schema or (not is_own and "unevaluatedProperties" in schema):
        return set(instance)
    names = {name for name in instance if is_listed_property(evaluator, name, schema)}
    for inner, subschema in _in_place(evaluator, instance, schema):
        names |= _evaluated_names(inner, instance, subschema, is_own=False)
    for name, subschema in schema.get("dependentSchemas", {}).items():
        if name in instance:
            names |= _evaluated_names(evaluator.at(subschema), instance, subschema, is_own=False)
    return names


def _evaluated_indexes(evaluator: Evaluator, instance: list[Any], schema: Any, *, is_own: bool) -> set[int]:
    if not isinstance(schema, dict):
        return set()
    has_prefix_items = "prefixItems" in evaluator.dialect.keywords
    if _evaluates_all_items(schema, has_prefix_items) or (not is_own and "unevaluatedItems" in schema):
        return set(range(len(instance)))
    indexes = set(range(len(schema.get("prefixItems" if has_prefix_items else "items", ()))))
    if has_prefix_items and "contains" in schema:
        indexes |= {index for index, item in enumerate(instance) if evaluator.is_valid(item, schema["contains"])}
    for inner, subschema in _in_place(evaluator, instance, schema):
        indexes |= _evaluated_indexes(inner, instance, subschema, is_own=False)
    return indexes


def _evaluates_all_items(schema: dict[str, Any], has_prefix_items: bool) -> bool:
    if "items" not in schema:
        return False
    return has_prefix_items or not isinstance(schema["items"], list) or "additionalItems" in schema


def _in_place(evaluator: Evaluator, instance: Any, schema: dict[str, Any]) -> Iterator[tuple[Evaluator, Any]]:
    """Subschemas that apply to the same instance and hold, each with the evaluator it is read in."""
    keywords = evaluator.dialect.keywords
    targets = []
    if "$ref" in schema:
        targets.append(evaluator.resolve_static(schema["$ref"], schema))
    if "$dynamicRef" in schema and "$dynamicRef" in keywords:
        targets.append(evaluator.resolve(schema["$dynamicRef"]))
    if "$recursiveRef" in schema and "$recursiveRef" in keywords:
        targets.append(evaluator.resolve_recursive())
    for target in targets:
        yield evaluator.at(target.contents, target.resolver), target.contents
    for keyword in ("allOf", "anyOf", "oneOf"):
        for subschema in schema.get(keyword, ()):
            if evaluator.is_valid(instance, subschema):
                yield evaluator.at(subschema), subschema
    if "if" in schema:
        holds = evaluator.is_valid(instance, schema["if"])
        if holds:
            yield evaluator.at(schema["if"]), schema["if"]
        branch = "then" if holds else "else"
        if branch in schema:
            yield evaluator.at(schema[branch]), schema[branch]
