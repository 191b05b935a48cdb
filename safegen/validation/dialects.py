"""The drafts of JSON Schema: for each its keywords, its metaschema and how references work in it.

The keyword functions are those of `jsonschema`, except where `keywords` and `unevaluated` have an exact one. A
`$schema` that names none of these drafts is refused: what its keywords mean is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jsonschema
import jsonschema_specifications  # type: ignore[import-untyped]
import referencing.jsonschema as specifications

from safegen.errors import SchemaError
from safegen.validation import keywords as own
from safegen.validation.keywords import Keyword
from safegen.validation.unevaluated import unevaluated_items, unevaluated_properties

METASCHEMAS: Any = jsonschema_specifications.REGISTRY  # referencing.Registry of every draft's metaschema

_OWN_KEYWORDS: dict[str, Keyword] = {
    "$dynamicRef": own.dynamic_ref,
    "$recursiveRef": own.recursive_ref,
    "$ref": own.ref,
    "additionalItems": own.additional_items,
    "additionalProperties": own.additional_properties,
    "anyOf": own.any_of,
    "const": own.const,
    "contains": own.contains,
    "enum": own.enum,
    "exclusiveMaximum": own.exclusive_maximum,
    "exclusiveMinimum": own.exclusive_minimum,
    "format": own.format_,
    "if": own.if_,
    "maximum": own.maximum,
    "minimum": own.minimum,
    "multipleOf": own.multiple_of,
    "not": own.not_,
    "oneOf": own.one_of,
    "pattern": own.pattern,
    "patternProperties": own.pattern_properties,
    "propertyNames": own.property_names,
    "type": own.type_,
    "unevaluatedItems": unevaluated_items,
    "unevaluatedProperties": unevaluated_properties,
    "uniqueItems": own.unique_items,
}
_DRAFT_4 = {"maximum": own.maximum_draft4, "minimum": own.minimum_draft4}
_DRAFT_6_7 = {"contains": own.contains_one}


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One draft. ref_hides_siblings: `$ref` silences the keywords beside it (up to draft 7). integers_by_text: `1.0` is
    no integer, as it is written with a fraction (draft 4)."""

    uri: str
    keywords: Mapping[str, Keyword]
    meta_schema: dict[str, Any]
    specification: Any  # referencing.Specification
    ref_hides_siblings: bool
    integers_by_text: bool

    def applicable(self, schema: dict[str, Any]) -> Any:
        """(keyword, value) pairs that count in a schema."""
        if self.ref_hides_siblings and "$ref" in schema:
            return (("$ref", schema["$ref"]),)
        return schema.items()


def _dialect(
    validator: Any, specification: Any, changes: Mapping[str, Keyword], *, ref_hides_siblings: bool
) -> Dialect:
    stock: dict[str, Keyword] = dict(validator.VALIDATORS)
    overridden = {name: check for name, check in _OWN_KEYWORDS.items() if name in stock}
    meta_schema = validator.META_SCHEMA
    uri = str(meta_schema.get("$id") or meta_schema["id"]).rstrip("#")
    checks = MappingProxyType({**stock, **overridden, **changes})
    return Dialect(uri, checks, meta_schema, specification, ref_hides_siblings, validator is jsonschema.Draft4Validator)


DRAFT_2020_12 = _dialect(jsonschema.Draft202012Validator, specifications.DRAFT202012, {}, ref_hides_siblings=False)
_ALL = (
    DRAFT_2020_12,
    _dialect(jsonschema.Draft201909Validator, specifications.DRAFT201909, {}, ref_hides_siblings=False),
    _dialect(jsonschema.Draft7Validator, specifications.DRAFT7, _DRAFT_6_7, ref_hides_siblings=True),
    _dialect(jsonschema.Draft6Validator, specifications.DRAFT6, _DRAFT_6_7, ref_hides_siblings=True),
    _dialect(jsonschema.Draft4Validator, specifications.DRAFT4, _DRAFT_4, ref_hides_siblings=True),
)
_BY_URI = {dialect.uri.partition("://")[2]: dialect for dialect in _ALL}
_BY_URI["json-schema.org/schema"] = DRAFT_2020_12  # "the latest draft"


def dialect_of(schema: Any, default: Dialect = DRAFT_2020_12) -> Dialect:
    """The draft that a schema's own `$schema` names, or the default when it has none."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if uri is None:
        return default
    scheme, _, rest = uri.rstrip("#").partition("://") if isinstance(uri, str) else ("", "", "")
    if scheme not in ("http", "https") or rest not in _BY_URI:
        raise SchemaError(
            f"the dialect {uri!r} is not known",
            pointer="/$schema",
            keyword="$schema",
            hint="drafts 4, 6, 7, 2019-09 and 2020-12 are; leave $schema out for 2020-12",
        )
    return _BY_URI[rest]
