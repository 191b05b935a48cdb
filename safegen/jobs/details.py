"""What a job's page tells beyond the tally, counted record by record in memory that does not grow.

Failures are of the whole output, latencies, lengths and rates of this run. Nothing of a row is kept but its id and its
key, and those of few rows: the slowest, and some of each kind of failure. A kind of failure is the class of the error
and what its fields say of it, as far as they name our own things: a guard and its rule, a keyword of JSON Schema, an
argument. Messages and pointers may quote a row, and are left to the output.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safegen.engine.request import SamplingParams
from safegen.grammars.json_schema.dialects import DRAFT_4, DRAFT_7, DRAFT_2019, DRAFT_2020
from safegen.reports.hostile import Excerpt, excerpt
from safegen.reports.streaming import LengthHistogram, LogHistogram, Timeline

NUM_SLOWEST = 20
NUM_EXAMPLES = 5
MAX_REASONS = 64  # kinds of failure beyond these are counted together
OTHER_REASONS = "other reasons"
_MAX_NAME_CHARACTERS = 60
_DIALECTS = (DRAFT_4, DRAFT_7, DRAFT_2019, DRAFT_2020)
_KEYWORDS = frozenset({"$schema"}).union(*(dialect.keywords for dialect in _DIALECTS))
_ARGUMENTS = frozenset(SamplingParams.__dataclass_fields__) | frozenset(
    (
        *("prompt", "type", "guards", "speculation", "show_schema", "cache_salt", "row", "input", "text", "column"),
        *("schema_column", "type_of", "url", "body", "messages", "response_format"),
    )
)


@dataclass(frozen=True, slots=True)
class Reason:
    """status: of the rows. error: the class of their error. parts: ("guard", "never") and the like."""

    status: str
    error: str
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Failures:
    """Of one reason: in the output, in this run of the job, and the ids of some."""

    in_output: int = 0
    in_run: int = 0
    examples: list[Excerpt] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlowRow:
    total_ms: float
    number: int
    id: Excerpt
    key: str
    status: str
    completion_tokens: int


class JobDetails:
    """Written by the thread that runs the job."""

    def __init__(self) -> None:
        self.latencies = LogHistogram()  # milliseconds of rows that were computed
        self.lengths = LengthHistogram()  # tokens of their answers
        self.timeline = Timeline()
        self.num_not_computed = 0  # refused or blocked before anything was computed
        self.failures: dict[Reason, Failures] = {}
        self._slowest: list[tuple[float, int, SlowRow]] = []  # a heap, the least slow first

    def found(self, record: Mapping[str, Any]) -> None:
        """A record of an earlier run."""
        if record["status"] != "ok":
            self._failed(record).in_output += 1

    def came(self, record: Mapping[str, Any], at_s: float) -> None:
        """A record of this run. at_s: since its beginning."""
        tokens, total_ms = record["usage"]["completion_tokens"], record["total_ms"]
        self.timeline.add(at_s, tokens)
        if record["status"] != "ok":
            failures = self._failed(record)
            failures.in_output += 1
            failures.in_run += 1
        if not total_ms > 0:
            self.num_not_computed += 1
            return
        self.latencies.add(total_ms)
        self.lengths.add(tokens)
        is_full = len(self._slowest) >= NUM_SLOWEST
        if is_full and total_ms <= self._slowest[0][0]:
            return
        number = record["row"]
        row = SlowRow(total_ms, number, excerpt(record["id"]), record["key"], record["status"], tokens)
        (heapq.heapreplace if is_full else heapq.heappush)(self._slowest, (total_ms, -number, row))

    def slowest(self) -> list[SlowRow]:
        """The slowest first; of equals the first in the input."""
        return [row for *_, row in sorted(self._slowest, key=lambda entry: (-entry[0], -entry[1]))]

    def by_reason(self) -> list[tuple[Reason, Failures]]:
        """The most frequent first."""
        return sorted(self.failures.items(), key=lambda pair: (-pair[1].in_output, pair[0].status, pair[0].error))

    def _failed(self, record: Mapping[str, Any]) -> Failures:
        reason = reason_of(record["status"], record["error"])
        if reason not in self.failures and len(self.failures) >= MAX_REASONS:
            reason = Reason("other", OTHER_REASONS)
        failures = self.failures.setdefault(reason, Failures())
        if len(failures.examples) < NUM_EXAMPLES:
            failures.examples.append(excerpt(record["id"]))
        return failures


def reason_of(status: str, error: Mapping[str, Any] | None) -> Reason:
    """status and error: of a record."""
    if error is None:
        return Reason(_name(status), "no error is told")
    allowed = (
        ("guard", None), ("rule", None), ("stage", frozenset({"input", "output"})), ("keyword", _KEYWORDS),
        ("field", _ARGUMENTS),
    )  # fmt: skip
    parts = tuple(
        (name, _name(error[name]))
        for name, names in allowed
        if isinstance(error.get(name), str) and (names is None or error[name] in names)
    )
    return Reason(_name(status), _name(error.get("type", "unknown")), parts)


def _name(text: object) -> str:
    return str(text)[:_MAX_NAME_CHARACTERS]
