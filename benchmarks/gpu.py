"""The GPU: kernels against their floors, and decoding end to end, beside transformers, in one command under 9 minutes.

    kernel.<op>.<shape>.floor_fraction       the least time there is over the time taken; 1 is the floor itself
    e2e.<model>.b<N>.free                    tokens a second of free text, N sequences at once
    e2e.<model>.b<N>.host_mask               held to a regex by masks that the host fills
    e2e.<model>.b<N>.fsm                     held to the same regex by a table on the device
    e2e.<model>.b<N>.transformers            the better of transformers' generate and its continuous batching

Models have real shapes and random weights. Each engine runs in a process of its own; decoding counts from the moment
that each sequence has its first token (transformers' continuous batching hands out none: its prompts count). What is
missing, failed, or left out for want of time is named, never left out in silence.

    python benchmarks/gpu.py --out FILE.json [--models llama-3-8b,qwen3-4b] [--batches 1,8,64,256]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.common import ROOT, environment, version, write_report

_BUDGET_S = 510.0
_LEAST_S = 45.0  # what starting an engine takes: with less left it is not started
ENGINES = {"safegen": "benchmarks.common.gpu_decode", "transformers": "benchmarks.peers.gpu_transformers"}
NO_DEVICE = "benchmarks/gpu.py needs a CUDA device, and torch built for it; there is none here: nothing was measured"


class Budget:
    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def left_s(self) -> float:
        return self._end_s - time.monotonic()


def run_engine(engine: str, model: str, batches: str, budget: Budget) -> tuple[dict[str, Any], str | None]:
    """What it printed, and why there is nothing."""
    left_s = budget.left_s()
    if left_s < _LEAST_S:
        return {}, f"no time was left ({left_s:.0f} s)"
    command = [sys.executable, "-m", ENGINES[engine], "--model", model, "--batches", batches]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        return {}, f"it was not done within the {left_s:.0f} s that were left"
    if ran.returncode:
        return {}, (ran.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found, None


def e2e_figures(model: str, engine: str, found: dict[str, Any]) -> dict[str, float]:
    """Figures of what an engine printed: `b<N>.<what>`."""
    rates = {key: value for key, value in found.items() if isinstance(value, int | float)}
    if engine == "safegen":
        return {f"e2e.{model}.{key}": rate for key, rate in rates.items()}
    best: dict[str, float] = {}
    for key, rate in rates.items():
        name = f"e2e.{model}.{key.split('.')[0]}.transformers"
        best[name] = max(best.get(name, 0.0), rate)
    return best


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """Of each model and batch: constrained over free, and free over transformers."""
    found = {}
    for name, rate in figures.items():
        if not name.startswith("e2e."):
            continue
        stem, what = name.rsplit(".", 1)
        free = figures.get(f"{stem}.free", 0.0)
        if free and what in ("host_mask", "fsm"):
            found[f"{stem}.{what}_over_free"] = rate / free
        elif free and what == "transformers":
            found[f"{stem}.over_transformers"] = free / rate
    return found


def print_table(figures: dict[str, float], missing: dict[str, str]) -> None:
    width = max([len(name) for name in figures] or [1])
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:12.3f}")
    for name, why in missing.items():
        print(f"missing: {name}: {why}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="llama-3-8b,qwen3-4b")
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--budget-s", type=float, default=_BUDGET_S)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(NO_DEVICE, file=sys.stderr)
        return 2
    from benchmarks.common import gpu_kernels

    budget = Budget(options.budget_s)
    floors = gpu_kernels.measure_floors()
    rows: list[dict[str, Any]] = gpu_kernels.measure(floors)
    figures = {f"kernel.{row['kernel']}.floor_fraction": row["floor_fraction"] for row in rows}
    torch.cuda.empty_cache()
    missing: dict[str, str] = {}
    for model in options.models.split(","):
        for engine in ENGINES:
            found, why = run_engine(engine, model, options.batches, budget)
            if why is not None:
                missing[f"{model} {engine}"] = why
            missing |= {f"{model} {name}": text for name, text in found.get("missing", {}).items()}
            rows.append({"model": model, "engine": engine, **found})
            figures |= e2e_figures(model, engine, found)
    figures |= ratios(figures)
    place = environment(
        device=torch.cuda.get_device_name(), torch=torch.__version__, triton=version("triton"),
        transformers=version("transformers"), copy_gb_s=floors.bytes_a_second / 1e9,
        product_tflops=2 * floors.products_a_second / 1e12, missing=missing,
    )  # fmt: skip
    print_table(figures, missing)
    write_report(options.out, place, figures, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
