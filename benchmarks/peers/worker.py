"""Runs one task with one engine, in a process of its own: `python benchmarks/peers/worker.py TASK.json`.

The task: `engine` (a key of ENGINES), `phase`, `model`, `workload` (a file), `out` (a file), and for each phase

    probe     -> versions, settings
    prepare   source, destination: make the model file or folder that the engine is measured on
    speed     measures {name: [settings]}, repeats -> values {name: {setting: [numbers]}}, notes
    bandwidth setting, slices, threads -> steps_per_s (one sequence), bytes_per_s (read from memory), a number a slice
    memory    setting, kv_bytes -> rss_mb (peak of loading and serving, over imports), load_s
    quality   setting, logits (a file to write): float32 [tokens, vocabulary]

Values are tokens a second, of ttft_ms milliseconds.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common import memory
from benchmarks.common.bandwidth import BandwidthReader
from benchmarks.common.cpu_workload import LOADED_SEQUENCES, PREFILL_TOKENS, Workload
from benchmarks.peers.base import CpuEngine

ENGINES = {
    "safegen": "benchmarks.peers.safegen_engine",
    "llamacpp": "benchmarks.peers.llamacpp_engine",
    "transformers": "benchmarks.peers.transformers_engine",
}


def measure(engine: CpuEngine, name: str) -> tuple[float | None, dict[str, float]]:
    """One value of a measure, and what else was seen."""
    if name == "ttft_ms":
        seconds = engine.ttft()
        return (None if seconds is None else seconds * 1e3), {}
    if name == "prefill512":
        return PREFILL_TOKENS / engine.prefill(), {}
    kind, batch = name.split(".b")
    generated = (engine.json if kind == "json" else engine.decode)(int(batch))
    notes = {"tokens": float(generated.tokens), **generated.notes}
    if kind == "json":
        notes["valid"] = float(generated.num_valid)
    return generated.tokens / generated.seconds, notes


def speed(engine: CpuEngine, task: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, dict[str, list[float]]] = {name: {} for name in task["measures"]}
    notes: dict[str, dict[str, dict[str, float]]] = {name: {} for name in task["measures"]}
    for setting in dict.fromkeys(setting for settings in task["measures"].values() for setting in settings):
        engine.load(setting, None)
        engine.prefill()  # warms up
        for name, settings in task["measures"].items():
            if setting not in settings:
                continue
            for _ in range(task["repeats"]):
                value, notes[name][setting] = measure(engine, name)
                if value is not None:
                    values[name].setdefault(setting, []).append(value)
        engine.close()
    return {"values": values, "notes": notes}


_READ_S = 0.3  # before and after each slice of decoding, which takes about as long


def bandwidth(engine: CpuEngine, task: dict[str, Any]) -> dict[str, Any]:
    """In turns: reads, decoding of one sequence, reads, ...; a slice's bandwidth is the better one of its two sides."""
    engine.load(task["setting"], None)
    engine.decode(1)  # warms up
    steps_per_s: list[float] = []
    with BandwidthReader(task["threads"]) as reader:
        read = [reader.best(_READ_S)]
        for _ in range(task["slices"]):
            generated = engine.decode(1)
            steps_per_s.append(generated.tokens / generated.seconds)
            read.append(reader.best(_READ_S))
    engine.close()
    return {"steps_per_s": steps_per_s, "bytes_per_s": [max(sides) for sides in zip(read, read[1:])]}


def memory_and_load(engine: CpuEngine, task: dict[str, Any]) -> dict[str, Any]:
    engine.imports()
    engine.versions()
    before = memory.resident_mb()
    memory.reset_peak()
    start = time.perf_counter()
    engine.load(task["setting"], task["kv_bytes"])
    load_s = time.perf_counter() - start
    engine.prefill()
    engine.decode(LOADED_SEQUENCES)
    engine.json(LOADED_SEQUENCES // 2)  # longer answers: no more than the cache surely holds
    peak = memory.peak_mb()
    engine.close()
    return {"rss_mb": peak - before, "load_s": load_s, "imports_mb": before}


def quality(engine: CpuEngine, task: dict[str, Any]) -> dict[str, Any]:
    np.save(task["logits"], np.concatenate(list(engine.logits(task["setting"]))))
    return {}


def run(task: dict[str, Any]) -> dict[str, Any]:
    module = importlib.import_module(ENGINES[task["engine"]])
    if task["phase"] == "prepare":
        module.prepare(task["source"], task["destination"])
        return {}
    workload = Workload.load(Path(task["workload"]))
    engine: CpuEngine = module.make_engine(task["model"], workload)
    if task["phase"] == "probe":
        engine.imports()
        return {"versions": engine.versions(), "settings": engine.settings()}
    phases = {"speed": speed, "bandwidth": bandwidth, "memory": memory_and_load, "quality": quality}
    return phases[task["phase"]](engine, task)


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    Path(task["out"]).write_text(json.dumps(run(task)))


if __name__ == "__main__":
    main()
