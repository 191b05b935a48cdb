"""Output types of every kind that this version serves, each with a judge that shares no code with safegen.

A judge is given the finished text and raises ValueError (or a subclass) when it is no answer of the type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, time
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import jsonschema

from safegen.types import Choice, JsonSchema, Regex

Judge = Callable[[str], None]

_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value", "kids"],
            "additionalProperties": False,
        }
    },
}
_LIST = {
    "$ref": "#/$defs/cell",
    "$defs": {
        "cell": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"head": {"enum": ["a", "é", 1]}, "tail": {"$ref": "#/$defs/cell"}},
                    "required": ["head", "tail"],
                    "additionalProperties": False,
                },
            ]
        }
    },
}
_EXPRESSION = {
    "$ref": "#/$defs/e",
    "$defs": {
        "e": {
            "anyOf": [
                {"type": "number", "minimum": -5, "maximum": 5},
                {"type": "array", "prefixItems": [{"enum": ["+", "×"]}, {"$ref": "#/$defs/e"}, {"$ref": "#/$defs/e"}],
                 "items": False, "minItems": 3},
            ]
        }
    },
}  # fmt: skip


def _closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: list[Any] = [
    True,
    {"type": "object"},
    {"type": "array"},
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": ["boolean", "null", "string"], "maxLength": 4},
    {"type": "integer", "minimum": -12, "exclusiveMaximum": 345},
    {"type": "integer", "minimum": 10**20, "maximum": 10**20 + 7},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "number", "minimum": -1.5, "maximum": -1.25},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$", "maxLength": 12},
    {"type": "string", "pattern": "[éü日]", "minLength": 2, "maxLength": 6},
    {"type": "string", "pattern": '^["\\\\/\n]{1,5}$'},
    {"type": "string", "pattern": "^(ab|ba)+$", "minLength": 6, "maxLength": 8},
    *({"type": "string", "format": name} for name in
      ("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri")),
    {"enum": ["red", "grün", "日本", "😀", "a\"b\\c\n", "", 7, -1.5, None, True, ["x", {"y": []}]]},
    {"const": {"a": [1, "é", {"b": None}], "": "\u0001"}},
    {"enum": [{"k": number, "name": f"n{number}"} for number in range(30)]},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}, {"type": "array", "maxItems": 1}]},
    {"anyOf": [_closed(kind={"const": "circle"}, radius={"type": "number", "minimum": 0}),
               _closed(kind={"const": "square"}, side={"type": "integer", "minimum": 1, "maximum": 9})]},
    {"allOf": [{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
               {"properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"]}]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3, "maxItems": 5},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 2}, {"const": "é"}],
     "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "array", "items": {"type": "boolean"}}},
    {"type": "array", "items": {"type": "array", "items": {"type": "array", "maxItems": 2}, "maxItems": 2}},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    {"type": "object", "properties": {"known": {"type": "boolean"}}, "required": ["known", "extra"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": False, "c": True}, "required": ["a"]},
    _closed(**{"ключ": {"type": "boolean"}, "a\"b": {"type": "null"}, "tab\t": {"const": 1}, "😀": {"const": "x"}}),
    _closed(**{f"k{number}": {"type": "boolean"} for number in range(40)}),
    {"type": "object", "properties": {f"o{number}": {"type": "null"} for number in range(20)},
     "additionalProperties": False},
    _closed(a=_closed(b=_closed(c=_closed(d={"type": "array", "items": _closed(e={"enum": [1, 2]}), "maxItems": 2})))),
    _closed(name={"type": "string", "maxLength": 20}, born={"type": "string", "format": "date"},
            tags={"type": "array", "items": {"enum": ["new", "é"]}, "maxItems": 3}),
    _TREE,
    _LIST,
    _EXPRESSION,
]  # fmt: skip

REGEXES = [
    "[0-9]{3}-[0-9]{4}", "(?:ab|cd)*e", "[^a]{2,5}", "é+|日本{1,3}", "[\\u{1F600}-\\u{1F64F}]{1,4}",
    "a{0,3}b?[^\\n]{1,9}",
]  # fmt: skip
CHOICES = [["yes", "no"], ["a", "ab", "abc", "é", "😀 ok", "new\nline"], [f"label {number}" for number in range(200)]]


def _format_checker() -> jsonschema.FormatChecker:
    """jsonschema's own, with those formats that it checks only when further packages are installed."""
    checker = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
    clock = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)", re.ASCII)

    @checker.checks("time", raises=ValueError)
    def is_time(value: object) -> bool:
        return not isinstance(value, str) or (
            clock.fullmatch(value) is not None and time.fromisoformat(_readable(value)) is not None
        )

    @checker.checks("date-time", raises=ValueError)
    def is_date_time(value: object) -> bool:
        return not isinstance(value, str) or (
            clock.fullmatch(value[11:]) is not None
            and value[10] in "tT"
            and datetime.fromisoformat(_readable(value)) is not None
        )

    @checker.checks("uri", raises=ValueError)
    def is_uri(value: object) -> bool:
        return not isinstance(value, str) or (
            re.fullmatch(r"[!#-;=?-\[\]_a-z~%A-Z]+", value) is not None
            and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value) is not None
            and urlsplit(value) is not None
        )

    return checker


def _readable(moment: str) -> str:
    """What Python's fromisoformat reads: a leap second and more than six digits of a fraction are valid but not read,
    and so is the year 0."""
    moment = re.sub(r":60(?=[.zZ+-])", ":59", moment.upper())
    moment = re.sub(r"^0000", "0004", moment)
    return re.sub(r"(\.\d{1,6})\d*", lambda match: match[1].ljust(7, "0"), moment)


def judge_of(spec: Any) -> Judge:
    if isinstance(spec, Regex):
        return _regex_judge(re.compile(re.sub(r"\\u\{(\w+)\}", lambda code: chr(int(code[1], 16)), spec.pattern)))
    if isinstance(spec, Choice):
        return _regex_judge(re.compile("|".join(re.escape(label) for label in spec.labels)))
    validator = jsonschema.Draft202012Validator(spec.schema, format_checker=_format_checker())

    def judge(text: str) -> None:
        document = json.loads(text, parse_float=Decimal, object_pairs_hook=_unique)
        error = jsonschema.exceptions.best_match(validator.iter_errors(document))
        if error is not None:
            raise ValueError(str(error))

    return judge


def _regex_judge(pattern: re.Pattern[str]) -> Judge:
    def judge(text: str) -> None:
        if pattern.fullmatch(text) is None:
            raise ValueError(f"{text!r} does not match {pattern.pattern!r}")

    return judge


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice")
    return document


OUTPUT_TYPES: list[JsonSchema | Regex | Choice] = [
    *map(JsonSchema, SCHEMAS),
    *map(Regex, REGEXES),
    *map(Choice, CHOICES),
]
