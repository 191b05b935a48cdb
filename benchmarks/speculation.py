"""Speculation on and off, on JSON extraction, tool calls, copying and prose, alone and in batches, in one run.

Every prompt is answered with speculation on and off, and the JSON ones also without their type, in turns within each
round, by one loaded model a batch size. The prefix cache holds the whole blocks of all prompts before anything is
timed, so what is timed is decoding and the rest of each prompt, which is less than a block. Answers must be the same on
and off, to the byte, or the run fails.

Figures, medians over the rounds: `<task>.b<N>.on` and `<task>.b<N>.off` (output tokens a second), `json.b<N>.free` (the
same prompts without a type, speculation off), `<task>.accepted_per_forward` (drafted tokens that a forward yields
beside its own, batch 1), `<task>.tokens_per_forward`, `<task>.acceptance.<drafter>` (of the tokens it drafted), and
`ratio.*` (the median of each round's own ratio). `json.forced_share`: of the bytes of the JSON answers, those that the
type left no choice for.

    python benchmarks/speculation.py --out FILE.json [--quick] [--tasks json,prose] [--batches 1,16]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import environment, version, write_report
from benchmarks.common.speculation_tasks import Task, forced_share, tasks
from safegen import LLM, Result

MODES = ("on", "off", "free")
TARGETS = {"json.b1.on_off": 1.8, "json.b16.on_off": 1.1, "json.b1.on_free": 1.5, "prose.on_off": 0.97}


@dataclass
class Cell:
    """One task at one batch size. speeds: tokens a second, a round each."""

    task: Task
    batch: int
    speeds: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    texts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task.name}.b{self.batch}"

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.task.name == "json" else MODES[:2]

    def prompts(self, quick: bool) -> list[str]:
        """At least four and a whole batch of them."""
        given = self.task.prompts
        count = max(self.batch, 4 if quick else len(given))
        return [given[place % len(given)] for place in range(count)]


def answer(llm: LLM, cell: Cell, mode: str, quick: bool) -> tuple[float, list[Result[Any]]]:
    """(seconds, results) of all prompts of a cell."""
    spec = None if mode == "free" else cell.task.spec
    options: dict[str, Any] = {"max_tokens": cell.task.max_tokens, "speculation": "auto" if mode == "on" else False}
    options["show_schema"] = cell.task.name == "tools"  # the JSON prompts name their keys
    started = time.perf_counter()
    results = llm.batch(cell.prompts(quick), spec, **options)
    return time.perf_counter() - started, results


def measure(llm: LLM, cell: Cell, modes: Sequence[str], quick: bool) -> None:
    for mode in modes:
        seconds, results = answer(llm, cell, mode, quick)
        num_tokens = sum(result.usage.completion_tokens for result in results)
        cell.speeds.setdefault(mode, []).append(num_tokens / seconds)
        cell.texts[mode] = [result.text for result in results]
        if mode == "on":
            for result in results:
                usage = result.usage
                cell.counts.update(tokens=usage.completion_tokens, forwards=usage.forwards, accepted=usage.accepted)
                for name, counts in usage.by_drafter.items():
                    cell.counts.update({f"{name}.drafted": counts.drafted, f"{name}.accepted": counts.accepted})
    if "on" in cell.texts and "off" in cell.texts and cell.texts["on"] != cell.texts["off"]:
        raise SystemExit(f"{cell.name}: answers differ with speculation on and off")


def run_batch_size(names: Sequence[str], batch: int, rounds: int, quick: bool) -> list[Cell]:
    known = tasks()
    cells = [Cell(known[name], batch) for name in names]
    with LLM(max_num_seqs=batch) as llm:
        for cell in cells:  # prompts into the prefix cache, and what is learned once
            for mode in cell.modes:
                answer(llm, cell, mode, quick)
        for number in range(rounds):
            for cell in cells:
                measure(llm, cell, cell.modes if number % 2 == 0 else cell.modes[::-1], quick)
            print(f"batch {batch}, round {number + 1} of {rounds}", flush=True)
    return cells


def figures_of(cells: Sequence[Cell]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for cell in cells:
        for mode, speeds in cell.speeds.items():
            figures[f"{cell.name}.{mode}"] = round(statistics.median(speeds), 1)
        figures[f"ratio.{cell.name}.on_off"] = _ratio(cell, "off")
        if "free" in cell.speeds:
            figures[f"ratio.{cell.name}.on_free"] = _ratio(cell, "free")
        if cell.batch == min(each.batch for each in cells):
            figures |= _drafting(cell)
    for cell in cells:
        if cell.task.name == "json":
            figures["json.forced_share"] = round(forced_share(cell.task.spec, cell.texts["on"]), 3)
    return figures


def _ratio(cell: Cell, below: str) -> float:
    pairs = zip(cell.speeds["on"], cell.speeds[below], strict=True)
    return round(statistics.median(on / other for on, other in pairs), 3)


def _drafting(cell: Cell) -> dict[str, float]:
    name, counts = cell.task.name, cell.counts
    found = {
        f"{name}.accepted_per_forward": round(counts["accepted"] / counts["forwards"], 3),
        f"{name}.tokens_per_forward": round(counts["tokens"] / counts["forwards"], 3),
    }
    for drafter in ("forced", "ngram"):
        if counts[f"{drafter}.drafted"]:
            share = counts[f"{drafter}.accepted"] / counts[f"{drafter}.drafted"]
            found[f"{name}.acceptance.{drafter}"] = round(share, 3)
    return found


def print_table(figures: dict[str, float], cells: Sequence[Cell]) -> None:
    print(f"\n{'':12}{'on':>9}{'off':>9}{'free':>9}{'on/off':>9}{'on/free':>9}   tokens a second")
    for cell in cells:
        values = [figures.get(f"{cell.name}.{mode}") for mode in MODES]
        values += [figures.get(f"ratio.{cell.name}.{key}") for key in ("on_off", "on_free")]
        print(f"{cell.name:12}" + "".join(f"{'' if value is None else value:>9}" for value in values))
    for name, value in figures.items():
        if "per_forward" in name or "acceptance" in name or "share" in name:
            print(f"{name}: {value}")
    for name, target in TARGETS.items():
        for key in [key for key in figures if key.startswith("ratio.") and _is_of(key, name)]:
            print(f"{key}: {figures[key]} (wanted {target})")


def _is_of(key: str, target: str) -> bool:
    task, *batch, kind = target.split(".")
    parts = key.split(".")
    return parts[1] == task and parts[3] == kind and (not batch or parts[2] == batch[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", default="json,tools,copy,prose")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--quick", action="store_true", help="fewer prompts and rounds")
    arguments = parser.parse_args()
    before = environment(torch=version("torch"), temperature=0.0)
    cells: list[Cell] = []
    for batch in map(int, arguments.batches.split(",")):
        rounds = min(arguments.rounds, 3) if arguments.quick else arguments.rounds
        cells += run_batch_size(arguments.tasks.split(","), batch, rounds, arguments.quick)
    figures = figures_of(cells)
    rows = [{"cell": cell.name, "speeds": cell.speeds, "counts": dict(cell.counts)} for cell in cells]
    write_report(arguments.out, before, figures, rows)
    print_table(figures, cells)


if __name__ == "__main__":
    main()
