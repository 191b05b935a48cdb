"""Runs hostile specs, each in a process of its own: a stack overflow or an abort is only seen from outside.

    python -m tests.support.abuse_runner cases_abuse.py abuse.jsonl TASK... < ids

Prints one JSON object a row: `id`, and a task its outcome (a dict, None when it ended in no typed error), the signal it
died of (0: none), CPU seconds and what it added to the peak memory. Every task gets a fresh fork of this process, in
which all is imported already, so that the numbers are those of the task alone.

Tasks: `serve` compiles, judges the row's texts, then walks along masks to an answer over a vocabulary of single bytes;
`check`; `explain` of a text of each kind. The others go wrong on purpose.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NoReturn

from safegen.checking import check
from safegen.errors import SafegenError
from safegen.explaining import explain
from safegen.grammars.constraint import MaskRows, NoCompletion
from safegen.grammars.matcher import NativeConstraint, Program
from safegen.grammars.vocabulary import Vocabulary
from safegen.output_type import compile_type
from safegen.types import Grammar, JsonSchema, Regex

_ADDRESS_SPACE_BYTES = 8 << 30  # far above what is asked for: it keeps the machine alive, the test asserts on the peak
_CPU_S = 60
_WALK_STEPS = 200
_STOP = 256


def spec_of(row: dict[str, Any], built: Any) -> Any:
    kinds = {"schema": lambda spec: JsonSchema(spec, **row["options"]), "regex": Regex, "grammar": Grammar}
    return kinds[row["spec_kind"]](built)


def serve(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    program = compile_type(spec).program
    assert program is not None
    return {
        "accepted": [program.matches(text.encode()) for text in row["accept"]],
        "rejected": [not program.matches(text.encode()) for text in row["reject"]],
        "closed": _walk(program),
    }


def _walk(program: Program) -> bool | None:
    """Always the last legal byte, then the way to the end: whether that is one, None where none is known."""
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [_STOP])
    constraint = NativeConstraint(program, vocabulary)
    rows = MaskRows.allocate(1, vocabulary.size)
    for _ in range(_WALK_STEPS):
        if constraint.is_complete():
            break
        constraint.fill([], rows)
        legal = rows.bools(0)[:_STOP].nonzero()[0]
        assert len(legal), "no token is legal"
        constraint.advance([int(legal[-1])])
    try:
        constraint.advance(constraint.shortest_completion())
    except NoCompletion:
        return None
    return constraint.can_end()


def check_all(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    return {"refused": sum(finding.handling == "refused" for finding in check(spec))}


def explain_some(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "accepted": [explain(spec, text).accepted for text in row["accept"][:1]],
        "rejected": [not explain(spec, text).accepted for text in row["reject"][:1]],
    }


def crash(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    os.abort()


def hang(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    started = process_time()
    while process_time() - started < 1.5:
        pass
    return {}


def hoard(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    return {"bytes": len(b"x" * (300 << 20))}


def untyped(spec: Any, row: dict[str, Any]) -> dict[str, Any]:
    raise KeyError(row["id"])


_TASKS = (serve, check_all, explain_some, crash, hang, hoard, untyped)
TASKS = {task.__name__.partition("_")[0]: task for task in _TASKS}


def peak_memory() -> int:
    """Of this program, in the unit of ru_maxrss, which on Linux still counts what ran in the process before exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:")).split()[1])


def run(task: Callable[[Any, dict[str, Any]], dict[str, Any]], row: dict[str, Any], built: Any) -> dict[str, Any]:
    """In a fork: what the task returns, or the typed error; anything else ends the process with its traceback."""
    try:
        outcome = task(spec_of(row, built), row)
    except SafegenError as error:
        return {"error": type(error).__name__, "message": str(error)[:300]}
    return outcome


def forked(body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reading, writing = os.pipe()
    before = peak_memory()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(body, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    _, status, usage = os.wait4(child, 0)
    kib = 1024 if sys.platform == "darwin" else 1
    return {
        "outcome": json.loads(written) if written else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": max(0, usage.ru_maxrss - before) / kib / 1024,
    }


def _in_child(body: Callable[[], dict[str, Any]], writing: int) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.write(writing, json.dumps(body()).encode())
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def main() -> None:
    cases, path, *tasks = sys.argv[1:]
    wanted = set(sys.stdin.read().split())
    generator = runpy.run_path(cases)
    for row in generator["rows"](path):
        if row["id"] in wanted:
            built = generator["build"](row["spec"])
            done = {name: forked(partial(run, TASKS[name], row, built)) for name in tasks}
            print(json.dumps({"id": row["id"], **done}), flush=True)


if __name__ == "__main__":
    main()
