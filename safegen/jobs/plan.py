"""From a row to a call: its key, its id, its prompt, its type and its seed. Nothing here waits or computes answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from safegen.engine.request import SamplingParams
from safegen.errors import GrammarError, RequestError, RowError, SchemaError
from safegen.jobs.keys import row_seed
from safegen.jobs.openai_rows import openai_call
from safegen.jobs.output_types import RowTypes
from safegen.jobs.prompts import make_prompt
from safegen.jobs.rows import Row, plain
from safegen.prompt import Prompt
from safegen.result import Result, failed
from safegen.runtime import CallOptions, Runtime, Work

_ID_COLUMNS = ("id", "custom_id")


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """number: of the row in the input. id: its own, or its key. failure: why there is no call, else None."""

    number: int
    key: str
    id: Any
    prompt: Prompt = ""
    spec: Any = None
    call: CallOptions | None = None
    failure: Exception | None = None

    @property
    def prompt_text(self) -> str:
        """What is compared to find rows whose prompts begin alike."""
        if isinstance(self.prompt, str):
            return self.prompt
        try:
            return "\n".join(str(message["content"]) for message in self.prompt)
        except (TypeError, KeyError):  # no messages: the row will be refused
            return ""

    def work(self, runtime: Runtime) -> Work:
        if self.failure is not None or self.call is None:
            return _refused(self.failure)
        return runtime.row((self.prompt, self.spec), None, self.call)


def _refused(failure: Exception | None) -> Work:
    yield from ()  # a work is a generator
    return failed("refused", failure if failure is not None else RowError("the row has no call"))


class PlansRows(Protocol):
    """What turns rows into calls. Never raises for what is wrong with a row."""

    def plan(self, row: Row, key: str) -> PlannedRow: ...


class RowPlanner(PlansRows, Protocol):
    """What also turns results into records, for a job whose rows are not the SDK's own. A record has all keys of
    `record_of`'s."""

    def record(self, planned: PlannedRow, result: Result[Any]) -> dict[str, Any]: ...


class Planner:
    """params: of every row but for its seed. call: the other options of every row."""

    def __init__(
        self,
        types: RowTypes,
        prompt: Any,
        params: SamplingParams,
        call: CallOptions,
        *,
        job_seed: int,
        id_column: str | None,
        is_openai: bool,
    ) -> None:
        self._types = types
        self._make_prompt = make_prompt(prompt)
        self._params = params
        self._call = call
        self._job_seed = job_seed
        self._id_columns = _ID_COLUMNS if id_column is None else (id_column,)
        self._is_openai = is_openai

    def plan(self, row: Row, key: str) -> PlannedRow:
        """Never raises for what is wrong with a row."""
        row_id = self._id(row.columns, key)
        if row.error is not None:
            return PlannedRow(row.number, key, row_id, failure=row.error)
        try:
            if self._is_openai:
                return self._openai(row, key, row_id)
            prompt = self._make_prompt(row.columns)
            spec = self._types.of(row.columns)
        except (RequestError, SchemaError, GrammarError) as error:
            return PlannedRow(row.number, key, row_id, failure=error)
        except ValueError as error:  # messages in a column that are no JSON
            return PlannedRow(row.number, key, row_id, failure=RowError(f"the column messages: {error}"))
        return PlannedRow(row.number, key, row_id, prompt, spec, self._seeded(self._params, key))

    def _openai(self, row: Row, key: str, row_id: Any) -> PlannedRow:
        asked = openai_call(row.columns, self._types.schema)
        spec = asked.spec if asked.has_type else self._types.of(row.columns)
        params = self._params
        if asked.sampling:
            try:
                params = dataclasses.replace(params, **asked.sampling)
            except (TypeError, AttributeError) as error:
                raise RowError(f"the sampling options of the body cannot be read: {error}", field="body") from error
        if "seed" in asked.sampling:
            call = dataclasses.replace(self._call, params=params)
        else:
            call = self._seeded(params, key)
        return PlannedRow(row.number, key, row_id, asked.prompt, spec, call)

    def _seeded(self, params: SamplingParams, key: str) -> CallOptions:
        seeded = dataclasses.replace(params, seed=row_seed(self._job_seed, key))
        call = self._call
        return CallOptions(seeded, call.guards, call.speculation, call.show_schema, call.cache_salt)

    def _id(self, columns: Mapping[str, Any], key: str) -> Any:
        for name in self._id_columns:
            value = columns.get(name)
            if value is not None:
                return value if isinstance(value, str | int) else json.dumps(value, default=plain)
        return key
