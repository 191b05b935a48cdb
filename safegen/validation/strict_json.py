"""Strict JSON: RFC 8259 text in, exact values out.

Refused with `JsonSyntaxError`: invalid UTF-8, a byte order mark, a key twice in one object (keys compared decoded),
`NaN` and `Infinity`, raw control characters, lone surrogates, trailing text, nesting beyond `max_depth`. Numbers are
exact (`decimals`). The grammar itself is that of the standard library's scanner; depth is bounded before it runs, so
that its recursion is bounded too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from safegen.errors import SchemaError
from safegen.validation.decimals import Number, NumberRangeError, from_python, parse_number
from safegen.validation.outcome import JsonSyntaxError, json_pointer

MAX_DEPTH = 256
MAX_NODES = 400_000

# Strings are skipped whole; both alternatives start with different characters, so the scan is linear.
_BRACKET_OR_STRING = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_strict(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text. Integers are int, other numbers Decimal (see decimals)."""
    decoded = _decoded(text)
    if _depth_exceeds(decoded, max_depth):
        raise JsonSyntaxError(f"arrays and objects are nested more than {max_depth} deep")
    try:
        value = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(f"not JSON: {error.msg} at character {error.pos}") from None
    except NumberRangeError as error:
        raise JsonSyntaxError(str(error)) from None
    except RecursionError:
        raise JsonSyntaxError("arrays and objects are nested too deep for the interpreter's stack") from None
    if _SURROGATE_ESCAPE.search(decoded):
        _refuse_surrogates(value)
    return value


def _decoded(text: str | bytes) -> str:
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JsonSyntaxError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    elif lone := _SURROGATE.search(text):
        raise JsonSyntaxError(f"lone surrogate at character {lone.start()}")
    if text.startswith("\ufeff"):
        raise JsonSyntaxError("a byte order mark is not JSON")
    return text


def _depth_exceeds(text: str, max_depth: int) -> bool:
    if text.count("[") + text.count("{") <= max_depth:
        return False
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > max_depth:
                return True
        elif token in "]}":
            depth -= 1
    return False


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonSyntaxError(f"the key {key[:80]!r} occurs twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Any:
    raise JsonSyntaxError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_of, parse_float=parse_number, parse_int=parse_number, parse_constant=_refuse_constant
)


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """(pointer, string) of every string and key, without recursion."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, str):
            yield json_pointer(path), node
        elif isinstance(node, list):
            stack.extend(((*path, index), item) for index, item in enumerate(node))
        elif isinstance(node, dict):
            for key, item in node.items():
                yield json_pointer(path), key
                stack.append(((*path, key), item))


def _refuse_surrogates(value: Any) -> None:
    for pointer, string in _strings(value):
        if _SURROGATE.search(string):
            raise JsonSyntaxError("a string holds a lone surrogate", instance_pointer=pointer)


def exact_copy(schema: Any, *, max_depth: int = MAX_DEPTH) -> Any:
    """A Python value as strict JSON with exact numbers: floats by their shortest decimal, tuples as arrays.

    Always a tree: a part used twice is copied twice. Raises SchemaError, with its pointer, at what is not JSON.
    """
    return _ExactCopy().copy(schema, (), max_depth)


class _ExactCopy:
    """One copy in progress; counts nodes, so that shared parts cannot unfold without bound."""

    def __init__(self) -> None:
        self.nodes_left = MAX_NODES

    def copy(self, node: Any, path: tuple[str | int, ...], room: int) -> Any:
        self.nodes_left -= 1
        if room < 0 or self.nodes_left < 0:
            limit = "nested too deep" if room < 0 else f"more than {MAX_NODES} values"
            raise SchemaError(limit, pointer=json_pointer(path[:8]), hint="use $ref, or make the schema smaller")
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, str):
            return _checked_string(node, path)
        if isinstance(node, int | float | Decimal):
            return _checked_number(node, path)
        if isinstance(node, list | tuple):
            return [self.copy(item, (*path, index), room - 1) for index, item in enumerate(node)]
        if isinstance(node, dict):
            return {_checked_key(key, path): self.copy(item, (*path, key), room - 1) for key, item in node.items()}
        raise SchemaError(f"a {type(node).__name__} is not a JSON value", pointer=json_pointer(path))


def _checked_number(number: int | float | Decimal, path: tuple[str | int, ...]) -> Number:
    try:
        return from_python(number)
    except ValueError as error:
        raise SchemaError(str(error), pointer=json_pointer(path)) from None


def _checked_key(key: Any, path: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        raise SchemaError(f"the key {key!r} is not a string", pointer=json_pointer(path))
    return _checked_string(key, path)


def _checked_string(string: str, path: tuple[str | int, ...]) -> str:
    if not string.isascii() and _SURROGATE.search(string):
        raise SchemaError("a string holds a lone surrogate", pointer=json_pointer(path))
    return str.__str__(string)  # a subclass (a string enum) becomes a plain string
