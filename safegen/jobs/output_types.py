"""The output type of a row: the job's own, one of a `schema` column, or what a function of the row says.

Types of rows are compiled once each (the LLM's cache of types keeps the most recent), and schemas that are written
alike are the same type. A row whose type cannot be served is refused alone.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from safegen.errors import RequestError, RowError
from safegen.jobs.keys import describe_function
from safegen.jobs.rows import plain
from safegen.output_type import OutputType
from safegen.tools import Tools
from safegen.types import Grammar, JsonSchema, Think

_MAX_KEPT = 256

TypeOf = Callable[[Mapping[str, Any]], Any]


class RowTypes:
    """job_type: compiled, of every row whose own is not given. column: holds schemas, as objects or JSON text."""

    def __init__(self, job_type: OutputType[Any], column: str | None, type_of: TypeOf | None) -> None:
        if column is not None and type_of is not None:
            raise RequestError("schema_column and type_of both say a row's type; pass one", field="type_of")
        if type_of is not None and not callable(type_of):
            raise RequestError(f"type_of is a function of the row, got {type_of!r:.80}", field="type_of", value=type_of)
        self._job_type = job_type
        self._column = column
        self._type_of = type_of
        self._schemas: OrderedDict[str, JsonSchema] = OrderedDict()

    def of(self, columns: Mapping[str, Any]) -> Any:
        """Raises SchemaError or RequestError for a row whose type is none."""
        if self._type_of is not None:
            return self._called(self._type_of, columns)
        if self._column is None:
            return self._job_type
        given = columns.get(self._column)
        if given is None or given == "":
            return self._job_type
        return self.schema(given)

    def schema(self, given: Any) -> JsonSchema:
        """The type of a schema. Made once for each text, so that it is known again."""
        text = given if isinstance(given, str) else json.dumps(given, default=plain)
        kept = self._schemas.get(text)
        if kept is None:
            kept = self._schemas[text] = JsonSchema(text)
            if len(self._schemas) > _MAX_KEPT:
                self._schemas.popitem(last=False)
        return kept

    def _called(self, type_of: TypeOf, columns: Mapping[str, Any]) -> Any:
        try:
            found = type_of(columns)
        except Exception as error:  # the caller's own code, on one row
            raise RowError(f"type_of raised {type(error).__name__}: {error}", field="type_of") from error
        return self._job_type if found is None else found

    def describe(self, spec: Any) -> dict[str, Any]:
        """All of it as data. spec: the job's own type as it was given."""
        return {
            "type": describe_type(spec, self._job_type),
            "schema_column": self._column,
            "type_of": None if self._type_of is None else describe_function(self._type_of),
        }


def describe_type(spec: Any, compiled: OutputType[Any]) -> Any:
    """What tells one output type from another: what is enforced, what is shown, and the name of a Python type, whose
    own validators are its source's business."""
    described: dict[str, Any] = {
        "kind": compiled.kind,
        "inner": compiled.inner_kind,
        "shown": compiled.shown,
        "schema": compiled.schema_text,
        "labels": compiled.labels,
        "probabilities": compiled.probabilities,
    }
    if compiled.template_tools is not None:
        described["tools"] = compiled.template_tools.tools
    if isinstance(spec, type):
        described["python"] = f"{spec.__module__}.{spec.__qualname__}"
    described["settings"] = _settings(spec)
    return described


def _settings(spec: Any) -> Any:
    """What a description says beside its text."""
    if isinstance(spec, Think):
        return [spec.start, spec.end, spec.max_tokens, _settings(spec.inner)]
    if isinstance(spec, Grammar):
        return [spec.start, spec.tree]
    if isinstance(spec, Tools):
        return [spec.allow_text, spec.min_calls, spec.max_calls, repr(spec.format), spec.whitespace]
    return repr(spec.options) if isinstance(spec, JsonSchema) else None
