"""What the value of each keyword must look like, and where the schemas inside it lie.

Checks are those of the metaschemas, with one exception: a name listed twice in `required` or `type` is harmless and
passes. `subschemas` yields the places of schemas, so nothing inside const, enum, default or examples is ever taken
for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from typing import Any

from safegen.grammars.json_schema.dialects import COUNT_WORDS, Dialect
from safegen.grammars.json_schema.loader import escape_token

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
Check = Callable[[Any], str | None]


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _schema(value: Any) -> str | None:
    return None if _is_schema(value) else "must be a schema (an object or a boolean)"


def _schema_list(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "must be a list of at least one schema"
    return next((f"item {i} is no schema" for i, item in enumerate(value) if not _is_schema(item)), None)


def _schema_map(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of schemas"
    return next((f"member {name!r} is no schema" for name, member in value.items() if not _is_schema(member)), None)


def _items(value: Any) -> str | None:
    return _schema(value) if not isinstance(value, list) or not value else _schema_list(value)


def _strings(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return None
    return "must be a list of strings"


def _string(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number(value: Any) -> str | None:
    return None if isinstance(value, (int, Decimal)) and not isinstance(value, bool) else "must be a number"


def _positive(value: Any) -> str | None:
    return "must be a number above zero" if _number(value) or value <= 0 else None


def _count(value: Any) -> str | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if good else "must be an integer of at least zero"


def _types(value: Any) -> str | None:
    names = value if isinstance(value, list) and value else [value]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            return f"{name!r} is none of the types {', '.join(TYPES)}"
    return None


def _enum(value: Any) -> str | None:
    return None if isinstance(value, list) else "must be a list of values"


def _required_map(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of lists of names"
    return next((f"member {name!r} {bad}" for name, need in value.items() if (bad := _strings(need))), None)


def _dependencies(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of schemas or lists of names"
    for name, need in value.items():
        if not _is_schema(need) and _strings(need):
            return f"member {name!r} must be a schema or a list of names"
    return None


_SCHEMA_WORDS = (
    *("additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
)
_STRING_WORDS = (
    *("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"),
    *("$anchor", "$dynamicAnchor", "$id", "id"),
)

CHECKS: dict[str, Check] = {
    **dict.fromkeys(_SCHEMA_WORDS, _schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schema_list),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _schema_map),
    **dict.fromkeys(COUNT_WORDS, _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(_STRING_WORDS, _string),
    "items": _schema,
    "type": _types,
    "enum": _enum,
    "required": _strings,
    "uniqueItems": _boolean,
    "multipleOf": _positive,
    "dependentRequired": _required_map,
    "dependencies": _dependencies,
}

_ONE = frozenset(word for word, check in CHECKS.items() if check is _schema)
_LISTS = frozenset(word for word, check in CHECKS.items() if check is _schema_list)
_MAPS = frozenset(word for word, check in CHECKS.items() if check is _schema_map)
_HOLDERS = _ONE | _LISTS | _MAPS | {"dependencies"}


def problem(keyword: str, value: Any, dialect: Dialect) -> str | None:
    """What is wrong with the value of a keyword that the dialect knows; None when nothing is."""
    if keyword == "items" and dialect.item_lists:
        return _items(value)
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and dialect.boolean_bounds:
        return _boolean(value)
    check = CHECKS.get(keyword)
    bad = check(value) if check is not None else None
    if bad and keyword == "items" and isinstance(value, list):
        return f"{bad}; a list of item schemas is called prefixItems in {dialect.name}"
    if bad and keyword.startswith("exclusive") and isinstance(value, bool):
        return f"{bad}; the flag of draft-04 needs that draft in $schema"
    return bad


def subschemas(schema: dict[str, Any], dialect: Dialect) -> Iterator[tuple[dict[str, Any] | bool, str]]:
    """(schema, relative pointer) of every schema directly inside; what is not of the right form is passed over."""
    for word in schema.keys() & _HOLDERS:
        if word not in dialect.keywords:
            continue
        value = schema[word]
        if isinstance(value, list):
            yield from ((item, f"/{word}/{index}") for index, item in enumerate(value) if _is_schema(item))
        elif word in _ONE and _is_schema(value):
            yield value, f"/{word}"
        elif word not in _ONE and isinstance(value, dict):
            for name, member in value.items():
                if _is_schema(member):
                    yield member, f"/{word}/{escape_token(name)}"


class Step(Enum):
    """What a JSON Pointer has come to: a schema, a list or map of schemas, or anything else."""

    SCHEMA = "schema"
    HOLDER = "holder"
    OTHER = "other"


def step_into(step: Step, token: str) -> Step:
    """What lies under `token` in what the pointer has come to. A property may have the name of a keyword."""
    if step is not Step.SCHEMA:
        return Step.SCHEMA if step is Step.HOLDER else Step.OTHER
    if token in _LISTS or token in _MAPS or token == "dependencies":
        return Step.HOLDER
    return Step.SCHEMA if token in _ONE else Step.OTHER
