"""Runs one task in a process of its own, in the interpreter where its engine lives."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

_WORKER = ROOT / "benchmarks" / "peers" / "worker.py"


class TaskFailed(RuntimeError):
    """A worker ended without an answer; the message is the end of what it printed."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """name: in the figures. engine: of worker.ENGINES. python: the interpreter. model: a file or folder."""

    name: str
    engine: str
    python: str
    model: str
    folder: Path
    timeout_s: float = 3600.0

    def run(self, phase: str, **task: Any) -> dict[str, Any]:
        """The worker's answer. Raises TaskFailed."""
        task_file, out = self.folder / f"{self.name}.task.json", self.folder / f"{self.name}.out.json"
        out.unlink(missing_ok=True)
        task |= {
            "engine": self.engine,
            "phase": phase,
            "model": self.model,
            "workload": str(self.folder / "workload.json"),
            "out": str(out),
        }
        task_file.write_text(json.dumps(task))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
        try:
            ran = subprocess.run(
                [self.python, str(_WORKER), str(task_file)],
                capture_output=True, text=True, timeout=self.timeout_s, env=environment,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TaskFailed(f"{self.name}, {phase}: {error}") from error
        if ran.returncode or not out.exists():
            raise TaskFailed(f"{self.name}, {phase}: exit code {ran.returncode}: {ran.stderr.strip()[-2000:]}")
        answer: dict[str, Any] = json.loads(out.read_text())
        return answer
