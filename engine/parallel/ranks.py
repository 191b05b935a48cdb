"""The processes of the other ranks: started, told what to do over their stdin, and ended.

A message is its length in four bytes, JSON, and the bytes of the arrays that the JSON lists. Answers are lines of JSON.
A rank whose stdin closes ends, so nothing outlives this process however it ends; it also looks who its parent is.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from safegen.errors import CapacityError, EngineError, ModelLoadError, RequestError, SafegenError

Arrays = Mapping[str, NDArray[Any]]
_LENGTH = struct.Struct("<I")
_ERRORS: dict[str, type[SafegenError]] = {
    error.__name__: error for error in (CapacityError, EngineError, ModelLoadError, RequestError)
}
WORKER = "safegen.engine.parallel.worker"
_END_TIMEOUT_S = 5.0
_FAULT_TIMEOUT_S = 1.0


def write_message(pipe: IO[bytes], message: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    arrays = arrays or {}
    listed = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({**message, "arrays": listed}).encode()
    pipe.write(_LENGTH.pack(len(head)) + head + b"".join(array.tobytes() for array in arrays.values()))
    pipe.flush()


def read_message(pipe: IO[bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """EOFError when the other side is gone."""
    message = json.loads(_exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0]))
    arrays = {}
    for name, dtype, shape in message.pop("arrays"):
        raw = _exactly(pipe, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        arrays[name] = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    return message, arrays


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


class Ranks:
    """Ranks 1 .. size - 1. settings: what a worker is given beside its rank. worker: the module that each one runs.
    Used by one thread at a time."""

    def __init__(self, size: int, settings: Mapping[str, Any], worker: str = WORKER) -> None:
        self._owner = os.getpid()
        self._fault: str | None = None
        threads = str(max(1, (os.cpu_count() or 1) // size))
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
        self._processes = [self._start(environment, worker) for _ in range(1, size)]
        shared = {**settings, "size": size, "parent": self._owner}
        for rank, process in enumerate(self._processes, start=1):
            self._write(rank, process, {**shared, "rank": rank}, None)

    @staticmethod
    def _start(environment: Mapping[str, str], worker: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", worker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which ends them
        )  # fmt: skip

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def send(self, message: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """To every rank. EngineError when one is gone."""
        if self._fault is not None:
            raise EngineError(self._fault)
        for rank, process in enumerate(self._processes, start=1):
            self._write(rank, process, message, arrays)

    def wait(self) -> list[dict[str, Any]]:
        """Until every rank has done what it was sent; their answers. Raises the error that one reports."""
        answers = []
        for rank, process in enumerate(self._processes, start=1):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise self.failed()
            answer = json.loads(line)
            if "error" in answer:
                error = _ERRORS.get(answer["error"], EngineError)(f"tensor-parallel rank {rank}: {answer['message']}")
                self.close()
                raise error
            answers.append(answer)
        return answers

    def failed(self) -> EngineError:
        """An exchange has failed: end all ranks, and say which one was to blame. Further calls fail with the same."""
        if self._fault is None:
            ends = []
            for rank, process in enumerate(self._processes, start=1):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ends.append((rank, process.wait(_FAULT_TIMEOUT_S)))
            lost = [(rank, code) for rank, code in ends if code != LOST_GROUP] or ends
            told = ", ".join(f"rank {rank} ended with code {code}" for rank, code in lost) or "an exchange failed"
            self._fault = f"tensor parallel: {told}; no further request can be served. Fix: start a new LLM."
            self._end(0.0)
        return EngineError(self._fault)

    def close(self) -> None:
        """No process is left when this returns. Idempotent; nothing in a forked child."""
        if self._fault is None:
            self._fault = "tensor parallel: the ranks were ended"
        self._end(_END_TIMEOUT_S)

    def _end(self, timeout_s: float) -> None:
        if os.getpid() != self._owner:
            return
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _write(self, rank: int, process: subprocess.Popen[bytes], message: Mapping[str, Any], arrays: Any) -> None:
        assert process.stdin is not None
        try:
            write_message(process.stdin, message, arrays)
        except (OSError, ValueError) as exc:
            raise self.failed() from exc


LOST_GROUP = 3  # exit code of a rank that ended because another one did

__all__ = ["LOST_GROUP", "WORKER", "Ranks", "read_message", "write_message"]
