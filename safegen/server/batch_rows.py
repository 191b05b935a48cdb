"""A batch as a job: its lines are read as the server reads requests, and its records hold the server's answers.

So a line of a batch and a request of the same body come to the same document, seeds apart: a line without a seed draws
with one of its own, made from its content, so that a batch that is resumed after a crash has the answers it would have
had.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safegen.errors import RowError, SafegenError
from safegen.jobs.keys import row_seed
from safegen.jobs.plan import PlannedRow
from safegen.jobs.records import decode, record_of
from safegen.jobs.rows import Row, bounded_lines
from safegen.result import Result
from safegen.server.bodies import validated
from safegen.server.completions import ChatSpelling, Spelling, TextSpelling, document_of
from safegen.server.errors import ApiError, Params, api_error
from safegen.server.schemas import ChatRequest, CompletionRequest
from safegen.server.shapes import encoded
from safegen.server.state import ServerState
from safegen.server.translate import Call, chat_call, completion_call

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MAX_ROWS = 50_000
_FIELDS = frozenset({"custom_id", "method", "url", "body"})


Counts = dict[str, int]  # "completed" and "failed"


class BatchPlanner:
    """The RowPlanner of one batch. Used by the thread that runs its job. counts: of lines that are done; grows."""

    def __init__(self, state: ServerState, endpoint: str, cache_salt: str | None, counts: Counts) -> None:
        self.counts = counts
        self._state = state
        self._endpoint = endpoint
        self._cache_salt = cache_salt
        self._spelling: Spelling = (ChatSpelling if endpoint == CHAT else TextSpelling)(state.logprobs)
        self._calls: dict[str, Call] = {}  # of rows that are on their way, by key

    def plan(self, row: Row, key: str) -> PlannedRow:
        custom_id = row.columns.get("custom_id", key)
        try:
            if row.error is not None:
                raise row.error
            call = self._call(row.columns)
        except (ApiError, SafegenError) as error:
            return PlannedRow(row.number, key, custom_id, failure=error)
        assert call.options.params is not None
        if call.options.params.seed is None:
            params = dataclasses.replace(call.options.params, seed=row_seed(0, key))
            call = dataclasses.replace(call, options=dataclasses.replace(call.options, params=params))
        self._calls[key] = call
        return PlannedRow(row.number, key, custom_id, call.prompts[0], call.spec, call.options)

    def _call(self, columns: Mapping[str, Any]) -> Call:
        settings, body = self._state.settings, columns.get("body")
        if self._endpoint == CHAT:
            call = chat_call(validated(ChatRequest, body), settings, self._cache_salt)
        else:
            call = completion_call(validated(CompletionRequest, body), settings, self._cache_salt)
        if call.is_stream:
            raise ApiError(400, "a line of a batch cannot be streamed", param="stream", code="invalid_value")
        if len(call.prompts) != 1:
            raise ApiError(400, "a line of a batch has one prompt", param="prompt", code="invalid_value")
        return call

    def record(self, planned: PlannedRow, result: Result[Any]) -> dict[str, Any]:
        """As a job's own, with `response` in the place of the value."""
        call = self._calls.pop(planned.key, None)
        record = record_of(planned, dataclasses.replace(result, value=None, text="", alternatives=()))
        state = self._state
        try:
            if call is None:
                raise planned.failure or RowError("the line has no call")
            names = (state.settings.model_names[0], state.fingerprint)
            status, body = 200, document_of(call, result, self._spelling, *names)
        except Exception as error:
            failure = api_error(error, Params() if call is None else call.params)
            status, body = failure.status, failure.body
        self.counts["completed" if status == 200 else "failed"] += 1
        record["response"] = {"status_code": status, "request_id": f"req_{planned.key}", "body": body}
        return record


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a file is no batch. line: from 1, None for the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def check_lines(path: Path, endpoint: str, max_row_bytes: int) -> tuple[int, list[LineError]]:
    """The number of requests in a file, and what makes it no batch (the first hundred). Blocking."""
    count, errors, seen = 0, list[LineError](), set[str]()
    with path.open("rb") as file:
        for line in bounded_lines(file, max_row_bytes):
            if not line.content.strip():
                continue
            count += 1
            found = _line_error(line.number, line.content, line.is_overlong, endpoint, seen)
            if found is not None:
                errors.append(found)
            if count > MAX_ROWS:
                errors.append(LineError("too_many_requests", f"a batch has at most {MAX_ROWS:,} requests"))
            if count > MAX_ROWS or len(errors) >= 100:
                break
    if not count:
        errors.append(LineError("empty_file", "the file holds no request"))
    return count, errors


def _line_error(number: int, content: bytes, is_overlong: bool, endpoint: str, seen: set[str]) -> LineError | None:
    if is_overlong:
        return LineError("invalid_json_line", "the line is too long", number)
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError):
        return LineError("invalid_json_line", "the line is no JSON", number)
    if not isinstance(parsed, dict):
        return LineError("invalid_json_line", "the line is no object", number)
    unknown = sorted(set(parsed) - _FIELDS)
    if unknown:
        return LineError("unknown_parameter", "the line has an unknown field", number, unknown[0][:80])
    custom_id = parsed.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > 512:
        return LineError("invalid_custom_id", "custom_id is a text of up to 512 characters", number, "custom_id")
    if custom_id in seen:
        return LineError("duplicate_custom_id", "the custom_id stands in an earlier line too", number, "custom_id")
    seen.add(custom_id)
    if parsed.get("method") != "POST":
        return LineError("invalid_method", "method is POST", number, "method")
    if parsed.get("url") != endpoint:
        return LineError("mismatched_endpoint", f"url is {endpoint}, as of the batch", number, "url")
    if not isinstance(parsed.get("body"), dict):
        return LineError("invalid_body", "body is an object", number, "body")
    return None


def counts_of(journal: Path) -> Counts:
    """Of the lines that a journal holds. Blocking."""
    counts = {"completed": 0, "failed": 0}
    if journal.exists():
        for is_answer, _ in output_lines(journal):
            counts["completed" if is_answer else "failed"] += 1
    return counts


def output_lines(journal: Path) -> Iterator[tuple[bool, bytes]]:
    """The records of a job as lines of OpenAI's output files; whether each is an answer. Blocking."""
    with journal.open("rb") as file:
        for line in file:
            record = decode(line.rstrip(b"\n"))
            if record is None:
                continue
            shown = {
                "id": f"batch_req_{record['key']}",
                "custom_id": record["id"],
                "response": record["response"],
                "error": None,
            }
            yield record["response"]["status_code"] == 200, encoded(shown) + b"\n"
