"""What the benchmark scripts share: the environment they print, the clock, percentiles and the layout of the output.

Every script writes `{"environment": {...}, "figures": {"dotted.name": number}, "rows": [...]}`. Times of constraint
engines are CPU time of the whole process (helper threads count), net of what reading the clock costs: on a machine
that does other work too, wall time would measure that work.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from safegen.load.trace import percentile

ROOT = Path(__file__).resolve().parents[2]


def data_folder() -> Path:
    """The shared corpora: SAFEGEN_DATA, else ../shared/data beside the repository."""
    return Path(os.environ.get("SAFEGEN_DATA") or ROOT.parent / "shared" / "data")


def environment(**more: object) -> dict[str, object]:
    """The machine and the interpreter; `more` adds what the script measures with (versions, threads, seed)."""
    return {
        "platform": platform.platform(),
        "processor": next(
            (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
            platform.processor(),
        ),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **more,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def version(package: str) -> str | None:
    """Version of an installed package; None when it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def clock_cost_ns() -> int:
    """What two readings of the CPU clock in a row differ by."""
    differences = []
    for _ in range(2001):
        start = time.process_time_ns()
        differences.append(time.process_time_ns() - start)
    return int(statistics.median(differences))


def write_report(
    path: Path | None,
    environment: Mapping[str, object],
    figures: Mapping[str, float],
    rows: Iterable[Mapping[str, object]],
) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"environment": environment, "figures": figures, "rows": list(rows)}
    path.write_text(json.dumps(report, indent=1, ensure_ascii=True) + "\n")


__all__ = ["ROOT", "clock_cost_ns", "data_folder", "environment", "percentile", "version", "write_report"]
