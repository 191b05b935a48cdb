"""One row's result as a JSON object: what stands in a line of the output.

    id, row, key, status, value, usage, error, audit, total_ms

Further keys only where there is something to say: `text` where there is no value but a text came, `thinking`,
`choices`, `alternatives`, and in `usage` what speculation `drafted` and had `accepted`. `row` is the row's number in
the input, by which its order is restored; `key` is who it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safegen.engine.request import Usage
from safegen.jobs.plan import PlannedRow
from safegen.result import Result

_ERROR_FIELDS = ("pointer", "keyword", "hint", "field", "line", "column", "guard", "rule", "path", "stage")
_PLAIN = (str, int, float, bool, type(None))
_KEY_CHARACTERS = 32


def record_of(planned: PlannedRow, result: Result[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": planned.id,
        "row": planned.number,
        "key": planned.key,
        "status": result.status,
        "value": json_value(result.value),
        "usage": _usage_of(result.usage),
        "error": None if result.error is None else error_of(result.error),
        "audit": [each.to_dict() for each in result.audit],
        "total_ms": round(result.timings.total_ms, 3),
    }
    if result.value is None and result.text:
        record["text"] = result.text
    if result.thinking is not None:
        record["thinking"] = result.thinking
    if result.choices is not None:
        record["choices"] = dict(result.choices)
    if result.alternatives:
        record["alternatives"] = [
            {"status": each.status, "value": json_value(each.value)} for each in result.alternatives
        ]
    return record


def _usage_of(usage: Usage) -> dict[str, int]:
    tokens = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    return tokens | {"drafted": usage.drafted, "accepted": usage.accepted} if usage.drafted else tokens


def json_value(value: Any) -> Any:
    """Instances of models, dataclasses, enums, dates and the like as JSON."""
    if isinstance(value, _PLAIN):
        return value
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=str)


def error_of(error: Exception) -> dict[str, Any]:
    """type: the class of safegen's tree (or of what a validator raised), message, and its fields that say something."""
    found: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    for name in _ERROR_FIELDS:
        value = getattr(error, name, None)
        if isinstance(value, str | int):
            found[name] = value
    return found


def encode(record: Mapping[str, Any]) -> bytes:
    """The record as a line, in UTF-8; escaped where a text holds a lone surrogate."""
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The record of a line without its end; None for one that is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        return None
    key = record.get("key")
    if not isinstance(key, str) or len(key) != _KEY_CHARACTERS or not _is_hex(key):
        return None
    return record


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
