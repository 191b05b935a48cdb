"""What a step costs beside the forward: scheduler, masks, sampling, commit, events, the hand-over and the SDK.

A batch of equal rows runs through `LLM.batch`, once over a backend whose forward costs nothing (it hands out rows of
ready-made random logits, with a peak at the next token of a text that the schema allows) and once over the real default
model. In `overhead_ms` counts everything from the first step that has all rows in it to the last result, less the time
inside `forward`; `share` is that over the same time with `forward`, on the real model. `phase_ms` splits the engine's
part, measured without the SDK, in the same thread: what is left of `overhead_ms` is events, threads and SDK. `cpu_ms`
is CPU time of all threads beside the forward, over the ready backend: that of a machine that does nothing else.
`json` rows are constrained by a schema; `sampled` ones are drawn at temperature 0.8 and top_p 0.95, the others greedy.

    python benchmarks/overhead.py --out FILE.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import environment, version, write_report
from safegen import LLM, JsonSchema, Limits
from safegen.engine.backend import Backend, ForwardBatch, RowMasks
from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.engine import Engine
from safegen.engine.locate import locate_model
from safegen.engine.request import TokensEvent
from safegen.engine.runner import ModelRunner
from safegen.engine.tokenizer import Tokenizer
from safegen.runtime import CallOptions, Runtime

SEED = 7
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string"},
        "role": {"enum": ["admin", "editor", "viewer"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "email", "role", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON}
NAMES = ("Maria Lopez", "Ken Adams", "Aiko Tanaka", "Jean-Luc Moreau", "Priya Sharma")
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
WORKLOADS: dict[str, tuple[bool, dict[str, float]]] = {
    "free": (False, {}),
    "json": (True, {}),
    "free_sampled": (False, SAMPLED),
    "json_sampled": (True, SAMPLED),
}
REAL_WORKLOADS = ("free", "json")  # sampled answers of the model end too soon
PHASES = {"_admit": "admit", "_plan": "plan", "_launch": "batch", "_fill": "masks", "_finish": "sample"}
PHASES["_commit"] = "commit"


def script(tokenizer: Tokenizer, num_tokens: int) -> list[int]:
    """Tokens of a text that begins an answer to SCHEMA."""
    people = [
        {"name": NAMES[number % 5], "age": 20 + number % 60, "email": f"user{number}@example.org",
         "role": ("admin", "editor", "viewer")[number % 3], "tags": ["new", "paid"][: number % 3]}
        for number in range(num_tokens // 16)
    ]  # fmt: skip
    return tokenizer.encode_continuation(json.dumps(people, separators=(",", ":")))[:num_tokens]


class ReadyLogits:
    """A backend without a model: a peak at the next token of `text` on random logits. It times its own calls."""

    takes_masks = True
    max_context = 8192

    def __init__(self, vocab_size: int, text: list[int], stop_ids: frozenset[int]) -> None:
        self.vocab_size = vocab_size
        self._text = text
        rng = np.random.default_rng(SEED)
        self._rows = (rng.standard_normal((64, vocab_size), dtype=np.float32) * 3).astype(np.float32)
        self._rows[:, sorted(stop_ids)] = -30.0
        self._peaks: list[tuple[int, int, float]] = []
        self._prompt_tokens: dict[int, int] = {}

    def bytes_per_block(self, block_size: int) -> int:
        return block_size

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._prompt_tokens.clear()

    def copy_block(self, source: int, destination: int) -> None:
        pass

    def forward(self, batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
        for row, token, value in self._peaks:
            self._rows[row, token] = value
        self._peaks.clear()
        num_rows = len(batch.sampled_rows)
        first = batch.step_id * 5 % (len(self._rows) - num_rows)
        if masks is not None:
            owners = np.searchsorted(batch.query_start, batch.sampled_rows, side="right") - 1
            for row, owner in enumerate(owners.tolist()):
                self._raise_next(first + row, int(batch.block_table[owner, 0]), int(batch.context_len[owner]))
        return self._rows[first : first + num_rows]

    def _raise_next(self, row: int, first_block: int, num_tokens: int) -> None:
        """The row of a sequence, known by its first block, whose first sampled row ended its prompt."""
        place = num_tokens - self._prompt_tokens.setdefault(first_block, num_tokens)
        if place < len(self._text):
            token = self._text[place]
            self._peaks.append((row, token, float(self._rows[row, token])))
            self._rows[row, token] = 40.0


class Stopwatch:
    """A backend in front of another: when each forward began and ended, from the first on that decodes all rows."""

    def __init__(self, inner: Backend, num_rows: int) -> None:
        self._inner = inner
        self._num_rows = num_rows
        self.takes_masks, self.vocab_size, self.max_context = inner.takes_masks, inner.vocab_size, inner.max_context
        self.bytes_per_block, self.allocate, self.copy_block = inner.bytes_per_block, inner.allocate, inner.copy_block
        self.spans: list[tuple[float, float]] = []
        self.cpu_start = 0.0  # of the process, at the first full forward, and of this thread in all of them
        self.cpu_inside = 0.0
        self.num_full = 0

    def forward(self, batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
        cpu_start, start = time.thread_time(), time.perf_counter()
        if not self.spans:
            self.cpu_start = time.process_time()
        logits = self._inner.forward(batch, masks)
        is_full = len(batch.ids) == self._num_rows == len(batch.sampled_rows)
        if self.spans or is_full:
            self.spans.append((start, time.perf_counter()))
            self.num_full += is_full
            self.cpu_inside += time.thread_time() - cpu_start
        return logits


@dataclass
class Bench:
    """One tokenizer, the two backends, and the shape of the batch."""

    tokenizer: Tokenizer
    num_rows: int
    num_tokens: int

    def engine(self, backend: Backend) -> tuple[Stopwatch, LLM]:
        watch = Stopwatch(backend, self.num_rows)
        config = EngineConfig(kv_cache_memory=self._kv_bytes(backend), max_num_seqs=64, enable_prefix_caching=False)
        engine = Engine(watch, self.tokenizer.token_bytes, config)
        runtime = Runtime(engine, self.tokenizer, Limits(), max_context=backend.max_context, max_num_seqs=64)
        return watch, LLM.from_runtime(runtime)

    def _kv_bytes(self, backend: Backend) -> int:
        return backend.bytes_per_block(16) * self.num_rows * (self.num_tokens // 16 + 40)

    def through_sdk(self, backend: Backend, workload: str) -> tuple[float, float, float]:
        """(ms a step beside the forward, CPU ms beside the forward, ms of the forward) of one batch."""
        constrained, sampling = WORKLOADS[workload]
        watch, llm = self.engine(backend)
        spec = JsonSchema(SCHEMA) if constrained else None
        prompts = [f"List some people, please. Row {number}." for number in range(self.num_rows)]
        with llm:
            results = llm.batch(prompts, spec, max_tokens=self.num_tokens, seed=SEED, **sampling)
            end, cpu_end = time.perf_counter(), time.process_time()
        failed = [result for result in results if result.status == "error"]
        if failed:
            raise RuntimeError(f"{len(failed)} rows failed: {failed[0].error!r}")
        if watch.num_full < self.num_tokens // 3:
            raise RuntimeError(f"{workload}: only {watch.num_full} steps had all {self.num_rows} rows in them")
        inside = sum(stop - start for start, stop in watch.spans)
        beside, cpu_beside = end - watch.spans[0][0] - inside, cpu_end - watch.cpu_start - watch.cpu_inside
        per_step = 1e3 / len(watch.spans)
        return beside * per_step, cpu_beside * per_step, inside * per_step

    def phases(self, backend: Backend, workload: str) -> dict[str, float]:
        """ms a step of each phase of the core alone."""
        constrained, sampling = WORKLOADS[workload]
        watch, llm = self.engine(backend)  # its engine makes the requests; a core of our own runs them
        options = CallOptions(sampling={"max_tokens": self.num_tokens, "seed": SEED, **sampling})
        runtime = llm._runtime
        core = EngineCore(watch, self.tokenizer.token_bytes, EngineConfig(kv_cache_memory=self._kv_bytes(backend)))
        for number in range(self.num_rows):
            job = runtime.prepare(f"Row {number}.", JsonSchema(SCHEMA) if constrained else None, options)
            core.add(runtime.start(job).request)
        core.step()
        spent = dict.fromkeys([*PHASES.values(), "rest"], 0.0)
        for method, phase in PHASES.items():
            _time_calls(core, method, phase, spent)
        watch.spans.clear()
        start = time.perf_counter()
        num_steps = 0
        while num_steps < self.num_tokens - 2 and any(isinstance(event, TokensEvent) for event in core.step()):
            num_steps += 1
        inside = sum(stop - start for start, stop in watch.spans)
        total = time.perf_counter() - start
        llm.close()
        spent["batch"] -= inside
        spent["rest"] = total - inside - sum(spent.values())
        return {phase: seconds / num_steps * 1e3 for phase, seconds in spent.items()}


def _time_calls(core: EngineCore, method: str, phase: str, spent: dict[str, float]) -> None:
    inner: Callable[..., Any] = getattr(core, method)

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*arguments)
        finally:
            spent[phase] += time.perf_counter() - start

    setattr(core, method, timed)


def measure(num_rows: int, num_tokens: int, repeats: int, models: list[str]) -> dict[str, float]:
    path = Path(locate_model(None))
    tokenizer = Tokenizer.load(path)
    bench = Bench(tokenizer, num_rows, num_tokens)
    text = script(tokenizer, num_tokens)
    ready = ReadyLogits(len(tokenizer.token_bytes), text, tokenizer.stop_ids)
    backends: dict[str, Backend] = {"ready": ready}
    if "real" in models:
        backends["real"] = ModelRunner.load(path, "cpu")
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for workload in WORKLOADS:
            name = f"b{num_rows}.{workload}"
            for model, backend in backends.items():
                if model == "real" and workload not in REAL_WORKLOADS:
                    continue
                beside, cpu_beside, inside = bench.through_sdk(backend, workload)
                prefix = "" if model == "ready" else "real."
                found.setdefault(f"{prefix}overhead_ms.{name}", []).append(beside)
                if model == "ready":
                    found.setdefault(f"cpu_ms.{name}", []).append(cpu_beside)
                else:
                    found.setdefault(f"real.forward_ms.{name}", []).append(inside)
                    found.setdefault(f"share.{name}", []).append(beside / (beside + inside))
            for phase, milliseconds in bench.phases(ready, workload).items():
                found.setdefault(f"phase_ms.{name}.{phase}", []).append(milliseconds)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--rows", type=int, default=16, help="rows of the batch")
    parser.add_argument("--tokens", type=int, default=192, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="ready,real", help="ready, real or both")
    arguments = parser.parse_args()
    described = environment(
        torch=version("torch"), seed=SEED, rows=arguments.rows, tokens=arguments.tokens, repeats=arguments.repeats
    )
    print(json.dumps(described, indent=2))
    figures = measure(arguments.rows, arguments.tokens, arguments.repeats, arguments.models.split(","))
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    write_report(arguments.out, described, figures, rows)
    for name, value in figures.items():
        print(f"{name:44}{value:10.3f}")


if __name__ == "__main__":
    main()
