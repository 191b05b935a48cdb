"""Schema documents to exact values: numbers as int or Decimal, nothing that JSON cannot hold, bounded depth.

A str is parsed as JSON text, where a key written twice is an error. A dict is copied: floats are taken by their
shortest decimal form, and keys that are no str, values that JSON does not know, NaN and infinities are errors.
Neither path recurses in Python, so neither depth nor a dict that contains itself can overflow anything.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

from safegen.errors import SchemaError
from safegen.grammars.options import Limits

JsonValue = None | bool | int | Decimal | str | list["JsonValue"] | dict[str, "JsonValue"]

# Numbers beyond this many digits (written out in full) are refused: nothing could spell them.
MAX_SCHEMA_DIGITS = 4_000
_SMALL = 1 << 63
_MAX_INTEGER_BITS = 13_290  # 10**4000 and a little


def escape_token(token: str) -> str:
    """One reference token of a JSON Pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


def load_schema(schema: object, limits: Limits) -> dict[str, Any] | bool:
    """The document as exact values. Raises SchemaError."""
    if isinstance(schema, str):
        schema = _parse(schema)
    if not isinstance(schema, (dict, bool)):
        raise SchemaError(
            f"a schema is an object or a boolean, not {type(schema).__name__}",
            hint="Pass a dict, True, False or JSON text.",
        )
    loaded: JsonValue = _plain_copy(schema, limits) if schema.__class__ is dict else None
    if loaded is None:
        loaded = _copy(schema, limits)
    assert isinstance(loaded, (dict, bool))
    return loaded


def _parse(text: str) -> object:
    try:
        return json.loads(
            text,
            parse_float=_parse_float,
            parse_int=_parse_int,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_pairs,
        )
    except json.JSONDecodeError as error:
        raise SchemaError(f"the schema text is no JSON: {error}") from None
    except RecursionError:
        raise SchemaError("the schema text nests too deeply", hint="Raise no limit; flatten the schema.") from None


def _parse_int(digits: str) -> int:
    if len(digits) > 4_000:
        raise SchemaError(f"a number of {len(digits):,} digits is beyond every limit")
    return int(digits)


def _parse_float(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that Decimal cannot hold
        raise SchemaError(f"the number {text[:40]} is beyond every limit") from None


def _refuse_constant(name: str) -> object:
    raise SchemaError(f"{name} is no JSON number")


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise SchemaError(f"the key {twice!r} is written twice in one object of the schema text")
    return members


def _plain_copy(root: dict[str, Any], limits: Limits) -> dict[str, JsonValue] | None:
    """The copy of a document with nothing to change or to refuse; None for any other, which `_copy` looks into."""
    top = root.copy()
    stack: list[tuple[Any, int]] = [(top, 1)]
    nodes = 1
    while stack:
        target, depth = stack.pop()
        nodes += len(target)
        if depth > limits.max_depth or nodes > limits.max_schema_nodes:
            return None
        is_dict = target.__class__ is dict
        for key, value in target.items() if is_dict else enumerate(target):
            if is_dict and key.__class__ is not str:
                return None
            kind = value.__class__
            if kind is dict or kind is list:
                copied = target[key] = value.copy()
                stack.append((copied, depth + 1))
            elif not (kind is str or kind is bool or value is None or (kind is int and -_SMALL < value < _SMALL)):
                return None
    return top


def _copy(root: object, limits: Limits) -> JsonValue:
    """Copy with an explicit stack of (source, target, depth, pointer)."""
    top: list[JsonValue] = [None]
    stack: list[tuple[Any, Any, int, str]] = [([root], top, 0, "")]
    nodes = 0
    while stack:
        source, target, depth, pointer = stack.pop()
        if depth > limits.max_depth:
            raise SchemaError(
                f"the schema nests more than {limits.max_depth:,} levels deep (max_depth), or contains itself",
                pointer=pointer[:200],
            )
        items = source.items() if isinstance(source, dict) else enumerate(source)
        nodes += len(source)
        if nodes > limits.max_schema_nodes:
            raise SchemaError(f"the schema holds more than {limits.max_schema_nodes:,} values (max_schema_nodes)")
        for key, value in items:
            if isinstance(value, (dict, list, tuple)):
                inner = pointer if target is top else f"{pointer}/{escape_token(str(key))}"
                copied: JsonValue = {} if isinstance(value, dict) else [None] * len(value)
                stack.append((value, copied, depth + 1, inner))
            elif (
                value is None or value.__class__ in (str, bool) or (value.__class__ is int and -_SMALL < value < _SMALL)
            ):
                copied = value
            else:
                copied = _scalar(value, f"{pointer}/{key}")
            if isinstance(source, dict) and not isinstance(key, str):
                raise SchemaError(f"the key {key!r} is {type(key).__name__}, not str", pointer=pointer)
            target[key] = copied
    return top[0]


def _scalar(value: object, pointer: str) -> JsonValue:
    if isinstance(value, (str, bool)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise SchemaError("an integer of more than 4,000 digits is beyond every limit", pointer=pointer)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SchemaError(f"{value!r} is no JSON number", pointer=pointer)
        value = Decimal(repr(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise SchemaError(f"{value} is no JSON number", pointer=pointer)
        if abs(value.adjusted()) > MAX_SCHEMA_DIGITS or len(value.as_tuple().digits) > MAX_SCHEMA_DIGITS:
            raise SchemaError(f"a number of over {MAX_SCHEMA_DIGITS:,} digits is beyond every limit", pointer=pointer)
        return int(value) if value == value.to_integral_value() and value.adjusted() < 400 else value
    raise SchemaError(f"a {type(value).__name__} is no JSON value", pointer=pointer)
