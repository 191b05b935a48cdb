"""llama-cpp-python in `benchmarks/job.py`: its own chat call with its grammar of the schema, row by row.

Runs in the interpreter where llama_cpp lives, with nothing of this repository. The best of one and two threads counts.

    python benchmarks/peers/llamacpp_job.py llamacpp TASK.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from llama_cpp import Llama, LlamaGrammar  # type: ignore[import-not-found]


def timed(task: dict[str, Any], num_threads: int) -> dict[str, Any]:
    llm = Llama(
        task["model"], n_ctx=1024, n_threads=num_threads, n_threads_batch=num_threads, flash_attn=True, verbose=False
    )

    def answer(text: str) -> str:
        grammar = LlamaGrammar.from_json_schema(json.dumps(task["schema"]), verbose=False)
        made = llm.create_chat_completion(
            [{"role": "user", "content": text}], grammar=grammar, temperature=0.0, max_tokens=task["max_tokens"]
        )
        return str(made["choices"][0]["message"]["content"])

    answer(task["texts"][0])
    start = time.perf_counter()
    texts = [answer(text) for text in task["texts"]]
    seconds = time.perf_counter() - start
    llm.close()
    valid = sum(is_json(text) for text in texts)
    return {"rows_per_s": len(texts) / seconds, "valid_pct": 100 * valid / len(texts), "threads": num_threads}


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main() -> None:
    task = json.loads(Path(sys.argv[2]).read_text())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tried = [timed(task, threads) for threads in sorted({1, min(2, usable)})]
    Path(task["out"]).write_text(json.dumps(max(tried, key=lambda each: each["rows_per_s"])))


if __name__ == "__main__":
    main()
