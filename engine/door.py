"""What the engine admits. Every refusal is raised in the caller's thread, before anything is queued.

A `Door` is immutable, so `check` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from safegen.engine import capacity
from safegen.engine.backend import Backend, ProfiledBackend
from safegen.engine.config import EngineConfig
from safegen.engine.request import Request
from safegen.errors import RequestError


@dataclass(frozen=True, slots=True)
class Door:
    """vocab_size: ids the model knows. max_context: tokens of prompt and output together. num_blocks: of the pool."""

    vocab_size: int
    max_context: int
    block_size: int
    num_blocks: int

    def max_tokens(self, request: Request) -> int:
        """Output tokens that a checked request may take."""
        return capacity.effective_max_tokens(
            request.params.max_tokens,
            len(request.prompt_ids),
            self.max_context,
            self.num_blocks * self.block_size,
        )

    def check(self, request: Request) -> None:
        """Raises RequestError for what is wrong with the request, CapacityError for what can never fit."""
        ids = request.prompt_ids
        if not ids:
            raise RequestError("the prompt is empty: give at least one token", field="prompt_ids", value=ids)
        self._check_ids(ids, "prompt_ids")
        self._check_ids(request.params.logit_bias, "logit_bias")
        if len(ids) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; a context of {self.max_context} must hold it and at least one "
                f"token of output. Fix: shorten the prompt.",
                field="prompt_ids",
                value=len(ids),
            )
        capacity.check_fits(len(ids), self.max_tokens(request), self.block_size, self.num_blocks)

    def _check_ids(self, ids: Collection[int], field: str) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise RequestError(
                f"{field} holds token id {wrong!r}; this model's ids are 0 .. {self.vocab_size - 1}",
                field=field,
                value=wrong,
            )


def open_door(backend: Backend, num_tokens: int, config: EngineConfig) -> Door:
    """The door of an engine over `backend` whose tokenizer has num_tokens; sizes the block pool.

    Raises RequestError for settings that do not fit the backend, CapacityError for memory that holds no block.
    """
    if not 0 < num_tokens <= backend.vocab_size:
        raise RequestError(
            f"token_bytes names {num_tokens} tokens, the model has logits for {backend.vocab_size}. "
            f"Fix: use the model's own tokenizer, or cut the list.",
            field="token_bytes",
            value=num_tokens,
        )
    max_context = config.max_context or backend.max_context
    if max_context > backend.max_context:
        raise RequestError(
            f"max_context={max_context} is above the model's {backend.max_context}. Fix: lower it or leave it out.",
            field="max_context",
            value=max_context,
        )
    block_bytes = backend.bytes_per_block(config.block_size)
    memory_bytes = config.kv_cache_memory
    if memory_bytes is None and isinstance(backend, ProfiledBackend):
        memory_bytes = backend.kv_cache_bytes(config.block_size, config.gpu_memory_utilization)
    elif memory_bytes is None:
        memory_bytes = capacity.default_kv_cache_bytes(block_bytes, config.block_size, config.max_num_seqs, max_context)
    return Door(backend.vocab_size, max_context, config.block_size, capacity.num_blocks(memory_bytes, block_bytes))
