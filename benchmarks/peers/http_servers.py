"""The servers of `benchmarks/serve.py`, each in a process of its own: safegen's, and llama.cpp's on the same file.

llama.cpp's own `llama-server` counts if there is one: it batches its slots continuously. `llama_cpp.server`, which
comes with llama-cpp-python (extra `server`), stands in for it: that one answers requests one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import ROOT

_WORKER = ROOT / "benchmarks" / "peers" / "safegen_server.py"
_START_S, _END_S = 120.0, 30.0
SLOTS, SLOT_TOKENS = 16, 1024


class ServerFailed(RuntimeError):
    """A server did not start; the message is the end of what it printed."""


@dataclass(frozen=True, slots=True)
class SafegenServer:
    """A running `safegen_server.py`."""

    port: int
    process: subprocess.Popen[str]

    def in_process(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """Seconds and tokens of the same requests without HTTP."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(bodies) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ServerFailed("safegen: the process has ended")
        told: dict[str, Any] = json.loads(line)
        return told


@contextlib.contextmanager
def safegen_server(folder: Path, model: str, model_name: str) -> Iterator[SafegenServer]:
    """Raises ServerFailed."""
    task, log = folder / "safegen.task.json", folder / "safegen.log"
    task.write_text(
        json.dumps({"model": model, "model_name": model_name, "max_num_seqs": SLOTS, "enable_prefix_caching": True})
    )
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    with _ended(process):
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(f"safegen: {log.read_text()[-2000:]}")
        yield SafegenServer(json.loads(line)["port"], process)
        process.stdin.close()
        process.wait(_END_S)


@dataclass(frozen=True, slots=True)
class LlamaCppServer:
    """kind "llama-server": program is its binary. kind "llama_cpp.server": program is the interpreter that has it."""

    kind: Literal["llama-server", "llama_cpp.server"]
    program: str
    version: str

    def command(self, model: str, port: int, num_threads: int) -> list[str]:
        threads = str(num_threads)
        if self.kind == "llama-server":
            return [
                self.program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-np", str(SLOTS),
                "-c", str(SLOTS * SLOT_TOKENS), "-t", threads, "-tb", threads, "-fa", "on", "--jinja",
            ]  # fmt: skip
        return [
            self.program, "-m", "llama_cpp.server", "--model", model, "--host", "127.0.0.1", "--port", str(port),
            "--n_ctx", str(SLOT_TOKENS), "--n_threads", threads, "--n_threads_batch", threads, "--flash_attn", "true",
            "--interrupt_requests", "false",
        ]  # fmt: skip

    def response_format(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self.kind == "llama-server":
            return {"type": "json_schema", "json_schema": {"name": "order", "schema": schema, "strict": True}}
        return {"type": "json_object", "schema": schema}

    @contextlib.contextmanager
    def started(self, folder: Path, model: str, num_threads: int) -> Iterator[int]:
        """Its port. Raises ServerFailed."""
        port, log = free_port(), folder / "llamacpp.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command(model, port, num_threads), stdout=output, stderr=subprocess.STDOUT, text=True
            )
        with _ended(process):
            deadline = time.monotonic() + _START_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ServerFailed(f"{self.kind}: {log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield port


def find_llamacpp(binary: str | None, python: str | None) -> LlamaCppServer | str:
    """A server of llama.cpp; or why there is none. binary: llama-server; None looks beside python, then on the path."""
    beside = None if python is None else Path(python).parent / "llama-server"
    found = binary or (str(beside) if beside is not None and beside.is_file() else shutil.which("llama-server"))
    if found is not None:
        try:
            ran = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{found} does not run: {error}"
        if ran.returncode:
            return f"{found} does not run: {ran.stderr.strip()[-300:]}"
        return LlamaCppServer("llama-server", found, next(iter((ran.stdout + ran.stderr).split("\n")), ""))
    if python is None:
        return "no llama-server, and no interpreter with llama-cpp-python"
    code = "import llama_cpp, llama_cpp.server.app; print(llama_cpp.__version__)"
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if ran.returncode:
        return f"no llama-server, and {python} has no llama_cpp.server: {ran.stderr.strip().splitlines()[-1]}"
    return LlamaCppServer("llama_cpp.server", python, f"llama-cpp-python {ran.stdout.strip()}")


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
            return bool(answer.status == 200) and _is_loaded(port)
    except (OSError, urllib.error.HTTPError):
        return False


def _is_loaded(port: int) -> bool:
    """llama-server lists its model before it has it; llama_cpp.server has no /health, and listens when it is loaded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 404
    except OSError:
        return False


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
