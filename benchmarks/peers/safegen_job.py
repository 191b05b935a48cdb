"""The sides of `benchmarks/job.py` that are ours: `safegen` (a job, beside the bare engine) and `loop` (single calls).

python benchmarks/peers/safegen_job.py safegen|loop TASK.json
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from safegen import LLM, JsonSchema
from safegen.engine.request import FinishedEvent
from safegen.runtime import CallOptions

PAIRS = 3  # of a job and the bare engine, in one process


def loop(llm: LLM, task: dict[str, Any], spec: JsonSchema) -> dict[str, Any]:
    start = time.perf_counter()
    results = [
        llm.generate(text, spec, show_schema=False, max_tokens=task["max_tokens"], cache_salt="loop")
        for text in task["texts"]
    ]
    seconds = time.perf_counter() - start
    valid = sum(result.status == "ok" for result in results)
    return {"rows_per_s": len(results) / seconds, "valid_pct": 100 * valid / len(results)}


def job(llm: LLM, task: dict[str, Any], spec: JsonSchema) -> dict[str, Any]:
    folder = Path(task["folder"])
    given = folder / "rows.jsonl"
    given.write_text("".join(json.dumps({"text": text}) + "\n" for text in task["texts"]))
    job_rates, engine_rates, valid = [], [], 0
    for number in range(PAIRS):
        salt = f"run {number}"  # nothing is found in the prefix cache that another run has left there
        pair = [lambda salt=salt: engine_seconds(llm, task, spec, f"{salt} of the engine")]
        output = folder / f"out{number}.jsonl"
        output.unlink(missing_ok=True)
        output.with_name(output.name + ".job.json").unlink(missing_ok=True)
        pair.append(lambda salt=salt, output=output: job_seconds(llm, task, spec, salt, given, output))
        timed = {}
        for place in (0, 1) if number % 2 else (1, 0):
            timed[place] = pair[place]()
        engine_rates.append(len(task["texts"]) / timed[0])
        job_rates.append(len(task["texts"]) / timed[1])
        valid = output.read_text().count('"status":"ok"')
    fraction = statistics.median(mine / theirs for mine, theirs in zip(job_rates, engine_rates))
    return {
        "rows_per_s": statistics.median(job_rates),
        "valid_pct": 100 * valid / len(task["texts"]),
        "engine_rows_per_s": statistics.median(engine_rates),
        "engine_fraction": fraction,
    }


def job_seconds(llm: LLM, task: dict[str, Any], spec: JsonSchema, salt: str, given: Path, output: Path) -> float:
    start = time.perf_counter()
    llm.run_job(
        given, output, spec, show_schema=False, max_tokens=task["max_tokens"], cache_salt=salt, progress="off"
    )  # fmt: skip
    return time.perf_counter() - start


def engine_seconds(llm: LLM, task: dict[str, Any], spec: JsonSchema, salt: str) -> float:
    """Requests that are ready, all at once, until the last has ended."""
    runtime = llm._runtime
    options = CallOptions(show_schema=False, cache_salt=salt, sampling={"max_tokens": task["max_tokens"]})
    runs = [runtime.start(runtime.prepare(text, spec, options)) for text in task["texts"]]
    left, done = len(runs), threading.Event()

    def heard(event: Any) -> None:
        nonlocal left
        if isinstance(event, FinishedEvent):
            left -= 1
            if not left:
                done.set()

    start = time.perf_counter()
    for run in runs:
        runtime.submit(run, heard)
    done.wait()
    return time.perf_counter() - start


def main() -> None:
    engine, task = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    spec = JsonSchema(task["schema"])
    with LLM(task["model"], max_num_seqs=task["max_num_seqs"]) as llm:
        llm.generate(task["texts"][0], spec, show_schema=False, max_tokens=task["max_tokens"], cache_salt="warm")
        answer = {"safegen": job, "loop": loop}[engine](llm, task, spec)
    Path(task["out"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
