"""How texts of a schema may look, and how much a constraint may cost. Both are frozen and checked at construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from safegen.errors import RequestError

Whitespace = Literal["compact", "flexible"]
PropertyOrder = Literal["schema", "any"]
Spelling = Literal["canonical", "any"]
Formats = Literal["assert", "known", "annotation"]
_MOST = {"max_digits": 10_000, "max_exponent_digits": 6, "max_nesting": 60_000}
_MOST |= dict.fromkeys(("cache_bytes", "disk_cache_bytes"), 1 << 62)
_MOST_32_BITS = (1 << 32) - 2
_MOST_S = 1_000_000  # infinity is none


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """Which of the texts of one JSON value are legal.

    whitespace: "compact" allows none outside strings; "flexible" allows runs of at most `Limits.max_whitespace`.
    property_order: "schema" is first appearance in the schema, depth first, then required names that are not listed,
    then further keys; "any" leaves the order free.
    spelling: "canonical" gives listed names, const and enum values and integers one spelling; "any" allows all.
    formats: "assert" enforces `format` and refuses unknown ones, "known" takes unknown ones as annotations,
    "annotation" ignores the keyword.
    documents: further schemas by URI, which references may lead to.
    """

    whitespace: Whitespace = "compact"
    property_order: PropertyOrder = "schema"
    spelling: Spelling = "canonical"
    formats: Formats = "assert"
    documents: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        allowed = {"whitespace": Whitespace, "property_order": PropertyOrder, "spelling": Spelling, "formats": Formats}
        for name, choices in allowed.items():
            value = getattr(self, name)
            if value not in get_args(choices):
                known = ", ".join(repr(choice) for choice in get_args(choices))
                raise RequestError(f"{name}={value!r} is not one of {known}.", field=name, value=value)
        if not isinstance(self.documents, Mapping) or not all(isinstance(uri, str) for uri in self.documents):
            raise RequestError("documents must map URIs to schemas.", field="documents", value=self.documents)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of compilation and of the texts; passing one is a typed error that names it.

    compile_deadline_s: seconds one compilation may take.
    max_depth: levels of nesting in a schema, in its data and in a regex.
    max_inline_depth: schemas applied to one value inside each other (allOf in anyOf in $ref ...).
    max_schema_nodes: JSON values in a schema document.
    max_alternatives: alternatives of one type after anyOf, oneOf, not and conditions are multiplied out.
    max_pattern_chars: characters of one regex.
    max_count_product: product of counts nested in a regex, as 10,000 for (a{100}){100}.
    max_grammar_chars: characters of one grammar. max_productions: its productions, after empty ones and left recursion
    are rewritten.
    max_states: states of one automaton. max_fsm_states: states over bytes of a Regex(fsm=True).
    max_digits: digits of a number before the exponent. max_exponent_digits: digits of its exponent, enough to shift
    every digit across the point: 10**max_exponent_digits > 2 * max_digits + 2.
    max_whitespace: characters of one run of whitespace under whitespace="flexible".
    max_nesting: arrays and objects inside one another in an answer (what reads it has such a limit too: pydantic's is
    200, the validator's 256).
    cache_bytes: bytes of mask cache of one constraint.
    """

    compile_deadline_s: float = 8.0
    max_depth: int = 512
    max_inline_depth: int = 64
    max_schema_nodes: int = 1_000_000
    max_alternatives: int = 4096
    max_pattern_chars: int = 100_000
    max_count_product: int = 1_000_000
    max_grammar_chars: int = 1_000_000
    max_productions: int = 100_000
    max_states: int = 200_000
    max_fsm_states: int = 128
    max_digits: int = 64
    max_exponent_digits: int = 3
    max_whitespace: int = 40
    max_nesting: int = 128
    cache_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            wanted = (int, float) if limit.name.endswith("_deadline_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, wanted) or not value > 0:
                raise RequestError(f"{limit.name}={value!r} must be a positive number.", field=limit.name, value=value)
            most = _MOST.get(limit.name, _MOST_S if limit.name.endswith("_deadline_s") else _MOST_32_BITS)
            if value > most and value != math.inf:
                raise RequestError(f"{limit.name}={value!r} must be at most {most:,}.", field=limit.name, value=value)
        if 10**self.max_exponent_digits <= 2 * self.max_digits + 2:
            raise RequestError(
                f"max_exponent_digits={self.max_exponent_digits} are too few for max_digits={self.max_digits}: "
                "10**max_exponent_digits must be above 2 * max_digits + 2.",
                field="max_exponent_digits",
                value=self.max_exponent_digits,
            )
