"""Hostile specs end in a typed error or an answer, in bounded time and memory, and never in a crash.

Each runs in a process of its own (tests/support/abuse_runner.py). Time is CPU time, so that a busy machine fails
nothing; memory is what the task added to the peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import suites

ROOT = Path(__file__).parents[1]
FULL = bool(os.environ.get("SAFEGEN_FULL"))
EVERY = 1 if FULL else 8  # each so many rows are also checked and explained


def _rows() -> list[dict[str, Any]]:
    text = suites._path(suites.CASES, "abuse.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def _run(rows: list[dict[str, Any]], *tasks: str) -> dict[str, dict[str, Any]]:
    cases = suites._path(suites.CASES, "cases_abuse.py")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.abuse_runner", str(cases), str(suites.CASES / "abuse.jsonl"), *tasks],
        input="\n".join(row["id"] for row in rows), capture_output=True, text=True, cwd=ROOT, timeout=580,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    results = {result["id"]: result for result in map(json.loads, ended.stdout.splitlines())}
    assert results.keys() == {row["id"] for row in rows}
    return results


def _problem(row: dict[str, Any], result: dict[str, Any]) -> str | None:
    """What a task did wrong, beside its verdicts."""
    if result["signal"]:
        return f"died of signal {result['signal']}"
    if result["outcome"] is None:
        return "raised an untyped error"
    limits = row["limits"]
    if result["cpu_s"] > limits["seconds"]:
        return f"took {result['cpu_s']:.1f} s"
    return f"took {result['peak_mib']:.0f} MiB" if result["peak_mib"] > limits["mib"] else None


def test_hostile_specs_are_served_rightly_or_refused_within_their_limits() -> None:
    rows, wrong = _rows(), []
    results = _run(rows, "serve")
    for row in rows:
        result = results[row["id"]]["serve"]
        outcome = result["outcome"] or {}
        problem = _problem(row, result)
        if problem is None and "error" in outcome:
            problem = None if row["expect"] != "enforce" else f"refused: {outcome['message']}"
        elif problem is None and row["expect"] in ("error", "refuse"):
            problem = "was served"
        elif problem is None and not all(outcome["accepted"] + outcome["rejected"]):
            problem = f"wrong verdicts: {outcome}"
        elif problem is None and outcome["closed"] is False:
            problem = "the shortest completion completes nothing"
        if problem:
            wrong.append((row["id"], problem))
    assert wrong == []
    served = [row for row in rows if "error" not in results[row["id"]]["serve"]["outcome"]]
    may_be_served = [row for row in rows if row["expect"] in ("enforce", "enforce_or_refuse")]
    assert len(served) >= 0.4 * len(may_be_served)  # refusing everything would be easy


def test_hostile_specs_are_checked_and_explained_within_their_limits() -> None:
    rows, wrong = _rows()[::EVERY], []
    results = _run(rows, "check", "explain")
    for row in rows:
        for task in ("check", "explain"):
            result = results[row["id"]][task]
            problem = _problem(row, result)
            outcome = result["outcome"] or {}
            if problem is None and not all(outcome.get("accepted", []) + outcome.get("rejected", [])):
                problem = f"wrong verdicts: {outcome}"
            if problem:
                wrong.append((row["id"], task, problem))
    assert wrong == []


@pytest.mark.parametrize("task", ["crash", "hang", "hoard", "untyped"])
def test_runner_sees_what_goes_wrong(task: str) -> None:
    """The harness itself: a task that dies, spins, hoards memory or raises anything else is seen as that."""
    row = {**_rows()[0], "limits": {"seconds": 1, "mib": 100}}
    problem = _problem(row, _run([row], task)[row["id"]][task])
    assert problem is not None
    assert problem.startswith({"crash": "died of signal", "hang": "took", "hoard": "took", "untyped": "raised"}[task])
    assert problem.endswith({"crash": "6", "hang": "s", "hoard": "MiB", "untyped": "error"}[task])
