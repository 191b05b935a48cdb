"""The engine's settings, checked once, at construction. This module imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from safegen.errors import RequestError

KvCacheDtype = Literal["auto", "float16", "float32", "int8"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Every limit of the engine. RequestError names the field, the value and the fix.

    kv_cache_memory: bytes of the KV pool; None takes a modest share of what is free (engine/capacity.py), on a GPU what
    is left of `gpu_memory_utilization` of the whole device (engine/gpu/memory.py).
    kv_cache_dtype: how keys and values are kept; "auto" is what suits the kernels (engine/kv_cache.py).
    block_size: tokens a KV block. max_num_seqs: sequences that run at once. max_num_batched_tokens: tokens computed a
    step, at least max_num_seqs, so that every running sequence advances in every step. enable_prefix_caching: reuse
    blocks of equal prefixes. max_queue: requests that may wait before `submit` refuses. max_context: tokens of prompt
    and output together; None is what the model allows. max_retracts: how often one sequence may take output back that
    failed a check of its constraint, 0 for never; then it ends with RetractsExhausted.
    """

    kv_cache_memory: int | None = None
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    max_queue: int = 4096
    max_context: int | None = None
    max_retracts: int = 64
    kv_cache_dtype: KvCacheDtype = "auto"
    gpu_memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_queue"):
            self._integer(name, 1)
        for name in ("kv_cache_memory", "max_context"):
            if getattr(self, name) is not None:
                self._integer(name, 1)
        self._integer("max_retracts", 0)
        if not isinstance(self.enable_prefix_caching, bool):
            raise RequestError(
                f"enable_prefix_caching must be True or False, got {self.enable_prefix_caching!r}",
                field="enable_prefix_caching",
                value=self.enable_prefix_caching,
            )
        share: object = self.gpu_memory_utilization
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
            raise RequestError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}",
                field="gpu_memory_utilization",
                value=share,
            )
        choices = get_args(KvCacheDtype)
        if self.kv_cache_dtype not in choices:
            raise RequestError(
                f"kv_cache_dtype={self.kv_cache_dtype!r} is unknown; choose {', '.join(map(repr, choices))}",
                field="kv_cache_dtype",
                value=self.kv_cache_dtype,
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise RequestError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}: some "
                f"sequences would never advance. Fix: raise the first or lower the second.",
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
            )

    def _integer(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise RequestError(f"{name} must be an integer >= {low}, got {value!r}", field=name, value=value)
