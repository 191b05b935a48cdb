"""Keywords of JSON Schema that this validator checks itself, in place of `jsonschema`'s.

Each has the signature of a `jsonschema` keyword function, (evaluator, keyword value, instance, schema) -> errors. They
differ from the library's in that numbers and equality are exact decimals, patterns are ECMA-262 in linear time, formats
are exact, subschemas with their own `$id` are resolved against it, and messages do not print whole instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import ValidationError

from safegen.errors import SchemaError
from safegen.validation.decimals import equality_key, is_multiple, is_number
from safegen.validation.ecma_tree import RegexUnsupported
from safegen.validation.formats import FORMATS
from safegen.validation.outcome import ValidatorError

if TYPE_CHECKING:
    from safegen.validation.evaluator import Evaluator

Errors = Iterator[ValidationError]
Keyword = Callable[["Evaluator", Any, Any, Any], Any]


def type_(evaluator: Evaluator, types: Any, instance: Any, schema: Any) -> Errors:
    names = [types] if isinstance(types, str) else types
    if not any(evaluator.is_type(instance, name) for name in names):
        yield ValidationError(f"is not of type {' or '.join(names)}")


def const(evaluator: Evaluator, value: Any, instance: Any, schema: Any) -> Errors:
    if equality_key(instance) not in evaluator.run.constants(schema, "const", [value]):
        yield ValidationError("is not the required constant")


def enum(evaluator: Evaluator, values: Any, instance: Any, schema: Any) -> Errors:
    if equality_key(instance) not in evaluator.run.constants(schema, "enum", values):
        yield ValidationError("is none of the enumerated values")


def unique_items(evaluator: Evaluator, is_required: Any, instance: Any, schema: Any) -> Errors:
    if is_required and isinstance(instance, list) and len({equality_key(item) for item in instance}) != len(instance):
        yield ValidationError("holds equal items")


def minimum(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and instance < bound:
        yield ValidationError(f"is below the minimum {bound}")


def maximum(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and instance > bound:
        yield ValidationError(f"is above the maximum {bound}")


def exclusive_minimum(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and instance <= bound:
        yield ValidationError(f"is not above the exclusive minimum {bound}")


def exclusive_maximum(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and instance >= bound:
        yield ValidationError(f"is not below the exclusive maximum {bound}")


def minimum_draft4(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    check = exclusive_minimum if schema.get("exclusiveMinimum", False) else minimum
    return check(evaluator, bound, instance, schema)


def maximum_draft4(evaluator: Evaluator, bound: Any, instance: Any, schema: Any) -> Errors:
    check = exclusive_maximum if schema.get("exclusiveMaximum", False) else maximum
    return check(evaluator, bound, instance, schema)


def multiple_of(evaluator: Evaluator, divisor: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and not is_multiple(instance, divisor):
        yield ValidationError(f"is not a multiple of {divisor}")


def pattern(evaluator: Evaluator, source: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not evaluator.run.regex(source).search(instance):
        yield ValidationError(f"does not match the pattern {source!r}")


def format_(evaluator: Evaluator, name: Any, instance: Any, schema: Any) -> Errors:
    mode = evaluator.run.formats
    if mode == "annotation" or not isinstance(instance, str):
        return
    check = FORMATS.get(name) if isinstance(name, str) else None
    if check is None:
        if mode == "assert":
            raise SchemaError(f"the format {name!r} is not known", keyword="format", hint=KNOWN_FORMATS_HINT)
        return
    try:
        is_valid = check(instance)
    except RegexUnsupported as error:
        raise ValidatorError(f"the format {name!r} could not be decided: {error}") from error
    if not is_valid:
        yield ValidationError(f"is not a {name}")


KNOWN_FORMATS_HINT = "known formats: " + ", ".join(FORMATS)


def pattern_properties(evaluator: Evaluator, patterns: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    for source, subschema in patterns.items():
        regex = evaluator.run.regex(source)
        for name, value in instance.items():
            if regex.search(name):
                yield from evaluator.descend(value, subschema, path=name, schema_path=source)


def is_listed_property(evaluator: Evaluator, name: str, schema: Any) -> bool:
    """Whether `properties` or `patternProperties` of a schema speak about a name."""
    if name in schema.get("properties", ()):
        return True
    return any(evaluator.run.regex(source).search(name) for source in schema.get("patternProperties", ()))


def additional_properties(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict) or subschema is True:
        return
    for name, value in instance.items():
        if not is_listed_property(evaluator, name, schema):
            if subschema is False:
                yield ValidationError(f"the property {name!r} is not allowed", path=(name,))
            else:
                yield from evaluator.descend(value, subschema, path=name)


def additional_items(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    """Before 2020-12: speaks only beside `items` in its array form."""
    prefix = schema.get("items")
    if isinstance(instance, list) and isinstance(prefix, list):
        for index in range(len(prefix), len(instance)):
            yield from evaluator.descend(instance[index], subschema, path=index)


def contains_one(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    """Drafts 6 and 7: at least one item."""
    if isinstance(instance, list) and not any(evaluator.is_valid(item, subschema) for item in instance):
        yield ValidationError("holds no item that `contains` asks for")


def contains(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, list):
        return
    count = sum(evaluator.is_valid(item, subschema) for item in instance)
    low = schema.get("minContains", 1)
    high = schema.get("maxContains")
    if count < low or (high is not None and count > high):
        keyword = "minContains" if count < low else "maxContains"
        yield ValidationError(f"holds {count} items that `contains` asks for, outside {keyword}", validator=keyword)


def property_names(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for name in instance:
            for _ in evaluator.descend(name, subschema):
                yield ValidationError(f"the property name {name!r} is not allowed", path=(name,))


def any_of(evaluator: Evaluator, subschemas: Any, instance: Any, schema: Any) -> Errors:
    for subschema in subschemas:  # a plain loop: see Evaluator.first_error on frames
        if evaluator.first_error(instance, subschema) is None:
            return
    yield ValidationError("is valid under none of the alternatives")


def one_of(evaluator: Evaluator, subschemas: Any, instance: Any, schema: Any) -> Errors:
    count = 0
    for subschema in subschemas:
        count += evaluator.first_error(instance, subschema) is None
    if count != 1:
        yield ValidationError(f"is valid under {count} of the alternatives, exactly one is required")


def not_(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    if evaluator.is_valid(instance, subschema):
        yield ValidationError("is valid under a schema that is negated")


def if_(evaluator: Evaluator, subschema: Any, instance: Any, schema: Any) -> Errors:
    branch = "then" if evaluator.is_valid(instance, subschema) else "else"
    if branch in schema:
        yield from evaluator.descend(instance, schema[branch], schema_path=branch)


def ref(evaluator: Evaluator, reference: Any, instance: Any, schema: Any) -> Errors:
    resolved = evaluator.resolve_static(reference, schema)
    yield from evaluator.descend(instance, resolved.contents, resolver=resolved.resolver)


def dynamic_ref(evaluator: Evaluator, reference: Any, instance: Any, schema: Any) -> Errors:
    resolved = evaluator.resolve(reference)
    yield from evaluator.descend(instance, resolved.contents, resolver=resolved.resolver)


def recursive_ref(evaluator: Evaluator, reference: Any, instance: Any, schema: Any) -> Errors:
    resolved = evaluator.resolve_recursive()
    yield from evaluator.descend(instance, resolved.contents, resolver=resolved.resolver)
