"""Whatever requests come to through the public API, the block pool is whole and empty afterwards.

A small pool, so that sequences preempt each other; rows that finish, are cut, cancelled from another thread, left in
the middle of a stream, dropped without leaving it, refused, end by a crashing validator, or by a fault of the model.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, field_validator

from safegen.async_llm import AsyncLLM
from safegen.engine.backend import ForwardBatch
from safegen.errors import SafegenError
from safegen.llm import LLM
from safegen.runtime import Runtime
from safegen.types import Choice, JsonSchema, Regex
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_runtime


class Crashing(BaseModel):
    value: Literal[1, 2]

    @field_validator("value")
    @classmethod
    def crash(cls, value: int) -> int:
        raise ZeroDivisionError


TYPES: list[Any] = [
    None, bool, list[int], Crashing, Regex("[a-f]{30}"), Choice(["yes", "no"], probabilities=True),
    JsonSchema({"type": "object"}), JsonSchema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    JsonSchema({"type": "nonsense"}), Regex("x{500}"),
]  # fmt: skip


class Faulty(FakeBackend):
    """Now and then a forward fails, or gives NaN."""

    def __init__(self, seed: int) -> None:
        super().__init__(len(TOKEN_BYTES), MAX_CONTEXT)
        self._random = random.Random(seed)
        self.on_forward = self._fail
        self.shape_logits = self._spoil

    def _fail(self, batch: ForwardBatch) -> None:
        time.sleep(0.0005)
        if self._random.random() < 0.01:
            raise RuntimeError("device lost")

    def _spoil(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(logits) and self._random.random() < 0.01:
            logits[self._random.randrange(len(logits))] = np.nan
        return logits


def caller(runtime: Runtime, rng: random.Random) -> None:
    """Some calls of one thread."""
    llm = LLM.from_runtime(runtime)
    for _ in range(12):
        spec = rng.choice(TYPES)
        prompt = "".join(rng.choices("abcdefgh ", k=rng.randrange(2, 60))) + "!"
        options: dict[str, Any] = {"max_tokens": rng.choice([1, 60, 120]), "temperature": 1.0, "show_schema": False}
        kind = rng.randrange(6)
        try:
            if kind == 0:
                llm.generate(prompt, spec, n=rng.choice([1, 3]), **options)
            elif kind == 1:
                llm.batch([(prompt, rng.choice(TYPES)) for _ in range(8)], **options)
            elif kind == 2:
                with llm.stream(prompt, spec, **options) as events:
                    for _ in zip(range(rng.randrange(4)), events):
                        pass
            elif kind == 3:
                next(llm.stream(prompt, spec, **options).__enter__())
            elif kind == 4:
                asyncio.run(cancelled(runtime, prompt, spec, options, rng.random() / 50))
            else:
                llm.batch([prompt, "", "x" * MAX_CONTEXT, 7, (prompt, Crashing)], **options)
        except (SafegenError, StopIteration, TimeoutError):
            pass


async def cancelled(runtime: Runtime, prompt: str, spec: Any, options: dict[str, Any], after_s: float) -> None:
    llm = AsyncLLM.from_runtime(runtime)
    tasks = [asyncio.create_task(llm.generate(prompt, spec, **options)) for _ in range(3)]
    await asyncio.sleep(after_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(4))
def test_every_count_is_back_at_zero_after_any_mix_of_endings(seed: int, full: bool) -> None:
    for number in range(20 if full else 1):
        runtime = make_runtime(
            Faulty(seed * 100 + number), kv_cache_memory=8 * 16 * 16, max_num_batched_tokens=40, max_num_seqs=12
        )
        threads = [
            threading.Thread(target=caller, args=(runtime, random.Random(seed * 1000 + number * 10 + caller_number)))
            for caller_number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a call never came back"
        check_empty(runtime)
        runtime.close()


def check_empty(runtime: Runtime) -> None:
    engine: Any = runtime._engine
    deadline = time.monotonic() + 20
    while (stats := engine.stats()).running or stats.waiting or engine._loop._clients:  # told after the step
        assert time.monotonic() < deadline, (stats, engine._loop._clients)
        time.sleep(0.01)
    assert stats.free_blocks == stats.num_blocks == 16
    assert stats.finished_sequences > 20 and stats.preemptions > 0
    core = engine._loop.core
    core.scheduler.pool.check_invariants([])
    assert not core.has_work and not engine._loop._clients and not list(core.scheduler.sequences())
