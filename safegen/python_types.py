"""Python types as JSON Schemas: pydantic's own schema, made exact and closed.

`pydantic.TypeAdapter` says which types there are and is the last judge of a value. Its JSON Schema is changed here
where it is looser than what its validator accepts, or says something a decoder cannot use:

- objects with declared fields are closed (`additionalProperties: false`) unless the type itself allows extra keys;
- a tagged union is `anyOf` (its members exclude each other by their tag), the OpenAPI `discriminator` is dropped;
- a dict with listed keys has properties, one with int keys a pattern for them;
- `Decimal` is a JSON number; sets lose `uniqueItems` (pydantic merges equal items);
- formats that only describe ("password", "binary", "path") are dropped, those with a small language ("duration",
  "base64", "base64url", "ipvanyaddress", ...) become patterns.

What remains looser (custom validators, `HttpUrl`'s host rules) is caught by the validator: status "invalid".
"""

from __future__ import annotations

from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaError as CoreSchemaError

from safegen.errors import SchemaError

_DROPPED_FORMATS = frozenset(
    {"password", "binary", "path", "file-path", "directory-path", "json-string", "multi-host-uri"}
)
_COUNT = "[0-9]{1,6}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_INTEGER_KEY = "^(?:0|-?[1-9][0-9]*)$"
_FORMAT_PATTERNS = {
    "duration": f"^-?P(?:{_COUNT}D|(?:{_COUNT}D)?T(?:{_COUNT}H|(?:{_COUNT}H)?(?:{_COUNT}M|(?:{_COUNT}M)?{_COUNT}S)))$",
    "base64": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
    "base64url": "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?$",
    "ipv4network": f"^{_OCTET}(?:\\.{_OCTET}){{3}}/(?:3[0-2]|[12]?[0-9])$",
    "ipv4interface": f"^{_OCTET}(?:\\.{_OCTET}){{3}}/(?:3[0-2]|[12]?[0-9])$",
    "color": "^#[0-9a-fA-F]{6}$",
}
_REPLACED_FORMATS: dict[str, dict[str, Any]] = {
    "ipvanyaddress": {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]},
    "uuid1": {"type": "string", "format": "uuid"},
    "uuid3": {"type": "string", "format": "uuid"},
    "uuid4": {"type": "string", "format": "uuid", "pattern": "^.{14}4.{4}[89abAB]"},
    "uuid5": {"type": "string", "format": "uuid"},
    "name-email": {"type": "string", "format": "email"},
}
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties")
_SCHEMAS = ("items", "additionalProperties", "propertyNames", "not", "contains")


class _DecoderSchema(GenerateJsonSchema):
    """Where pydantic's core schema knows more than the JSON Schema shows."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """A default that JSON cannot show does not matter here: defaults are annotations."""

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "number", **_number_bounds(schema)}

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        if schema.get("keys_schema", {}).get("type") == "int":
            values = made.pop("additionalProperties", True)
            made = {**made, "patternProperties": {_INTEGER_KEY: values}}
        return made

    def set_schema(self, schema: Any) -> JsonSchemaValue:
        return _without(super().set_schema(schema), "uniqueItems")

    def frozenset_schema(self, schema: Any) -> JsonSchemaValue:
        return _without(super().frozenset_schema(schema), "uniqueItems")


def json_schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The closed JSON Schema of an adapter's type. Raises SchemaError when the type has none."""
    try:
        schema = adapter.json_schema(mode="validation", schema_generator=_DecoderSchema)
    except PydanticInvalidForJsonSchema as error:
        raise SchemaError(f"the type has no JSON form: {error.message}", hint="use types that JSON can hold") from error
    except (PydanticUserError, PydanticSchemaGenerationError, ValueError, RecursionError) as error:
        raise SchemaError(f"the type has no JSON Schema: {_first_line(error)}") from error
    for node in _positions(schema):
        _make_exact(node)
    return schema


def adapter_of(python_type: Any) -> TypeAdapter[Any]:
    """A TypeAdapter, or SchemaError with pydantic's reason."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(python_type)
        adapter.rebuild(raise_errors=True)
    except PydanticSchemaGenerationError as error:
        raise SchemaError(
            f"{python_type!r} is no output type: {_first_line(error)}",
            hint="pass a pydantic model, a dataclass, a typing construct, JsonSchema(...), Regex(...) or Choice([...])",
        ) from error
    except (PydanticUserError, CoreSchemaError, NameError, TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"{python_type!r} is no output type: {_first_line(error)}") from error
    return adapter


def _positions(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Every schema position, children first; data inside const, enum, default and examples is no schema."""
    pending: list[Any] = [schema]
    found: list[dict[str, Any]] = []
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            continue
        found.append(node)
        for name in _LISTS_OF_SCHEMAS:
            pending.extend(node.get(name, ()))
        for name in _MAPS_OF_SCHEMAS:
            pending.extend(node.get(name, {}).values())
        pending.extend(node[name] for name in _SCHEMAS if name in node)
    return found[::-1]


def _make_exact(node: dict[str, Any]) -> None:
    if "discriminator" in node and "oneOf" in node:
        node["anyOf"] = node.pop("oneOf")
    node.pop("discriminator", None)
    if set(node.get("propertyNames", ())) == {"enum"} and "properties" not in node:
        values = node.pop("additionalProperties", True)
        node["properties"] = dict.fromkeys(node.pop("propertyNames")["enum"], values)
    if ("properties" in node or "patternProperties" in node) and "additionalProperties" not in node:
        node["additionalProperties"] = False
    form = node.get("format")
    if form in _DROPPED_FORMATS or form in _FORMAT_PATTERNS or form in _REPLACED_FORMATS:
        del node["format"]
    if form in _FORMAT_PATTERNS and "pattern" not in node:
        node["pattern"] = _FORMAT_PATTERNS[form]
    if form in _REPLACED_FORMATS:
        node.update(_REPLACED_FORMATS[form])


def _number_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    bounds = {keyword: _json_number(schema[name]) for name, keyword in names.items() if name in schema}
    if "multiple_of" in schema:
        bounds["multipleOf"] = _json_number(schema["multiple_of"])
    return bounds


def _json_number(value: Any) -> int | float:
    return int(value) if value == int(value) else float(value)


def _without(schema: JsonSchemaValue, keyword: str) -> JsonSchemaValue:
    return {name: value for name, value in schema.items() if name != keyword}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
