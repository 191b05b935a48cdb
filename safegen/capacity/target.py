"""What a plan is asked for, and under which settings. Checked at construction: RequestError names field and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from safegen.errors import RequestError


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for. prompt_tokens, output_tokens: of a usual request. context: tokens of the longest one, prompt
    and answer. cached_tokens: of a prompt, found in the prefix cache. concurrency: requests in flight; None is as many
    as make sense. ttft_ms, tpot_ms: at most; None does not matter. cost_per_hour: of the device.
    tokens_per_forward: what speculation gives, as measured (Usage: completion_tokens / forwards)."""

    prompt_tokens: int = 512
    output_tokens: int = 128
    context: int | None = None
    cached_tokens: int = 0
    concurrency: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    cost_per_hour: float | None = None
    tokens_per_forward: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("cached_tokens", 0)):
            self._number(name, least, whole=True)
        for name in ("context", "concurrency"):
            if getattr(self, name) is not None:
                self._number(name, 1, whole=True)
        for name in ("ttft_ms", "tpot_ms", "cost_per_hour"):
            if getattr(self, name) is not None:
                self._number(name, 0)
        self._number("tokens_per_forward", 1)
        if self.cached_tokens >= self.prompt_tokens:
            self._refuse("cached_tokens", f"below prompt_tokens={self.prompt_tokens}: the last one is always computed")
        if self.context is not None and self.context < self.prompt_tokens + self.output_tokens:
            self._refuse("context", f"at least prompt_tokens + output_tokens = {self.request_tokens}")

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def longest_tokens(self) -> int:
        return self.request_tokens if self.context is None else self.context

    def _number(self, name: str, least: int, *, whole: bool = False) -> None:
        value = getattr(self, name)
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least or value == float("inf"):
            self._refuse(name, f"{'an integer' if whole else 'a number'}, at least {least}")

    def _refuse(self, name: str, due: str) -> None:
        value = getattr(self, name)
        raise RequestError(f"{name}={value!r} must be {due}", field=name, value=value)


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `LLM` that a plan depends on."""

    quantization: Literal["int8", "int4"] | None = None
    kv_cache_dtype: Literal["auto", "float16", "float32", "int8"] = "auto"
    kv_cache_memory: int | None = None
    block_size: int = 16
    max_num_batched_tokens: int = 2048

    def __post_init__(self) -> None:
        from safegen.engine.config import EngineConfig

        if self.quantization not in (None, "int8", "int4"):
            raise RequestError(
                f"quantization={self.quantization!r} is unknown; choose None, 'int8' or 'int4'",
                field="quantization", value=self.quantization,
            )  # fmt: skip
        EngineConfig(self.kv_cache_memory, self.block_size, 1, self.max_num_batched_tokens, True,
                     kv_cache_dtype=self.kv_cache_dtype)  # fmt: skip

    @property
    def kv_dtype_bytes(self) -> int:
        return {"int8": 1, "float32": 4}.get(self.kv_cache_dtype, 2)


__all__ = ["Options", "Target"]
