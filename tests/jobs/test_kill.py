"""kill -9 at random moments, then the same job again: every row once, and as if nothing had happened."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from safegen.errors import JobLocked
from tests.support.job_fakes import fake_llm
from tests.support.jobs import answers, read_records, write_rows

ROOT = Path(__file__).parents[2]


def start(kind: str, given: Path, *outputs: Path) -> subprocess.Popen[str]:
    """A worker that has loaded everything and begins its job now, then those of the other outputs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.job_worker", kind, str(given), *map(str, outputs)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    return worker


def num_records(output: Path) -> int:
    return output.read_bytes().count(b"\n") if output.exists() else 0


def kill(kind: str, given: Path, output: Path, num_written: int, after_s: float) -> None:
    """Some moment after so many records were there."""
    worker = start(kind, given, output)
    while num_records(output) < num_written and worker.poll() is None:
        time.sleep(0.001)
    time.sleep(after_s)
    worker.kill()
    worker.wait()
    worker.stdout.close()  # type: ignore[union-attr]


def check(kind: str, folder: Path, num_rows: int, num_kills: int) -> None:
    rows = [{"text": f"number {number % (num_rows - 3)}"} for number in range(num_rows)]  # three of them twice
    given = write_rows(folder / "in.jsonl", rows)
    output, whole = folder / "out.jsonl", folder / "whole.jsonl"
    moments = random.Random(17)
    sizes = [0]
    for left in range(num_kills, 0, -1):
        share = moments.uniform(0.1, 0.9) * min(1, 2 / left)
        kill(kind, given, output, sizes[-1] + int(share * (num_rows - sizes[-1])), moments.uniform(0, 0.02))
        sizes.append(num_records(output))
    assert sizes == sorted(sizes), "a record that was written is gone"
    assert any(0 < size < num_rows for size in sizes), f"no kill came in the middle: {sizes}"
    worker = start(kind, given, output, whole)
    said, _ = worker.communicate(timeout=1800)
    assert said == f"0 {num_rows - sizes[-1]} {sizes[-1]}\n0 {num_rows} 0\n"
    assert [record["row"] for record in answers(output)] == list(range(num_rows))
    assert len({record["key"] for record in read_records(output)}) == num_rows
    assert answers(output) == answers(whole)


def test_a_killed_job_resumes_to_the_same_answers(tmp_path: Path, full: bool) -> None:
    check("fake", tmp_path, 2000, 20 if full else 4)


def test_a_killed_job_of_the_default_model_resumes_to_the_same_answers(tmp_path: Path, full: bool) -> None:
    check("default", tmp_path, *((2000, 20) if full else (30, 1)))


def test_another_process_on_the_same_output_is_refused(tmp_path: Path) -> None:
    given = write_rows(tmp_path / "in.jsonl", [{"text": f"number {number}"} for number in range(2000)])
    worker = start("fake", given, tmp_path / "out.jsonl")
    deadline = time.monotonic() + 10
    while not (tmp_path / "out.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(JobLocked, match=f"process {worker.pid}"):
        fake_llm().run_job(given, tmp_path / "out.jsonl", progress="off")
    worker.communicate(timeout=60)
    assert len(read_records(tmp_path / "out.jsonl")) == 2000
