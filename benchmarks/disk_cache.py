"""What a process pays again after each start, and what of it is worth keeping on disk.

For each vocabulary, in processes of their own: making the `Vocabulary` (trie and tables); compiling public schemas and
their masks along one text, met for the first time (cold) and again (warm); and tables of `Regex(fsm=True)`, made and
read back from a `DiskCache`. Keeping pays where making takes much longer than reading and checking. It does for the
tables, which are what the cache holds; the cold masks of a schema are a matter of a few milliseconds in the median.

    python benchmarks/disk_cache.py --out FILE.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, percentile, version, write_report
from benchmarks.common.vocabularies import VOCABULARIES, BenchVocabulary, load_vocabulary

SCHEMA_STEP = 24  # every so many of the public schemas
PROCESSES = 3
REGEXES = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "word": r"[a-z]{1,20}",
    "line": r".{1,10}",
}


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measure(name: str, data: Path) -> dict[str, float]:
    """Figures of one fresh process."""
    from safegen.grammars.vocabulary import Vocabulary

    bench = load_vocabulary(name)
    figures = {"vocabulary_ms": milliseconds(lambda: Vocabulary(bench.token_bytes, bench.stop_ids))}
    vocabulary = Vocabulary(bench.token_bytes, bench.stop_ids)
    return figures | _schemas(bench, vocabulary, data) | _tables(vocabulary)


def _schemas(bench: BenchVocabulary, vocabulary: Any, data: Path) -> dict[str, float]:
    from safegen.errors import SchemaError
    from safegen.grammars.json_schema import compile_json_schema
    from safegen.grammars.options import SchemaOptions

    options = SchemaOptions(whitespace="flexible", property_order="any", spelling="any", formats="known")
    compiles, cold, warm = list[float](), list[float](), list[float]()
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for number, line in enumerate(lines) if number % SCHEMA_STEP == 0]
    for row in rows:
        text = next((json.dumps(test["data"], ensure_ascii=False) for test in row["tests"] if test["valid"]), None)
        if text is None:
            continue
        try:
            start = time.perf_counter()
            program = compile_json_schema(json.dumps(row["schema"]), options).program
        except SchemaError:
            continue
        compiles.append((time.perf_counter() - start) * 1e3)
        ids = bench.encode(text)
        cold.append(_masks(program, vocabulary, ids))
        warm.append(_masks(program, vocabulary, ids))
    return {
        "compile_ms_p50": statistics.median(compiles),
        "compile_ms_p99": percentile(compiles, 0.99),
        "masks_cold_ms_p50": statistics.median(cold),
        "masks_cold_ms_p99": percentile(cold, 0.99),
        "masks_warm_ms_p50": statistics.median(warm),
        "masks_warm_ms_p99": percentile(warm, 0.99),
    }


def _masks(program: Any, vocabulary: Any, ids: list[int]) -> float:
    """Milliseconds of the masks along a text, as far as it is legal."""
    from safegen.grammars.constraint import ConstraintViolation, MaskRows
    from safegen.grammars.matcher import NativeConstraint

    constraint, rows, total = NativeConstraint(program, vocabulary), MaskRows.allocate(1, vocabulary.size), 0.0
    for token in ids:
        total += milliseconds(lambda: constraint.fill([], rows))
        try:
            constraint.advance([token])
        except ConstraintViolation:
            break
    return total


def _tables(vocabulary: Any) -> dict[str, float]:
    from safegen.grammars.disk_cache import DiskCache
    from safegen.grammars.fsm import compile_fsm
    from safegen.grammars.options import Limits
    from safegen.grammars.regex import compile_regex

    limits, figures = Limits(max_fsm_states=256), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder) / "cache", max_bytes=1 << 30, version="benchmark")
        for name, pattern in REGEXES.items():
            for key in ("made", "read"):  # the second process finds what the first one put
                program = compile_fsm(pattern, compile_regex(pattern, limits), limits)
                figures[f"fsm.{name}.{key}_ms"] = milliseconds(partial(program.table, vocabulary, cache))
            figures[f"fsm.{name}.states"] = program.table(vocabulary).num_states
            figures[f"fsm.{name}.file_kb"] = len(program.table(vocabulary).transitions.packed()) / 1e3
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", choices=VOCABULARIES, action="append", help="default: all")
    parser.add_argument("--data", type=Path, default=data_folder() / "maskbench-dev.jsonl.gz")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--measure", choices=VOCABULARIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.data)))
        return
    described = environment(outlines_core=version("outlines-core"), processes=PROCESSES, data=arguments.data.name)
    print(json.dumps(described, indent=2), flush=True)
    figures, rows = dict[str, float](), list[dict[str, Any]]()
    for name in arguments.vocab or VOCABULARIES:
        command = [sys.executable, __file__, "--measure", name, "--data", str(arguments.data)]
        runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(PROCESSES)]
        rows += [{"vocabulary": name, **run} for run in runs]
        figures |= {f"{name}.{key}": statistics.median(run[key] for run in runs) for key in runs[0]}
    write_report(arguments.out, described, figures, rows)
    for key, value in figures.items():
        print(f"{key:40}{value:12.2f}")


if __name__ == "__main__":
    main()
