"""All of job.py over engines that answer at once: the names of its figures, and a missing peer is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import job

RATES = {"safegen": 20.0, "loop": 3.0, "llamacpp": 5.0}


def run_main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    asked: list[str] = []

    def answers(engine: str, python: str, task: dict[str, Any], folder: Path) -> dict[str, Any]:
        asked.append(engine)
        assert task["texts"] and task["schema"]
        more = {"engine_fraction": 0.97} if engine == "safegen" else {}
        return {"rows_per_s": RATES[engine], "valid_pct": 100.0, **more}

    monkeypatch.setattr(job, "run_worker", answers)
    monkeypatch.setattr(
        job, "load_of_short_rows", lambda num_rows: {"rows": num_rows, "us_per_row": 60.0, "growth_mib": 3.0}
    )
    monkeypatch.setattr("safegen.engine.locate.locate_model", lambda name: tmp_path / "model.gguf")
    monkeypatch.setattr(sys, "argv", ["job.py", "--out", str(tmp_path / "out.json"), *options])
    job.main()
    report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return report, asked


def test_figures_have_the_names_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, asked = run_main(monkeypatch, tmp_path, "--repeats", "2", "--llamacpp-python", "python")
    assert report["figures"] == {
        "rows_per_s.safegen": 20.0, "rows_per_s.loop": 3.0, "rows_per_s.llamacpp": 5.0, "engine_fraction": 0.97,
        "ratio.loop": 20 / 3, "ratio.llamacpp": 4.0, "overhead_us_per_row": 60.0, "growth_mib_200k": 3.0,
        "valid_pct.safegen": 100.0, "valid_pct.loop": 100.0, "valid_pct.llamacpp": 100.0,
    }  # fmt: skip
    assert asked == ["safegen", "loop", "llamacpp", "llamacpp", "loop", "safegen"]


def test_a_missing_peer_is_named_and_a_quick_run_names_no_full_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SAFEGEN_LLAMACPP_PYTHON", raising=False)
    report, asked = run_main(monkeypatch, tmp_path, "--quick")
    assert asked == ["safegen", "loop"]
    assert "growth_mib_200k" not in report["figures"]
    assert report["figures"]["growth_mib_20k"] == 3.0
    shown = capsys.readouterr().out
    assert "not measured: llama-cpp-python" in shown
    assert shown.index("ratio.loop") < shown.index(">= 5 ok")


def test_a_target_that_is_missed_is_said() -> None:
    assert job.verdict("ratio.llamacpp", 4.0) == ">= 5 MISSED"
    assert job.verdict("overhead_us_per_row", 151.0) == "<= 150 MISSED"
    assert job.verdict("rows_per_s.loop", 1.0) == ""
