"""`params=` and `**sampling` become one checked `SamplingParams`; what is not supported yet is refused by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from safegen.engine.request import SamplingParams
from safegen.errors import RequestError
from safegen.speculation import resolve

SAMPLING_NAMES = tuple(field.name for field in dataclasses.fields(SamplingParams))
TYPE_NAMES = ("output_type", "response_format", "response_model", "format", "schema", "json_schema", "regex", "choices")
CALL_NAMES = ("guards", "speculation", "show_schema", "cache_salt", "params")


def merge_sampling(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    """The parameters of one request: `params` with the named options on top.

    Raises RequestError for an unknown name (with the nearest known one) and for a value out of range.
    """
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError(
            f"params takes a SamplingParams, got {type(params).__name__}; write SamplingParams(temperature=0.7)",
            field="params",
            value=params,
        )
    for name, value in sampling.items():
        if name not in SAMPLING_NAMES:
            raise RequestError(_unknown_option(name), field=name, value=value)
    base = params if params is not None else SamplingParams()
    try:
        return dataclasses.replace(base, **sampling) if sampling else base
    except (TypeError, AttributeError) as error:
        raise RequestError(f"sampling options could not be read: {error}", value=dict(sampling)) from error


def check_options(guards: object, speculation: object) -> None:
    """Refuse what guards and speculation are not, at the door. Raises RequestError."""
    if has_guards(guards):
        from safegen.guards.guards import as_guards

        as_guards(guards)
    if speculation is not None:
        resolve(speculation)


def has_guards(guards: object) -> bool:
    return guards is not None and not (isinstance(guards, list | tuple) and not guards)


def _unknown_option(name: str) -> str:
    if name in TYPE_NAMES:
        return f"unknown option {name!r}; the output type is the second argument: generate(prompt, type)"
    near = difflib.get_close_matches(name, SAMPLING_NAMES + CALL_NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(SAMPLING_NAMES)}"
    return f"unknown option {name!r}{hint}"
