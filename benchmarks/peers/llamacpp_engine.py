"""llama.cpp at its best: one `llama_decode` a step for all sequences, on 1 and 2 threads, flash attention on and off.

Nothing of a server is in its figures: no scheduler, no detokenizing, no events; sequences start together and each one
leaves the batch when it ends. `ttft` is what a server could reach at best: a request comes in the middle of a step of
the others on average, and its whole prompt goes into the next step together with their tokens.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import version
from benchmarks.common.cpu_workload import LOADED_SEQUENCES, Prompt, Workload
from benchmarks.peers.base import CpuEngine, Generated, usable_cpus

_LOADED_STEPS = 16


class LlamaCppEngine:
    """setting: "t2_fa1" is two threads and flash attention."""

    def __init__(self, model: str, workload: Workload) -> None:
        self._path, self._workload = model, workload

    def settings(self) -> list[str]:
        threads = sorted({1, min(2, usable_cpus())}, reverse=True)
        return [f"t{count}_fa{flash}" for count, flash in itertools.product(threads, (1, 0))]

    def versions(self) -> dict[str, Any]:
        import llama_cpp

        return {
            "llama_cpp_python": version("llama-cpp-python"),
            "system_info": llama_cpp.llama_print_system_info().decode(),
        }

    def imports(self) -> None:
        import benchmarks.peers.llamacpp_api  # noqa: F401

    def load(self, setting: str, kv_bytes: int | None) -> None:
        from benchmarks.peers.llamacpp_api import Context, Model

        threads, flash = setting.removeprefix("t").split("_fa")
        self._options: dict[str, Any] = {"threads": int(threads), "flash": flash == "1"}
        self._model = Model(self._path)
        self._context: Context | None = None
        self._shape = (0, 0)
        self._is_shared = kv_bytes is not None
        if kv_bytes is not None:
            num_tokens = kv_bytes // self._model.kv_bytes_a_token
            self._context = Context(self._model, LOADED_SEQUENCES, num_tokens, shared=True, **self._options)
        else:
            self._made(1, 1024)

    def close(self) -> None:
        if self._context is not None:
            self._context.free()
        self._model.free()

    def _made(self, num_sequences: int, tokens_each: int) -> Any:
        """An empty context of that shape, or the one of fixed size; the one before is given back."""
        from benchmarks.peers.llamacpp_api import Context

        if not self._is_shared and self._shape != (num_sequences, tokens_each):
            if self._context is not None:
                self._context.free()
            self._context = Context(self._model, num_sequences, tokens_each, shared=False, **self._options)
            self._shape = (num_sequences, tokens_each)
        assert self._context is not None
        self._context.clear()
        return self._context

    def prefill(self) -> float:
        context, ids = self._made(1, 1024), self._workload.prefill.ids
        start = time.perf_counter()
        context.compute(ids, range(len(ids)), [0] * len(ids), [len(ids) - 1]).argmax()
        return time.perf_counter() - start

    def decode(self, num_sequences: int) -> Generated:
        context = self._made(num_sequences, 256)
        tokens, lengths = self._start(context, self._workload.decode[:num_sequences])
        start = time.perf_counter()
        for _ in range(self._workload.steps):
            tokens = self._step(context, tokens, lengths)
        seconds = time.perf_counter() - start
        return Generated(self._workload.steps * num_sequences, seconds)

    def _start(self, context: Any, prompts: Sequence[Prompt]) -> tuple[list[int], list[int]]:
        """The prompts' first tokens, and how many tokens each sequence has computed."""
        tokens = []
        for row, prompt in enumerate(prompts):
            count = len(prompt.ids)
            logits = context.compute(prompt.ids, range(count), [row] * count, [count - 1])
            tokens.append(int(logits[0].argmax()))
        return tokens, [len(prompt.ids) for prompt in prompts]

    def _step(self, context: Any, tokens: list[int], lengths: list[int]) -> list[int]:
        rows = range(len(tokens))
        logits = context.compute(tokens, lengths, rows, rows)
        lengths[:] = [length + 1 for length in lengths]
        return [int(token) for token in logits.argmax(axis=1)]

    def json(self, num_sequences: int) -> Generated:
        from benchmarks.peers.llamacpp_api import Grammar

        text = json.dumps(self._workload.schema)
        grammars = [Grammar(self._model, text) for _ in range(num_sequences)]
        context = self._made(num_sequences, 512)
        prompts = self._workload.json[:num_sequences]
        outputs: list[list[int]] = []
        for row, prompt in enumerate(prompts):
            count = len(prompt.ids)
            logits = context.compute(prompt.ids, range(count), [row] * count, [count - 1])
            outputs.append([grammars[row].take(logits[0])])
        start = time.perf_counter()
        self._finish(context, grammars, prompts, outputs)
        seconds = time.perf_counter() - start
        for grammar in grammars:
            grammar.free()
        num_tokens = sum(len(output) for output in outputs) - num_sequences
        return Generated(num_tokens, seconds, sum(self._is_json(output) for output in outputs))

    def _finish(self, context: Any, grammars: list[Any], prompts: Sequence[Prompt], outputs: list[list[int]]) -> None:
        live = list(range(len(outputs)))
        while live:
            positions = [len(prompts[row].ids) + len(outputs[row]) - 1 for row in live]
            logits = context.compute([outputs[row][-1] for row in live], positions, live, range(len(live)))
            still = []
            for place, row in enumerate(live):
                token = grammars[row].take(logits[place])
                if not self._model.is_end(token):
                    outputs[row].append(token)
                    if len(outputs[row]) < self._workload.json_max_tokens:
                        still.append(row)
            live = still

    def _is_json(self, output: Sequence[int]) -> bool:
        from benchmarks.peers.llamacpp_api import text_of

        try:
            json.loads(text_of(self._model, output))
        except ValueError:
            return False
        return True

    def ttft(self) -> float:
        context = self._made(LOADED_SEQUENCES + 1, 768)
        tokens, lengths = self._start(context, self._workload.decode[:LOADED_SEQUENCES])
        start = time.perf_counter()
        for _ in range(_LOADED_STEPS):
            tokens = self._step(context, tokens, lengths)
        half_step_s = (time.perf_counter() - start) / _LOADED_STEPS / 2
        ids = self._workload.prefill.ids
        rows = [*range(LOADED_SEQUENCES), *([LOADED_SEQUENCES] * len(ids))]
        start = time.perf_counter()
        wanted = [*range(LOADED_SEQUENCES), len(rows) - 1]
        context.compute([*tokens, *ids], [*lengths, *range(len(ids))], rows, wanted).argmax(axis=1)
        return half_step_s + time.perf_counter() - start

    def logits(self, setting: str) -> Iterator[NDArray[np.float32]]:
        self.load(setting, None)
        for window in self._workload.windows:
            context, count = self._made(1, 1024), len(window)
            yield context.compute(window, range(count), [0] * count, range(count)).copy()
        self.close()


def prepare(source: str, destination: str) -> None:
    from benchmarks.peers.llamacpp_api import requantize

    requantize(Path(source), Path(destination))


def make_engine(model: str, workload: Workload) -> CpuEngine:
    return LlamaCppEngine(model, workload)
