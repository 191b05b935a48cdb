"""The process of a rank other than 0: does what it is told over stdin (ranks.py) until that closes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch
from safegen.engine.parallel.group import Group, Transport
from safegen.engine.parallel.ranks import LOST_GROUP, read_message
from safegen.engine.parallel.runner import load_rank
from safegen.engine.parallel.shard import Shard
from safegen.engine.runner import ModelRunner

_LOOK_S = 0.5


def main() -> None:
    run(_serve)


def run(serve: Callable[[Commands], None]) -> None:
    """Do what a rank is told until its stdin closes. serve: with the settings that came first."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    pipe = sys.stdin.buffer
    settings, _ = read_message(pipe)
    threading.Thread(target=_end_with, args=(settings["parent"],), daemon=True).start()
    commands = Commands(pipe, answers, settings)
    try:
        serve(commands)
    except EOFError:
        return
    except Exception as exc:
        commands.answer(error=type(exc).__name__, message=str(exc))
        raise


class Commands:
    """What rank 0 says, and the way to answer. settings: of the start."""

    def __init__(self, pipe: IO[bytes], answers: IO[str], settings: dict[str, Any]) -> None:
        self._pipe, self._answers = pipe, answers
        self.settings = settings
        self.shard = Shard(settings["rank"], settings["size"])

    def next(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """EOFError when rank 0 is gone, or wants no more."""
        return read_message(self._pipe)

    def answer(self, **content: Any) -> None:
        print(json.dumps(content), file=self._answers, flush=True)

    def connect(self, group: Group, transport: Transport) -> None:
        group.connect(self.settings["meeting_file"], transport)
        self.answer()


def batch_of(command: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> ForwardBatch:
    values: dict[str, Any] = {**command["numbers"], **arrays}
    return ForwardBatch(**values)


def _serve(commands: Commands) -> None:
    settings = commands.settings
    if settings["kernels"] == "triton":
        from safegen.engine.parallel.gpu import follow, load_gpu_rank

        runner_and_group = load_gpu_rank(settings, commands.shard)
        commands.answer()
        return follow(commands, *runner_and_group, "nccl")
    model, ops, group = load_rank(Path(settings["path"]), settings["kernels"], settings["quantization"], commands.shard)
    runner = ModelRunner(model, ops, settings["kv_cache_dtype"])
    commands.answer()
    while True:
        command, arrays = commands.next()
        match command["do"]:
            case "connect":
                commands.connect(group, "gloo")
            case "allocate":
                runner.allocate(command["num_blocks"], command["block_size"])
                commands.answer()
            case "copy_block":
                runner.copy_block(command["source"], command["destination"])
            case "forward":
                forward = runner.forward if (count := command["num_layers"]) is None else runner.early_exit(count)
                try:
                    forward(batch_of(command, arrays), None)
                except RuntimeError as exc:  # gloo's for a rank that is gone
                    if "gloo" not in str(exc):
                        raise
                    os._exit(LOST_GROUP)


def _end_with(parent: int) -> None:
    """End, whatever else is going on, when the parent is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(LOST_GROUP)


if __name__ == "__main__":
    main()
