"""Names the keyword of a refusal that knows its place only: a limit was passed somewhere in working a schema out."""

from __future__ import annotations

from typing import Any

from safegen.errors import SchemaError, UnsatisfiableSchema
from safegen.grammars.json_schema.keyword_syntax import CHECKS

# What most likely made a place large, first.
_LIKELY = (
    *("pattern", "patternProperties", "propertyNames", "format", "oneOf", "allOf", "anyOf", "not", "if"),
    *("dependentSchemas", "dependencies", "multipleOf", "uniqueItems", "contains", "maxLength", "enum", "const"),
    *("unevaluatedProperties", "unevaluatedItems", "properties", "items", "prefixItems", "$ref", "$dynamicRef", "type"),
)


def named(error: SchemaError, root: Any, worked_on: str) -> SchemaError:
    """The error with a pointer and a keyword. worked_on: the place that was lowered when it came up.

    An unsatisfiable schema has no one keyword to blame.
    """
    if error.keyword is not None or isinstance(error, UnsatisfiableSchema):
        return error
    for place in (error.pointer, worked_on, ""):
        found = _keyword_at(root, place)
        if found is not None:
            return SchemaError(error.reason, pointer=found[0], keyword=found[1], hint=error.hint)
    return error


def _keyword_at(root: Any, place: str) -> tuple[str, str] | None:
    """(pointer of a schema object, keyword in it) at a place in the document, or above it when it lies in a keyword."""
    path: list[tuple[str, Any]] = [("", root)]
    for raw in place.split("/")[1:]:
        pointer, current = path[-1]
        token = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(current, list) and token.isdecimal() and int(token[:9]) < len(current):
            path.append((f"{pointer}/{raw}", current[int(token)]))
        elif isinstance(current, dict) and token in current:
            path.append((f"{pointer}/{raw}", current[token]))
        else:
            return None
    pointer, value = path[-1]
    own = next((word for word in _LIKELY if isinstance(value, dict) and word in value), None)
    if own is not None:
        return pointer, own
    for (outer, holder), (inner, _) in reversed([*zip(path, path[1:])]):
        word = inner.rpartition("/")[2]
        if isinstance(holder, dict) and word in CHECKS:
            return outer, word
    return None
