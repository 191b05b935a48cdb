"""The drafts of JSON Schema: which keywords each knows, and its view in the words of 2020-12.

Everything behind this module speaks 2020-12. An older draft's schema object is shown as one (`view`): `items` lists
become `prefixItems`, boolean `exclusiveMinimum` becomes a number, `dependencies` splits in two, and words that the
draft does not know are left out, as its validators do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safegen.errors import SchemaError

MAX_COUNT = 2**31 - 1
COUNT_WORDS = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    )
)
_CORE = frozenset(
    (
        *("type", "enum", "properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "items", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("allOf", "anyOf", "oneOf", "not", "$ref", "definitions"),
    )
)
_DRAFT_6 = frozenset(("const", "contains", "propertyNames"))
_DRAFT_7 = frozenset(("if", "then", "else"))
_DRAFT_2019 = frozenset(
    (
        *("$defs", "$anchor", "$recursiveRef", "$recursiveAnchor", "dependentSchemas", "dependentRequired"),
        *("minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
    )
)
_DRAFT_2020 = frozenset(("prefixItems", "$dynamicRef", "$dynamicAnchor"))
_NAMES_AND_PLACES = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """id_keyword: names a resource. item_lists: `items` may be a list, with `additionalItems` for the rest.
    ref_siblings: keywords beside `$ref` count. boolean_bounds: exclusiveMinimum is a flag of minimum.
    integers_by_text: 1.0 is no integer, as it is written with a fraction. contains_evaluates: what it
    counts is no unevaluated item."""

    name: str
    keywords: frozenset[str]
    id_keyword: str = "$id"
    item_lists: bool = True
    ref_siblings: bool = False
    boolean_bounds: bool = False
    integers_by_text: bool = False
    contains_evaluates: bool = False
    constraining: frozenset[str] = field(init=False)  # keywords that may say something of a value

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraining", self.keywords - _NAMES_AND_PLACES)


DRAFT_4 = Dialect(
    "draft-04", _CORE | {"additionalItems", "dependencies", "id"}, "id", boolean_bounds=True, integers_by_text=True
)
DRAFT_6 = Dialect("draft-06", _CORE | _DRAFT_6 | {"additionalItems", "dependencies", "$id"})
DRAFT_7 = Dialect("draft-07", DRAFT_6.keywords | _DRAFT_7)
DRAFT_2019 = Dialect("2019-09", (DRAFT_7.keywords | _DRAFT_2019) - {"dependencies"}, ref_siblings=True)
DRAFT_2020 = Dialect(
    "2020-12",
    (DRAFT_2019.keywords | _DRAFT_2020) - {"additionalItems", "$recursiveRef", "$recursiveAnchor"},
    item_lists=False,
    ref_siblings=True,
    contains_evaluates=True,
)

_BY_URI = {
    "json-schema.org/draft-04/schema": DRAFT_4,
    "json-schema.org/draft-06/schema": DRAFT_6,
    "json-schema.org/draft-07/schema": DRAFT_7,
    "json-schema.org/draft/2019-09/schema": DRAFT_2019,
    "json-schema.org/draft/2020-12/schema": DRAFT_2020,
    "json-schema.org/schema": DRAFT_2020,
}


def dialect_of(schema: Mapping[str, Any], pointer: str, default: Dialect) -> Dialect:
    """The dialect that `$schema` names. Raises SchemaError for an unknown one."""
    uri = schema.get("$schema")
    if uri is None:
        return default
    known = _BY_URI.get(uri.removesuffix("#").partition("://")[2]) if isinstance(uri, str) else None
    if known is None:
        raise SchemaError(
            f"{uri!r} is no dialect known here",
            pointer=pointer,
            keyword="$schema",
            hint="Use draft 4, 6, 7, 2019-09 or 2020-12.",
        )
    return known


@dataclass(slots=True)
class View:
    """A schema object in the words of 2020-12. places: where a word really stands, relative to the object, when it
    has another name there."""

    keywords: Mapping[str, Any]
    places: Mapping[str, str]

    def place(self, keyword: str) -> str:
        return self.places.get(keyword, keyword)


_SAME_PLACE: dict[str, str] = {}


def view(schema: dict[str, Any], dialect: Dialect) -> View:
    """`schema`, whose keyword values have been checked, as 2020-12."""
    schema = _with_countable_counts(schema, dialect)
    if dialect is DRAFT_2020:
        return View(schema, _SAME_PLACE)
    if "$ref" in schema and not dialect.ref_siblings:
        return View({"$ref": schema["$ref"]}, _SAME_PLACE)
    words = {word: value for word, value in schema.items() if word in dialect.keywords}
    places: dict[str, str] = {}
    if isinstance(words.get("items"), list):
        words["prefixItems"], places["prefixItems"] = words.pop("items"), "items"
        if "additionalItems" in words:
            words["items"], places["items"] = words.pop("additionalItems"), "additionalItems"
    words.pop("additionalItems", None)
    if dialect.boolean_bounds:
        _number_bound(words, places, "minimum", "exclusiveMinimum")
        _number_bound(words, places, "maximum", "exclusiveMaximum")
    if "dependencies" in words:
        dependencies = words.pop("dependencies")
        words["dependentRequired"] = {name: need for name, need in dependencies.items() if isinstance(need, list)}
        words["dependentSchemas"] = {name: need for name, need in dependencies.items() if not isinstance(need, list)}
        places["dependentRequired"] = places["dependentSchemas"] = "dependencies"
    return View(words, places)


def _with_countable_counts(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Counts past MAX_COUNT as MAX_COUNT (the machine has 32 bits): no text that can be made shows the difference."""
    if COUNT_WORDS.isdisjoint(schema):
        return schema
    large = {word: MAX_COUNT for word in COUNT_WORDS & schema.keys() & dialect.keywords if schema[word] > MAX_COUNT}
    return {**schema, **large} if large else schema


def _number_bound(words: dict[str, Any], places: dict[str, str], bound: str, flag: str) -> None:
    if words.pop(flag, False) is True and bound in words:
        words[flag], places[flag] = words.pop(bound), bound
