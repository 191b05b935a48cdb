"""safegen through its public API, so that scheduling, sampling, detokenizing, events and validation are in its figures.

Only the logits of the quality figures come from below it: from the backend, since the API has no call for them.
Prefix caching is off, since the same prompts come again in every repeat. The time inside the backend's forward is
noted too, by wrapping it: the rest of a run is what the engine itself costs.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import version
from benchmarks.common.cpu_workload import LOADED_SEQUENCES, PREFILL_TOKENS, Prompt, Workload
from benchmarks.peers.base import CpuEngine, Generated

_LOADED_TOKENS = 160  # decoded by the sequences beside which a request's first token is timed
_BLOCK_SIZE = 16
_ROOMY_KV_BYTES = 512 << 20


class ForwardClock:
    """Seconds spent inside the forward of an engine's backend, within the `with` block; where several steps are
    computed in one call, the draws between them count as its part."""

    def __init__(self, core: Any) -> None:
        self.seconds = 0.0
        self._places = [(core._backend, core._backend.forward), (core._ahead, core._ahead.forward)]

    def __enter__(self) -> ForwardClock:
        for owner, forward in self._places:
            owner.forward = functools.partial(self._timed, forward)
        return self

    def __exit__(self, *exc: object) -> None:
        for owner, forward in self._places:
            owner.forward = forward

    def _timed(self, forward: Any, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return forward(*arguments, **named)
        finally:
            self.seconds += time.perf_counter() - start


class SafegenEngine:
    """setting: the kernels."""

    def __init__(self, model: str, workload: Workload) -> None:
        self._model, self._workload = model, workload
        self._llm: Any = None
        self._compiled: Any = None

    def settings(self) -> list[str]:
        return ["cpu"]

    def versions(self) -> dict[str, Any]:
        from safegen.kernels import cpu

        return {
            "safegen": "this working tree",
            "torch": version("torch"),
            "isa": cpu.isa(),
            "threads": cpu.num_threads(),
        }

    def imports(self) -> None:
        import safegen.engine.engine
        import safegen.engine.runner
        import safegen.engine.tokenizer
        import safegen.grammars.json_schema
        import safegen.grammars.matcher
        import safegen.kernels.cpu
        import safegen.llm
        import safegen.validation.schema_validator  # noqa: F401

    def load(self, setting: str, kv_bytes: int | None) -> None:
        from safegen.llm import LLM

        self._llm = LLM(
            self._model,
            kernels=setting,  # type: ignore[arg-type]
            kv_cache_memory=_ROOMY_KV_BYTES if kv_bytes is None else kv_bytes,
            block_size=_BLOCK_SIZE,
            enable_prefix_caching=False,
        )

    def close(self) -> None:
        self._llm.close()
        self._llm = self._compiled = None

    def prefill(self) -> float:
        prompt = self._workload.prefill
        start = time.perf_counter()
        result = self._llm.generate(prompt.text, max_tokens=1, show_schema=False)
        seconds = time.perf_counter() - start
        if result.usage.prompt_tokens != PREFILL_TOKENS:
            raise ValueError(f"the prompt has {result.usage.prompt_tokens} tokens, the peers' has {PREFILL_TOKENS}")
        return seconds

    def decode(self, num_sequences: int) -> Generated:
        count = self._workload.steps + 1
        return self._batch(self._workload.decode[:num_sequences], None, max_tokens=count, min_tokens=count)

    def json(self, num_sequences: int) -> Generated:
        rows = self._workload.json[:num_sequences]
        return self._batch(rows, self._type(), max_tokens=self._workload.json_max_tokens)

    def _type(self) -> Any:
        """The schema, compiled and used once before anything is timed (the peers' compiling is not timed either)."""
        if self._compiled is None:
            from safegen.types import JsonSchema

            self._compiled = self._llm.compile(JsonSchema(self._workload.schema))
            prompt = self._workload.json[-1].text
            self._llm.generate(prompt, self._compiled, max_tokens=self._workload.json_max_tokens, show_schema=False)
        return self._compiled

    def _batch(self, prompts: Sequence[Prompt], spec: Any, **sampling: Any) -> Generated:
        with ForwardClock(self._core) as clock:
            start = time.perf_counter()
            results = self._llm.batch([prompt.text for prompt in prompts], spec, show_schema=False, **sampling)
            total_s = time.perf_counter() - start
        for prompt, result in zip(prompts, results):
            if result.status not in ("ok", "truncated") or result.usage.prompt_tokens != len(prompt.ids):
                raise ValueError(f"{prompt.text!r}: {result.status}, {result.usage}, {result.error!r}")
        # From the call to the first token of the last row that got one; measured from each row's own submission, so
        # what is left is, if anything, longer than the decoding.
        first_s = max(result.timings.first_token_ms for result in results) / 1e3
        tokens = sum(result.usage.completion_tokens for result in results) - len(results)
        valid = sum(_is_json(result.text) for result in results) if spec is not None else 0
        forward_share = min(1.0, clock.seconds / total_s)
        return Generated(tokens, total_s - first_s, valid, {"outside_forward_pct": 100 * (1 - forward_share)})

    def ttft(self) -> float:
        stats = self._llm._runtime._engine.stats
        output_before = stats().output_tokens
        others = threading.Thread(target=self._occupy)
        others.start()
        while stats().output_tokens < output_before + 4 * LOADED_SEQUENCES:
            time.sleep(0.001)
        start = time.perf_counter()
        with self._llm.stream(self._workload.prefill.text, max_tokens=4, show_schema=False) as events:
            next(events)
            seconds = time.perf_counter() - start
        others.join()
        return seconds

    def _occupy(self) -> None:
        rows = [prompt.text for prompt in self._workload.decode[:LOADED_SEQUENCES]]
        self._llm.batch(rows, max_tokens=_LOADED_TOKENS, min_tokens=_LOADED_TOKENS, show_schema=False)

    @property
    def _core(self) -> Any:
        return self._llm._runtime._engine._loop.core

    def logits(self, setting: str) -> Iterator[NDArray[np.float32]]:
        """setting: the kernels, and options of the runner, such as "cpu,kv_cache_dtype=int8"."""
        from safegen.engine.runner import ModelRunner

        kernels, *options = setting.split(",")
        named: dict[str, Any] = dict(option.split("=") for option in options)
        runner = ModelRunner.load(self._model, kernels, **named)
        runner.allocate(-(-max(map(len, self._workload.windows)) // _BLOCK_SIZE), _BLOCK_SIZE)
        for window in self._workload.windows:
            yield np.array(runner.forward(whole_prompt(window), None))


def whole_prompt(ids: Sequence[int]) -> Any:
    """A step that computes a whole sequence, in the first blocks of the pool, and wants all of its logits."""
    from safegen.engine.backend import ForwardBatch

    count = len(ids)
    places = np.arange(count, dtype=np.int32)
    return ForwardBatch(
        step_id=0,
        ids=np.array(ids, dtype=np.int32),
        position=places,
        slot=places,
        query_start=np.array([0, count], dtype=np.int32),
        context_len=np.array([count], dtype=np.int32),
        block_table=np.arange(-(-count // _BLOCK_SIZE), dtype=np.int32)[None],
        sampled_rows=places,
        block_size=_BLOCK_SIZE,
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def make_engine(model: str, workload: Workload) -> CpuEngine:
    return SafegenEngine(model, workload)
