"""A long-lived LLM keeps its size: neither generations nor ever new schemas add to it once its caches are full."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.limits import Limits
from safegen.llm import LLM
from safegen.types import JsonSchema
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_llm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Forgetful(list[Any]):
    def append(self, batch: Any) -> None:
        """The fake keeps its batches for other tests."""


def resident_kib() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def schema(number: int) -> JsonSchema:
    text = {"type": "string", "pattern": f"^[a-f{number % 7}]{{2,9}}x{number}"}
    properties = {f"p{number}_{place}": text for place in range(6)}
    return JsonSchema({"type": "object", "properties": properties, "required": [f"p{number}_0"]})


CALLS: list[Callable[[LLM, int], object]] = [
    lambda llm, number: llm.generate("go", schema(number), max_tokens=30, show_schema=False, temperature=1.0),
    lambda llm, number: llm.generate(f"go {number}", schema(1), max_tokens=30, show_schema=False, temperature=1.0),
    lambda llm, number: llm.generate(f"go {number}", max_tokens=30, temperature=1.0),
    lambda llm, number: next(llm.stream(f"go {number}", max_tokens=30).__enter__()),
]


@pytest.mark.parametrize("call", CALLS, ids=["new schemas", "new prompts", "free text", "abandoned streams"])
def test_resident_memory_is_flat_once_the_caches_are_full(call: Callable[[LLM, int], object], full: bool) -> None:
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.batches = Forgetful()
    num_calls = 3000 if full else 250
    with make_llm(backend, limits=Limits(max_cached_types=40), kv_cache_memory=8 * 16 * 300) as llm:
        for number in range(num_calls):
            call(llm, number)
        before = resident_kib()
        for number in range(num_calls, 2 * num_calls):
            call(llm, number)
        assert (resident_kib() - before) / num_calls < 6, "KiB kept a call"
