"""What the engine admits. Every refusal is raised in the caller's thread, before anything is queued.

A `Door` is immutable, so `check` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from safegen.engine import capacity
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
