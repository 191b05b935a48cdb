"""Files and answers of jobs, for their tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_VARYING = ("total_ms", "usage")  # what a row came to, and not how, is the same in every run


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answers(path: Path) -> list[dict[str, Any]]:
    """The records in input order, without what may differ between two runs."""
    records = sorted(read_records(path), key=lambda record: record["row"])
    return [{name: value for name, value in record.items() if name not in _VARYING} for record in records]
