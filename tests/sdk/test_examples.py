"""Every example runs, as a user would run it: from its file, on the default model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST_LINE = {
    "quickstart.py": "5 of 5 valid",
    "streaming.py": r"ok +Recipe\(.*\)",
    "classify.py": r"(positive|negative|neutral) +\(positive 0\.\d{3}, negative 0\.\d{3}, neutral 0\.\d{3}\).*",
    "async_app.py": "50 of 50 valid",
    "tools.py": "3 of 3 calls ran",
    "grammar_sql.py": "3 of 3 queries ran",
    "explain.py": "5 of 6 texts explained",
    "speculation.py": "3 of 3 answers the same",
    "guards.py": "3 of 3 kept",
    "batch_job.py": "12 rows: 11 ok, 1 refused; run again, it asked 0 of them",
    "ray_job.py": "12 of 12 ok, the same as in one process: True",
    "redact_stream.py": "replaced: True, digits shown: 0, same as the result: True",
    "openai_client.py": "2 of 2 typed answers are of their type",
    "load_test.py": "promise kept: True",
    "think.py": r"answered: answer='(yes|no|unclear)' confidence=[0-9.e-]+",
}


def test_every_example_is_listed_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(LAST_LINE)


@pytest.mark.parametrize("name", sorted(LAST_LINE))
def test_example_runs_and_ends_as_it_promises(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("SAFEGEN_MODEL", None)
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=500,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(LAST_LINE[name], ended.stdout.splitlines()[-1]), ended.stdout
    if name == "quickstart.py":
        assert ended.stdout.count("Person(") == 5
