"""MaskBench: real schemas with instances that must be accepted or rejected, over safegen and its peers.

Each engine compiles every schema afresh with its caches emptied, then walks the tokens of each instance: a mask is
timed until its bits lie in the caller's buffer, the token must be in it, and a stop id must be legal at the end of the
text. Everything runs on one thread, each engine in a process of its own; passes repeat in alternating order, and a
time is the median over the passes of the same compile or the same mask.

    safegen          every spelling, any property order, flexible whitespace, formats="known": a validator's verdicts
    safegen_default  the defaults plus flexible whitespace: the speed figures, as a user would decode
    llguidance       defaults (strict)
    xgrammar         defaults (every object closed)
    xgrammar_spec    strict_mode=False; like `outlines` on a seeded subset, as compiling takes seconds
    outlines         outlines-core: a regex of the schema, indexed over the vocabulary

`common.*` are times on the schemas that safegen, llguidance and xgrammar all compile, over the masks that all of them
were asked for; `subset.*` are the same and the verdicts on the seeded subset.

    python benchmarks/maskbench.py --data maskbench-dev.jsonl.gz --out FILE.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import data_folder, environment, percentile, version, write_report
from benchmarks.common.constraint_engines import ENGINES, PACKAGES
from benchmarks.common.schema_rows import row_of, wrong_tests
from benchmarks.common.vocabularies import VOCABULARIES, BenchVocabulary, load_vocabulary
from benchmarks.common.walks import SchemaResult, Task, run_engine

SEED = 3
SUBSET_SCHEMAS = 200
SUBSET_ENGINES = ("xgrammar_spec", "outlines")
COMMON_ENGINES = ("safegen_default", "llguidance", "xgrammar")
FORMATS = {"safegen": "known", "safegen_default": "assert"}
Results = dict[str, list[SchemaResult | None]]  # by engine, in the order of the tasks; None: not run on this schema


def load_tasks(path: Path, limit: int | None, vocabulary: BenchVocabulary) -> list[Task]:
    """limit: that many schemas, drawn with the seed, in the order of the file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if limit is not None and limit < len(rows):
        rows = [rows[i] for i in sorted(random.Random(SEED).sample(range(len(rows)), limit))]
    return [
        Task(row["name"], row["schema"], "", [(test["valid"], _ids(test["data"], vocabulary)) for test in row["tests"]])
        for row in rows
    ]


def _ids(instance: Any, vocabulary: BenchVocabulary) -> list[int]:
    text = json.dumps(instance, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate can only be escaped
        text = json.dumps(instance)
    return vocabulary.encode(text)


def run_all(engines: Sequence[str], tasks: list[Task], vocabulary: str, repeats: int, timeout_s: float) -> Results:
    chosen = sorted(random.Random(SEED).sample(range(len(tasks)), min(SUBSET_SCHEMAS, len(tasks))))
    passes: dict[str, list[list[SchemaResult]]] = {engine: [] for engine in engines}
    for number in range(repeats):
        for engine in engines if number % 2 == 0 else tuple(reversed(engines)):
            if number and (engine == "safegen" or engine in SUBSET_ENGINES):
                continue  # verdicts only, or too slow to repeat
            own = [tasks[i] for i in chosen] if engine in SUBSET_ENGINES else tasks
            print(f"pass {number + 1}: {engine}, {len(own)} schemas", flush=True)
            passes[engine].append(run_engine(engine, own, vocabulary, FORMATS.get(engine, "assert"), timeout_s))
    results: Results = {}
    for engine in engines:
        merged = [_merge(runs) for runs in zip(*passes[engine])]
        by_index = dict(zip(chosen if engine in SUBSET_ENGINES else range(len(tasks)), merged))
        results[engine] = [by_index.get(i) for i in range(len(tasks))]
    return results


def _merge(runs: tuple[SchemaResult, ...]) -> SchemaResult:
    """Medians over the passes; the verdicts are those of the first one."""
    first = runs[0]
    if any(run.refused for run in runs):
        return next(run for run in runs if run.refused)
    first.compile_ms = statistics.median(run.compile_ms for run in runs)
    first.peak_rss_mb = max(run.peak_rss_mb for run in runs)
    for text, *others in zip(*(run.texts for run in runs)):
        text.mask_us = [statistics.median(times) for times in zip(text.mask_us, *(other.mask_us for other in others))]
    return first


def verdict_figures(engine: str, tasks: Sequence[Task], results: Sequence[SchemaResult]) -> dict[str, float]:
    compiled = [(task, result) for task, result in zip(tasks, results) if result.refused is None]
    wrong = [wrong_tests(task, result) for task, result in compiled]
    figures = {
        f"{engine}.compiled_pct": 100 * len(compiled) / len(tasks),
        f"{engine}.fully_right_pct": 100 * sum(not (over or under) for over, under in wrong) / len(tasks),
        f"{engine}.wrong_accept": float(sum(bool(over) for over, _ in wrong)),
        f"{engine}.wrong_reject_pct": 100 * sum(bool(under) for _, under in wrong) / max(1, len(compiled)),
        f"{engine}.peak_rss_mb": max(result.peak_rss_mb for result in results),
    }
    if engine == "safegen":
        figures["safegen.verified_pct"] = 100 * sum(result.has_verified for _, result in compiled) / len(tasks)
    return figures


def speed_figures(prefix: str, results: Mapping[str, Sequence[SchemaResult]]) -> dict[str, float]:
    """results: by engine, on the same schemas, all compiled. Only masks that every engine was asked for count."""
    figures: dict[str, float] = {}
    shared = [
        [min(len(text.mask_us) for text in texts) for texts in zip(*(result.texts for result in row))]
        for row in zip(*results.values())
    ]
    for engine, own in results.items():
        name = f"{prefix}.{'safegen' if engine == 'safegen_default' else engine}"
        compiles = [result.compile_ms for result in own]
        masks = [
            mask
            for result, lengths in zip(own, shared)
            for text, length in zip(result.texts, lengths)
            for mask in text.mask_us[:length]
        ]
        if not masks:
            continue
        figures |= {f"{name}.compile_ms_{key}": percentile(compiles, q) for key, q in _SHARES.items()}
        figures |= {f"{name}.mask_us_{key}": percentile(masks, q) for key, q in _SHARES.items()}
        figures[f"{name}.mask_us_mean"] = statistics.fmean(masks)
    return figures


_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def all_figures(tasks: list[Task], results: Results) -> dict[str, float]:
    figures: dict[str, float] = {}
    whole = {engine: _complete(own) for engine, own in results.items() if engine not in SUBSET_ENGINES}
    for engine, own in whole.items():
        figures |= verdict_figures(engine, tasks, own)
    figures |= _speed("common", {name: own for name, own in results.items() if name in COMMON_ENGINES})
    slow = next((results[engine] for engine in SUBSET_ENGINES if engine in results), None)
    if slow is None:
        return figures
    chosen = [i for i, result in enumerate(slow) if result is not None]
    subset: Results = {engine: [own[i] for i in chosen] for engine, own in results.items()}
    for engine, partial in subset.items():
        figures |= verdict_figures(f"subset.{engine}", [tasks[i] for i in chosen], _complete(partial))
    return figures | _speed("subset", {engine: own for engine, own in subset.items() if engine != "safegen"})


def _complete(results: Iterable[SchemaResult | None]) -> list[SchemaResult]:
    return [result for result in results if result is not None]


def _speed(prefix: str, results: Results) -> dict[str, float]:
    rows = [_complete(row) for row in zip(*results.values())]
    compiled = [row for row in rows if all(result.refused is None for result in row)]
    columns = dict(zip(results, (list(column) for column in zip(*compiled))))
    return {f"{prefix}.schemas": float(len(compiled)), **speed_figures(prefix, columns)}


def print_wrong(tasks: list[Task], results: Results) -> None:
    for engine, own in results.items():
        over, under, refused = [], [], []
        for task, result in zip(tasks, own):
            if result is None:
                continue
            if result.refused is not None:
                refused.append(task.name)
                continue
            accepted, rejected = wrong_tests(task, result)
            over += [task.name] if accepted else []
            under += [task.name] if rejected else []
        for title, names in (("wrongly accepts", over), ("wrongly rejects", under), ("refuses", refused)):
            shown = names if engine.startswith("safegen") else names[:20]
            more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            print(f"{engine} {title} {len(names)}: {', '.join(shown)}{more}")


def print_table(figures: Mapping[str, float], engines: Sequence[str]) -> None:
    print(f"\n{'engine':24}{'compiled %':>11}{'right %':>9}{'accepts':>9}{'rejects %':>11}{'peak MB':>9}")
    for engine in [*engines, *(f"subset.{engine}" for engine in engines)]:
        if f"{engine}.compiled_pct" in figures:
            keys = ("compiled_pct", "fully_right_pct", "wrong_accept", "wrong_reject_pct", "peak_rss_mb")
            a, b, c, d, e = (figures[f"{engine}.{key}"] for key in keys)
            print(f"{engine:24}{a:11.2f}{b:9.2f}{c:9.0f}{d:11.2f}{e:9.0f}")
    if "safegen.verified_pct" in figures:
        print(f"safegen verifies in {figures['safegen.verified_pct']:.2f} % of the schemas")
    print(f"\n{'':24}{'compile ms p50':>15}{'p99':>9}{'max':>9}{'mask us p50':>13}{'mean':>8}{'p99':>9}{'max':>10}")
    for prefix in ("common", "subset"):
        for engine in engines:  # the times of safegen_default stand under the name safegen
            name = f"{prefix}.{engine}"
            if f"{name}.mask_us_p50" not in figures:
                continue
            a, b, c = (figures[f"{name}.compile_ms_{key}"] for key in ("p50", "p99", "max"))
            d, e, f, g = (figures[f"{name}.mask_us_{key}"] for key in ("p50", "mean", "p99", "max"))
            print(f"{name:24}{a:15.3f}{b:9.2f}{c:9.1f}{d:13.2f}{e:8.2f}{f:9.1f}{g:10.0f}")


def choose_engines(wanted: str) -> tuple[list[str], list[str]]:
    """(engines to run, names of missing packages). safegen stands for both its modes, xgrammar for its two."""
    expand = {"safegen": ("safegen", "safegen_default"), "xgrammar": ("xgrammar", "xgrammar_spec")}
    names = [name for word in wanted.split(",") for name in expand.get(word.strip(), (word.strip(),))]
    unknown = set(names) - set(ENGINES)
    if unknown:
        sys.exit(f"--engines: {', '.join(sorted(unknown))} is not one of {', '.join(ENGINES)}")
    missing = sorted({PACKAGES[name] for name in names if name in PACKAGES and version(PACKAGES[name]) is None})
    return [name for name in dict.fromkeys(names) if PACKAGES.get(name) not in missing], missing


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=data_folder() / "maskbench-dev.jsonl.gz", help="gzipped JSON lines"
    )
    parser.add_argument("--vocab", choices=(*VOCABULARIES, "smollm2"), default="tekken")
    parser.add_argument("--engines", default="safegen,llguidance,xgrammar,outlines", help="comma-separated")
    parser.add_argument("--limit", type=int, help="that many schemas, drawn with the fixed seed")
    parser.add_argument("--repeats", type=int, default=3, help="passes of the engines whose times are compared")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds one schema may take in one engine")
    parser.add_argument("--out", type=Path, help="write figures and rows to this JSON file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    engines, missing = choose_engines(arguments.engines)
    vocabulary = load_vocabulary("smollm" if arguments.vocab == "smollm2" else arguments.vocab)
    tasks = load_tasks(arguments.data, arguments.limit, vocabulary)
    described = environment(
        engines={name: version(PACKAGES.get(name, "safegen")) or "this working tree" for name in engines},
        missing=missing,
        vocabulary=f"{vocabulary.name}, {len(vocabulary.token_bytes)} ids",
        clock="CPU time of the process, one thread",
        data=arguments.data.name,
        schemas=len(tasks),
        texts=sum(len(task.tests) for task in tasks),
        repeats=arguments.repeats,
        seed=SEED,
    )
    print(json.dumps(described, indent=2), flush=True)
    for package in missing:
        print(f"missing: {package} is not installed; pip install 'safegen[bench]'", flush=True)
    results = run_all(engines, tasks, vocabulary.name, arguments.repeats, arguments.timeout)
    figures = all_figures(tasks, results)
    rows = [
        row_of(task, {engine: results[engine][i] for engine in engines}, vocabulary) for i, task in enumerate(tasks)
    ]
    write_report(arguments.out, described, figures, rows)
    print_wrong(tasks, results)
    print_table(figures, engines)


if __name__ == "__main__":
    main()
