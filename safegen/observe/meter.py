"""Counts of requests as their callers see them: by status, and what guards took. The engine counts all else.

One call a request, under a lock, from whatever thread ends it; a step of the engine never comes here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from safegen.errors import Cancelled, CapacityError, EngineClosed, GrammarError, RequestError, SchemaError
from safegen.result import Result, Status

if TYPE_CHECKING:
    from safegen.guards.audit import AuditRecord


class RequestMeter:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Status] = Counter(dict.fromkeys(get_args(Status), 0))
        self._guard_s: dict[str, float] = {}

    def answered(self, result: Result[Any]) -> None:
        spent = guard_milliseconds(record for each in (result, *result.alternatives) for record in each.audit)
        with self._lock:
            self._requests[result.status] += 1
            for guard, milliseconds in spent.items():
                self._guard_s[guard] = self._guard_s.get(guard, 0.0) + milliseconds / 1e3

    def raised(self, error: BaseException) -> None:
        """A call that ended with an exception instead of a Result."""
        self.ended(status_of(error))

    def ended(self, status: Status) -> None:
        with self._lock:
            self._requests[status] += 1

    def taken(self) -> tuple[Mapping[Status, int], Mapping[str, float]]:
        """Requests by status, and seconds by guard."""
        with self._lock:
            return dict(self._requests), dict(self._guard_s)


def status_of(error: BaseException) -> Status:
    """What a call that raised comes to, as a row of a batch would."""
    if isinstance(error, RequestError | SchemaError | GrammarError | CapacityError):
        return "refused"
    if isinstance(error, EngineClosed | Cancelled | GeneratorExit | KeyboardInterrupt):
        return "cancelled"
    return "error"


def guard_milliseconds(records: Iterable[AuditRecord]) -> dict[str, float]:
    """By guard. The records of one guard, stage and sample all tell the time of all of them; input counts once."""
    spent: dict[tuple[str, str, int], float] = {}
    for record in records:
        key = (record.guard, record.stage, 0 if record.stage == "input" else record.sample)
        spent[key] = max(spent.get(key, 0.0), record.milliseconds)
    by_guard: dict[str, float] = {}
    for (guard, _, _), milliseconds in spent.items():
        by_guard[guard] = by_guard.get(guard, 0.0) + milliseconds
    return by_guard


__all__ = ["RequestMeter", "guard_milliseconds", "status_of"]
