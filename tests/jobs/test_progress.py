"""What a job shows while it runs, and at its end."""

from __future__ import annotations

import io
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import safegen.jobs.progress
from safegen.jobs.progress import Lines, Progress, describe, make_progress
from safegen.jobs.report import JobReport, report_of
from safegen.jobs.tally import Tally
from tests.support.job_fakes import fake_llm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tally_of(**counts: int) -> Tally:
    tally = Tally(total=200, position=lambda: 50)
    tally.now = Counter(counts)
    tally.skipped = 7
    tally.prompt_tokens, tally.cached_tokens, tally.completion_tokens = 1000, 250, 400
    tally.started_s = time.monotonic() - 60
    return tally


def test_a_line_tells_counts_rates_cache_and_time_left() -> None:
    line = describe(tally_of(ok=110, blocked=4, invalid=5, error=1))
    assert line == (
        "120 rows (110 ok, 6 failed, 4 blocked), 7 done before, 2.0 rows/s, 6.7 tokens/s, cache 25%, ETA 0:03:00"
    )


def test_without_a_known_total_no_time_left_is_told() -> None:
    tally = tally_of(ok=1)
    tally.total = None
    assert "ETA" not in describe(tally)


def test_lines_come_as_long_as_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "every_s", 0.02)
    stream = io.StringIO()
    with make_progress("auto", tally_of(ok=3), stream):
        time.sleep(0.2)
    shown = stream.getvalue()
    assert shown.count("safegen job: 3 rows (3 ok") >= 2
    assert shown == shown.replace("\r", "")
    time.sleep(0.05)
    assert stream.getvalue() == shown


def test_a_line_comes_every_ten_seconds() -> None:
    assert Lines.every_s == 10


def test_a_terminal_has_a_bar_and_a_table() -> None:
    stream = Terminal()
    tally = tally_of(ok=110, blocked=10)
    with make_progress("auto", tally, stream) as progress:
        pass
    progress.summary(report_of(tally, "out.jsonl"))
    shown = stream.getvalue()
    assert "25%" in shown
    assert "110 ok, 0 failed, 10 blocked" in " ".join(shown.split())
    assert "│ out.jsonl" in " ".join(shown.split())


def test_off_shows_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fake_llm().run_job(["a"], tmp_path / "out.jsonl", progress="off")
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_the_summary_tells_statuses_and_reasons() -> None:
    tally = tally_of(ok=110, refused=10)
    tally.before = Counter({"ok": 7})
    tally.errors = Counter({"RowError": 10})
    table = report_of(tally, "out.jsonl").table()
    rows = dict(line.split("  ", 1) for line in table.replace("  RowError", "RowError").splitlines())
    assert {name: value.strip() for name, value in rows.items() if name != "time"} == {
        "output": "out.jsonl",
        "rows of this run": "120 (7 were done before)",
        "ok": "117",
        "refused": "10",
        "RowError": "10 in this run",
        "rate": "2.0 rows/s, 6.7 tokens/s",
        "tokens": "1,000 of prompts, 400 of answers",
        "prefix cache": "25.0% of the prompts' tokens",
    }


def test_a_report_is_data(tmp_path: Path) -> None:
    import json

    report: JobReport = fake_llm().run_job(["a", "@blocked"], tmp_path / "out.jsonl", progress="off")
    again: dict[str, Any] = json.loads(json.dumps(report.to_dict()))
    assert again["statuses"] == {"ok": 1, "blocked": 1}
    assert again["exit_code"] == 3 == report.exit_code
    assert report.num_failed == 1


def test_a_job_that_fails_ends_its_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import threading

    monkeypatch.setattr(safegen.jobs.progress.Lines, "every_s", 0.01)

    def rows() -> Any:
        yield "a"
        raise KeyError("mine")

    with pytest.raises(KeyError):
        fake_llm().run_job(rows(), tmp_path / "out.jsonl", progress="lines")
    assert not [thread for thread in threading.enumerate() if thread.name == "safegen-job-progress"]
    assert Progress.is_shown is False
