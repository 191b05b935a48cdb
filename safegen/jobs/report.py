"""`JobReport`: what a job came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safegen.jobs.tally import Tally

DONE, ROWS_FAILED = 0, 3


@dataclass(frozen=True, slots=True)
class JobReport:
    """output: its path. statuses: rows of the whole output by status, those of earlier runs included; errors: rows of
    this run by class of error. rows: of this run; skipped: rows of the input that were done before. seconds, tokens and
    rates are of this run; cache_hit_rate: prompt tokens taken from the prefix cache."""

    output: str
    statuses: Mapping[str, int]
    errors: Mapping[str, int]
    rows: int
    skipped: int
    seconds: float
    rows_per_s: float
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float
    cache_hit_rate: float

    @property
    def num_failed(self) -> int:
        """Rows in the output that are not "ok"."""
        return sum(count for status, count in self.statuses.items() if status != "ok")

    @property
    def exit_code(self) -> int:
        """0: every row in the output is "ok"; 3: some are not."""
        return ROWS_FAILED if self.num_failed else DONE

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"exit_code": self.exit_code}

    def lines(self) -> list[tuple[str, str]]:
        """A summary for people: names and values."""
        return [
            ("output", self.output),
            ("rows of this run", f"{self.rows:,} ({self.skipped:,} were done before)"),
            *((status, f"{self.statuses[status]:,}") for status in _in_order(self.statuses)),
            *((f"  {name}", f"{count:,} in this run") for name, count in sorted(self.errors.items())),
            ("time", f"{self.seconds:,.1f} s"),
            ("rate", f"{self.rows_per_s:,.1f} rows/s, {self.tokens_per_s:,.1f} tokens/s"),
            ("tokens", f"{self.prompt_tokens:,} of prompts, {self.completion_tokens:,} of answers"),
            ("prefix cache", f"{self.cache_hit_rate:.1%} of the prompts' tokens"),
        ]

    def table(self) -> str:
        """The summary as text."""
        lines = self.lines()
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def report_of(tally: Tally, output: str) -> JobReport:
    return JobReport(
        output=output,
        statuses=dict(tally.before + tally.now),
        errors=dict(tally.errors),
        rows=tally.num_now,
        skipped=tally.skipped,
        seconds=tally.seconds,
        rows_per_s=tally.rows_per_s,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        tokens_per_s=tally.tokens_per_s,
        cache_hit_rate=tally.cache_hit_rate,
    )


def _in_order(statuses: Mapping[str, int]) -> list[str]:
    return sorted(statuses, key=lambda status: (status != "ok", status))
