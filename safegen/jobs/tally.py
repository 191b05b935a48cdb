"""What a job has counted so far. Written by the thread that runs the job, read by the one that shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Watcher(Protocol):
    """Told of every record that is counted, by the thread that runs the job."""

    def found(self, record: Mapping[str, Any]) -> None: ...
    def came(self, record: Mapping[str, Any], at_s: float) -> None: ...


@dataclass
class Tally:
    """before: statuses of records that were there at the start. now: of those that came since, `errors` by class.
    drafted_tokens, accepted_tokens: of speculation."""

    before: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    started_s: float = field(default_factory=time.monotonic)
    total: int | None = None
    position: Callable[[], int] = field(default=lambda: 0)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ended_s: float | None = None
    watcher: Watcher | None = None

    def add_before(self, record: Mapping[str, Any]) -> None:
        """A record that was there at the start."""
        self.before[record["status"]] += 1
        if self.watcher is not None:
            self.watcher.found(record)

    def end(self) -> None:
        """The time stands still from here on."""
        self.ended_s = self.ended_s or time.monotonic()

    def add(self, record: Mapping[str, Any]) -> None:
        self.now[record["status"]] += 1
        if record["error"] is not None:
            self.errors[record["error"]["type"]] += 1
        usage = record["usage"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["cached_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        self.drafted_tokens += usage.get("drafted", 0)
        self.accepted_tokens += usage.get("accepted", 0)
        if self.watcher is not None:
            self.watcher.came(record, self.seconds)

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    @property
    def num_now(self) -> int:
        return sum(self.now.values())

    @property
    def rows_per_s(self) -> float:
        return self.num_now / max(self.seconds, 1e-9)

    @property
    def tokens_per_s(self) -> float:
        return self.completion_tokens / max(self.seconds, 1e-9)

    @property
    def cache_hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Estimated by how much of the input has been read; None where nobody knows."""
        done = self.position()
        if not self.total or not done or not self.num_now:
            return None
        return self.seconds * max(0, self.total - done) / done
