"""All of cpu_decode.py over engines that answer at once: the names of its figures, and missing peers are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cpu_decode
from benchmarks.common.cpu_workload import Prompt, Workload
from benchmarks.peers.process import EngineProcess, TaskFailed

SPEED = {"safegen": 180.0, "llamacpp_q4_1": 90.0, "llamacpp_q4_0": 100.0, "transformers": 20.0}
SETTINGS = {"safegen": ["cpu"], "llamacpp": ["t2_fa1", "t1_fa1"], "transformers": ["float32", "bfloat16"]}
WINDOWS = [[0, 1, 2], [2, 1, 0]]


class FakeEngines:
    """Answers tasks as workers do. broken: (engine, phase) pairs that fail."""

    def __init__(self, broken: tuple[tuple[str, str], ...] = ()) -> None:
        self.broken = broken
        self.asked: list[tuple[str, str, Any]] = []

    def run(self, process: EngineProcess, phase: str, **task: Any) -> dict[str, Any]:
        self.asked.append((process.name, phase, task))
        if (process.name, phase) in self.broken:
            raise TaskFailed(f"{process.name}, {phase}: exit code 1: No module named 'llama_cpp'")
        if phase == "probe":
            return {"versions": {"version": "1"}, "settings": SETTINGS[process.engine]}
        if phase == "bandwidth":
            return {"steps_per_s": [180.0, 90.0, 100.0], "bytes_per_s": [20e9, 20e9, 5e9]}
        if phase == "memory":
            return {"rss_mb": 100.0, "load_s": 0.5}
        if phase == "quality":
            shift = 0.0 if task["setting"] == "reference" else 0.1
            np.save(task["logits"], np.arange(18, dtype=np.float32).reshape(6, 3) * (1 + shift))
        return self.speed(process.name, task) if phase == "speed" else {}

    def speed(self, name: str, task: dict[str, Any]) -> dict[str, Any]:
        def numbers(measure: str, place: int) -> list[float]:
            return [SPEED[name] / (1 + place)] * task["repeats"]

        values = {
            measure: {setting: numbers(measure, place) for place, setting in enumerate(settings)}
            for measure, settings in task["measures"].items()
            if not (name == "transformers" and measure == "ttft_ms")
        }
        return {"values": values, "notes": {measure: {} for measure in values}}


def run_main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engines: FakeEngines, *options: str) -> dict[str, Any]:
    prompt = Prompt("hi", [1])
    workload = Workload(prompt, [prompt], [prompt], {}, 4, 8, WINDOWS, [0], [])
    monkeypatch.setattr(EngineProcess, "run", lambda process, phase, **task: engines.run(process, phase, **task))
    monkeypatch.setattr(cpu_decode, "build", lambda model, data, quick: workload)
    monkeypatch.setattr(cpu_decode, "weight_bytes", lambda model: 100_000_000)
    monkeypatch.setattr("safegen.engine.locate.locate_model", lambda name: tmp_path / "model.gguf")
    monkeypatch.setattr("sys.argv", ["cpu_decode.py", "--out", str(tmp_path / "out.json"), *options])
    cpu_decode.main()
    report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return report


def test_every_figure_has_the_name_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engines = FakeEngines()
    report = run_main(monkeypatch, tmp_path, engines, "--rounds", "2")
    figures = report["figures"]
    for engine, speed in SPEED.items():
        for measure in ("prefill512", *(f"decode.b{n}" for n in (1, 8, 16, 32)), "json.b1", "json.b16"):
            assert figures[f"{measure}.{engine}"] == speed
        assert figures[f"rss_mb.{engine}"] == 100.0 and figures[f"load_s.{engine}"] == 0.5
        assert figures[f"kl.{engine}"] > 0 and figures[f"perplexity.{engine}"] > 1
    assert figures["bandwidth_fraction.b1"] == pytest.approx(0.9)  # 100 MB x 180 / 20 GB/s
    assert figures["ratio.decode.b16.llamacpp_q4_1"] == 2.0 and figures["ratio.kl.llamacpp_q4_1"] == 1.0
    assert "ttft_ms.safegen" in figures and "ttft_ms.transformers" not in figures
    assert {name.removeprefix("kl.") for name in figures if name.startswith("kl.")} == {
        *SPEED, "safegen_kv_float32", "safegen_kv_int8", "safegen_q4_0", "safegen_int8", "safegen_int4",
    }  # fmt: skip
    assert figures["perplexity.reference"] > 1 and report["environment"]["missing"] == {}


def test_order_alternates_and_only_the_best_setting_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines = FakeEngines()
    run_main(monkeypatch, tmp_path, engines, "--rounds", "2", "--engines", "safegen,llamacpp_q4_1")
    speeds = [(name, task["measures"]["decode.b1"]) for name, phase, task in engines.asked if phase == "speed"]
    assert speeds == [
        ("safegen", ["cpu"]), ("llamacpp_q4_1", ["t2_fa1", "t1_fa1"]),
        ("llamacpp_q4_1", ["t2_fa1"]), ("safegen", ["cpu"]),
    ]  # fmt: skip


def test_a_peer_that_is_missing_or_fails_is_named_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = FakeEngines((("llamacpp_q4_1", "probe"), ("llamacpp_q4_0", "prepare"), ("transformers", "speed")))
    report = run_main(monkeypatch, tmp_path, engines, "--quick")
    missing = report["environment"]["missing"]
    assert set(missing) == {"llamacpp_q4_1", "llamacpp_q4_0", "transformers"}
    assert "No module named 'llama_cpp'" in missing["llamacpp_q4_1"] and "bench-peers" in missing["llamacpp_q4_1"]
    assert "it failed" in missing["transformers"]
    assert report["figures"]["decode.b16.safegen"] == 180.0
    assert not any("llamacpp" in name or "transformers" in name for name in report["figures"])
    table = capsys.readouterr().out
    assert all(f"missing: {name}" in table for name in missing)


def test_safegen_s_own_failure_is_no_missing_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed):
        run_main(monkeypatch, tmp_path, FakeEngines((("safegen", "speed"),)), "--quick")
