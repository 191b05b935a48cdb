"""A runtime without an engine, for tests of jobs: it answers at once, by prompt and seed alone.

A prompt that holds "@slow" is answered after a moment, by another thread's clock; "@error" is an engine fault; "@long"
is refused as too long; "@blocked" is stopped by a guard.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial
from typing import Any

from safegen.engine.request import Timings, Usage
from safegen.errors import EngineError, GuardBlocked, RequestError
from safegen.limits import Limits
from safegen.llm import LLM
from safegen.result import Result, failed
from safegen.runtime import CallOptions, Runtime, Work
from tests.support.sdk_fakes import ByteTokenizer


class NoEngine:
    def submit(self, request: Any, on_event: Any) -> None:
        raise AssertionError("nothing is computed here")

    def cancel(self, request_id: str) -> None:
        pass

    def close(self, *, drain: bool = False, timeout_s: float | None = 30.0) -> None:
        pass


class FakeRuntime(Runtime):
    """delay_s: sleep before each answer. asked: (prompt, spec, seed) of every row, in order. Workers of
    Ray make the same."""

    def __init__(self, *, delay_s: float = 0.0, fingerprint: str = "fake", remember: bool = True) -> None:
        again = partial(FakeRuntime, delay_s=delay_s, fingerprint=fingerprint, remember=False)
        super().__init__(
            NoEngine(), ByteTokenizer(), Limits(), max_context=4096, max_num_seqs=8, fingerprint=fingerprint,
            reload=again,
        )  # fmt: skip
        self._delay_s = delay_s
        self._remember = remember
        self.asked: list[tuple[Any, Any, int | None]] = []

    def row(self, row: Any, spec: Any, options: CallOptions) -> Work:
        yield from ()
        prompt, row_spec = row
        assert options.params is not None
        if self._remember:
            self.asked.append((prompt, row_spec, options.params.seed))
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._answer(prompt if isinstance(prompt, str) else json.dumps(prompt), row_spec, options.params.seed)

    def _answer(self, text: str, spec: Any, seed: int | None) -> Result[Any]:
        if "@error" in text:
            return failed("error", EngineError("a fault"), "error")
        if "@blocked" in text:
            return failed("blocked", GuardBlocked("stopped", guard="never", rule="word", stage="input"))
        if "@long" in text:
            return failed("refused", RequestError("the prompt has 9,999 tokens", field="prompt"))
        try:
            self.compile(spec)
        except Exception as error:
            return failed("refused", error)
        value = hashlib.sha256(f"{text} {seed}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return Result(value, value, "ok", "stop", Usage(len(text), 3, cached_tokens=1), timings=Timings(0.1, 0.2, 0.3))


def fake_llm(**settings: Any) -> LLM:
    return LLM.from_runtime(FakeRuntime(**settings))
