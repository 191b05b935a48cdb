"""Walks texts over schemas with one engine, each run in a process of its own.

The parent writes the tasks (schemas, texts as token ids) to a file and starts a worker an engine. The worker answers a
line of JSON a schema. A schema that takes longer than the time limit, or that brings the process down, is recorded as
refused for that reason, and a new worker goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common import ROOT, clock_cost_ns
from benchmarks.common.constraint_engines import Engine, Refused, Walk, make_engine, schema_text
from benchmarks.common.vocabularies import load_vocabulary

ADDRESS_SPACE_BYTES = 16 << 30  # of a worker: an index that explodes ends as a MemoryError, not with the machine


@dataclass(frozen=True, slots=True)
class Task:
    """A schema and the texts to walk. formats: safegen's option. tests: (is valid, token ids)."""

    name: str
    schema: Any
    formats: str
    tests: list[tuple[bool, list[int]]]


@dataclass(slots=True)
class TextResult:
    """accepted: every token was in its mask and so was a stop id at the end. mask_us: time of each mask in order."""

    accepted: bool
    mask_us: list[float]
    error: str | None = None


@dataclass(slots=True)
class SchemaResult:
    """compile_ms and texts are of no meaning when refused says why there is no grammar."""

    compile_ms: float
    refused: str | None
    pointer: str | None
    keyword: str | None
    has_verified: bool
    texts: list[TextResult]
    peak_rss_mb: float


def run_engine(
    engine: str, tasks: Sequence[Task], vocabulary: str, formats: str | None, timeout_s: float
) -> list[SchemaResult]:
    """Results of all tasks in order. formats: instead of that of the tasks."""
    with tempfile.TemporaryDirectory() as folder:
        tasks_file = Path(folder) / "tasks.json"
        tasks_file.write_text(json.dumps([asdict(task) for task in tasks]))
        results: list[SchemaResult] = []
        while len(results) < len(tasks):
            output = Path(folder) / "results.jsonl"
            command = [sys.executable, __file__, engine, vocabulary, str(tasks_file), str(output)]
            command += ["--skip", str(len(results)), "--timeout", str(timeout_s), "--formats", formats or ""]
            ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            lines = output.read_text().splitlines() if output.exists() else []
            results += [_result(json.loads(line)) for line in lines]
            if len(results) < len(tasks):
                if not lines and "ready" not in ended.stdout:
                    raise RuntimeError(f"the worker of {engine} did not start:\n{ended.stderr[-2000:]}")
                results.append(_lost(ended, timeout_s))
    return results


def _result(line: dict[str, Any]) -> SchemaResult:
    return SchemaResult(**{**line, "texts": [TextResult(**text) for text in line["texts"]]})


def _lost(ended: subprocess.CompletedProcess[str], timeout_s: float) -> SchemaResult:
    late = "Timeout (" in ended.stderr
    reason = f"no answer in {timeout_s:g} s" if late else f"the process ended with {ended.returncode}"
    return SchemaResult(0.0, reason, None, None, False, [], 0.0)


def judge(engine: Engine, task: Task, stop_id: int, clock_ns: int) -> SchemaResult:
    """Compile one schema and walk its texts."""
    text = schema_text(task.schema)
    engine.forget()
    gc.collect()
    start = time.process_time_ns()
    try:
        grammar = engine.compile(task.schema, text, task.formats)
        first = grammar.walk()
    except Refused as error:
        return SchemaResult(0.0, error.reason or "refused", error.pointer, error.keyword, False, [], _peak_rss_mb())
    compile_ms = max(0, time.process_time_ns() - start - clock_ns) / 1e6
    texts = [
        _walk(engine, grammar.walk() if index else first, ids, stop_id, clock_ns)
        for index, (_, ids) in enumerate(task.tests)
    ]
    return SchemaResult(compile_ms, None, None, None, grammar.has_verified, texts, _peak_rss_mb())


def _walk(engine: Engine, walk: Walk, ids: Iterable[int], stop_id: int, clock_ns: int) -> TextResult:
    clock, fill, advance, words = time.process_time_ns, walk.fill, walk.advance, engine.words[0]
    mask_us: list[float] = []
    try:
        for token in (*ids, stop_id):
            start = clock()
            fill()
            mask_us.append(max(0, clock() - start - clock_ns) / 1e3)
            if not (int(words[token >> 5]) >> (token & 31)) & 1:
                return TextResult(False, mask_us)
            if token != stop_id and not advance(token):
                return TextResult(False, mask_us)
    except Exception as error:
        return TextResult(False, mask_us, f"{type(error).__name__}: {error}"[:300])
    return TextResult(True, mask_us)


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _worker(engine_name: str, vocabulary_name: str, tasks: Sequence[Task], output: Path, timeout_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    vocabulary = load_vocabulary(vocabulary_name)
    engine = make_engine(engine_name, vocabulary)
    stop_id, clock_ns = vocabulary.stop_ids[0], clock_cost_ns()
    number_ids = vocabulary.encode("12")
    judge(engine, Task("warm up", {"type": "integer"}, "annotation", [(True, number_ids)]), stop_id, clock_ns)
    print("ready", flush=True)
    gc.disable()
    gc.freeze()  # the tasks are not looked through again before every schema
    with output.open("w") as lines:
        for task in tasks:
            faulthandler.dump_traceback_later(timeout_s, exit=True)
            result = judge(engine, task, stop_id, clock_ns)
            faulthandler.cancel_dump_traceback_later()
            lines.write(json.dumps(asdict(result)) + "\n")
            lines.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("engine", "vocabulary", "tasks", "output"):
        parser.add_argument(name)
    parser.add_argument("--skip", type=int)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--formats")
    arguments = parser.parse_args()
    stored = json.loads(Path(arguments.tasks).read_text())[arguments.skip :]
    tasks = [Task(**(task | ({"formats": arguments.formats} if arguments.formats else {}))) for task in stored]
    _worker(arguments.engine, arguments.vocabulary, tasks, Path(arguments.output), arguments.timeout)


if __name__ == "__main__":
    main()
