"""The process of a rank other than 0: does what it is told over stdin (ranks.py) until that closes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from safegen.engine.backend import ForwardBatch
from safegen.engine.parallel.ranks import LOST_GROUP, read_message
from safegen.engine.parallel.runner import load_rank
from safegen.engine.parallel.shard import Shard
from safegen.engine.runner import ModelRunner

_LOOK_S = 0.5


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    commands = sys.stdin.buffer
    settings, _ = read_message(commands)
    threading.Thread(target=_end_with, args=(settings["parent"],), daemon=True).start()
    try:
        _serve(commands, answers, settings)
    except EOFError:
        return
    except Exception as exc:
        _answer(answers, error=type(exc).__name__, message=str(exc))
        raise


def _serve(commands: IO[bytes], answers: IO[str], settings: dict[str, Any]) -> None:
    shard = Shard(settings["rank"], settings["size"])
    model, ops, group = load_rank(Path(settings["path"]), settings["kernels"], settings["quantization"], shard)
    runner = ModelRunner(model, ops, settings["kv_cache_dtype"])
    _answer(answers)
    while True:
        command, arrays = read_message(commands)
        match command["do"]:
            case "connect":
                group.connect(settings["meeting_file"])
                _answer(answers)
            case "allocate":
                runner.allocate(command["num_blocks"], command["block_size"])
                _answer(answers)
            case "copy_block":
                runner.copy_block(command["source"], command["destination"])
            case "forward":
                values: dict[str, Any] = {**command["numbers"], **arrays}
                batch = ForwardBatch(**values)
                forward = runner.forward if (count := command["num_layers"]) is None else runner.early_exit(count)
                try:
                    forward(batch, None)
                except RuntimeError as exc:  # gloo's for a rank that is gone
                    if "gloo" not in str(exc):
                        raise
                    os._exit(LOST_GROUP)


def _answer(answers: IO[str], **content: str) -> None:
    print(json.dumps(content), file=answers, flush=True)


def _end_with(parent: int) -> None:
    """End, whatever else is going on, when the parent is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(LOST_GROUP)


if __name__ == "__main__":
    main()
