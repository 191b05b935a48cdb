"""A batch job of real rows: against the raw engine, against a loop of single calls, against llama-cpp-python.

Rows are orders in a sentence each, to be read as JSON of a schema with nested items; every engine gets the same texts
as one user message, the same schema, greedily, at most 256 tokens. Each engine runs in a process of its own, the order
of engines alternates between rounds, and each is warm (one row has been answered) before its time counts.

- `rows_per_s.safegen`: `LLM.run_job` from file to file, journal and fsync included. `rows_per_s.loop`: `LLM.generate`
  row by row, and `rows_per_s.llamacpp`: llama-cpp-python's own `create_chat_completion` with its grammar of the schema,
  row by row (it has no batch call), its best of one and two threads; both on the first rows only.
- `engine_fraction`: rows a second of the job over those of the bare engine, given the same prepared requests at once:
  no files, no text, no validation. Both in one process, alternating, each time with an empty prefix cache.
- `overhead_us_per_row`, `growth_mib_200k`: CPU time and growth of the peak memory of 200,000 short rows through a job
  whose model costs nothing.

`ratio.loop` and `ratio.llamacpp` are rows a second of the job over theirs.

    python benchmarks/job.py --out FILE.json [--quick] [--llamacpp-python /path/to/python]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import ROOT, environment, version, write_report
from benchmarks.common.cpu_workload import SCHEMA

PEOPLE = ("Maria Lopez", "John Smith", "Aiko Tanaka", "Peter Novak", "Amina Diallo", "Olga Petrova", "Liam Byrne")
CITIES = ("Lisbon", "Boston", "Kyoto", "Prague", "Dakar", "Riga", "Cork", "Porto Alegre", "Turku")
GOODS = (
    "chairs",
    "lamps",
    "red pens",
    "notebooks",
    "desks",
    "mirrors",
    "kettles",
    "carpets",
    "bowls",
    "clocks",
    "mugs",
)
MAX_TOKENS, MAX_NUM_SEQS = 256, 64
WANTED = {"engine_fraction": 0.95, "ratio.loop": 5.0, "ratio.llamacpp": 5.0}
AT_MOST = {"overhead_us_per_row": 150.0, "growth_mib_200k": 50.0}


def orders(count: int) -> list[str]:
    return [
        f"{PEOPLE[number % 7]} from {CITIES[number % 9]} ordered {2 + number % 13} {GOODS[number % 11]} and "
        f"{1 + number % 5} {GOODS[(number + 3) % 11]}, and {'has paid' if number % 2 else 'will pay later'}. "
        "Give the order as JSON."
        for number in range(count)
    ]


def run_worker(engine: str, python: str, task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One engine in its process. Raises RuntimeError with the end of what it printed."""
    task_file, out = folder / "task.json", folder / "out.json"
    out.unlink(missing_ok=True)
    task_file.write_text(json.dumps(task | {"out": str(out)}))
    scripts = {"llamacpp": "llamacpp_job.py"}
    script = ROOT / "benchmarks" / "peers" / scripts.get(engine, "safegen_job.py")
    ran = subprocess.run(
        [python, str(script), engine, str(task_file)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if ran.returncode or not out.exists():
        raise RuntimeError(f"{engine}: exit code {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


def load_of_short_rows(num_rows: int) -> dict[str, float]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.job_load", str(num_rows)],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[dict[str, Any]]]:
    from safegen.engine.locate import locate_model

    texts = orders(arguments.rows)
    task = {
        "model": str(Path(locate_model(None)).resolve()),
        "schema": SCHEMA,
        "max_tokens": MAX_TOKENS,
        "max_num_seqs": MAX_NUM_SEQS,
        "folder": str(folder),
    }
    few = texts[: max(4, arguments.rows // 8)]
    engines = {"safegen": (sys.executable, texts), "loop": (sys.executable, few)}
    if arguments.llamacpp_python:
        engines["llamacpp"] = (arguments.llamacpp_python, few)
    rows: list[dict[str, Any]] = []
    for number in range(arguments.repeats):
        for engine in list(engines) if number % 2 == 0 else list(reversed(engines)):
            python, given = engines[engine]
            answer = run_worker(engine, python, task | {"texts": given}, folder)
            rows.append({"engine": engine, "round": number, **answer})
            print(f"round {number}: {engine:10} {json.dumps(answer)}", flush=True)
    return figures_of(rows), rows


def figures_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds, and ratios of medians."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(f"rows_per_s.{row['engine']}", []).append(row["rows_per_s"])
        found.setdefault(f"valid_pct.{row['engine']}", []).append(row["valid_pct"])
        if "engine_fraction" in row:
            found.setdefault("engine_fraction", []).append(row["engine_fraction"])
    figures = {name: statistics.median(values) for name, values in found.items()}
    for peer in ("loop", "llamacpp"):
        theirs = figures.get(f"rows_per_s.{peer}")
        if theirs:
            figures[f"ratio.{peer}"] = figures["rows_per_s.safegen"] / theirs
    return figures


def verdict(name: str, value: float) -> str:
    if name in WANTED:
        return f">= {WANTED[name]:g} {'ok' if value >= WANTED[name] else 'MISSED'}"
    if name in AT_MOST:
        return f"<= {AT_MOST[name]:g} {'ok' if value <= AT_MOST[name] else 'MISSED'}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--rows", type=int, default=128, help="rows of the job")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round; no figure that is named 200k")
    parser.add_argument("--llamacpp-python", default=os.environ.get("SAFEGEN_LLAMACPP_PYTHON"))
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.repeats = min(arguments.rows, 48), 1
    described = environment(
        torch=version("torch"), rows=arguments.rows, repeats=arguments.repeats, max_tokens=MAX_TOKENS,
        max_num_seqs=MAX_NUM_SEQS,
        missing=[] if arguments.llamacpp_python else ["llama-cpp-python (make bench-peers)"],
    )  # fmt: skip
    print(json.dumps(described, indent=2))
    short = load_of_short_rows(20_000 if arguments.quick else 200_000)
    with tempfile.TemporaryDirectory() as folder:
        figures, rows = measure(arguments, Path(folder))
    figures["overhead_us_per_row"] = short["us_per_row"]
    figures["growth_mib_20k" if arguments.quick else "growth_mib_200k"] = short["growth_mib"]
    write_report(arguments.out, described, figures, rows)
    for name, value in sorted(figures.items()):
        print(f"{name:24}{value:12.3f}  {verdict(name, value)}")
    for missing in described["missing"]:  # type: ignore[attr-defined]
        print(f"not measured: {missing}")


if __name__ == "__main__":
    main()
