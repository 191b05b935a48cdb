"""Two models' keys and values out of one `kv_cache_memory`: the backend of an engine that has a draft model.

A block of the engine's pool is paid for together with one of the draft model's: the engine divides its memory by the
sum of both, and both get that many (engine/speculate/draft_cache.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import Backend, ForwardAhead, ForwardBatch, RowMasks
from safegen.engine.speculate.draft_cache import OwnCache


class WithDraftModel:
    """`Backend` of `target`. draft: the draft model's, which is computed by its drafter alone. cache: its blocks."""

    def __init__(self, target: Backend, draft: Backend, cache: OwnCache) -> None:
        self.vocab_size = target.vocab_size
        self.max_context = target.max_context
        self.takes_masks = target.takes_masks
        self._target = target
        self._draft = draft
        self._cache = cache

    @property
    def forward_ahead(self) -> ForwardAhead | None:
        found: ForwardAhead | None = getattr(self._target, "forward_ahead", None)
        return found

    def bytes_per_block(self, block_size: int) -> int:
        return self._target.bytes_per_block(block_size) + self._draft.bytes_per_block(block_size)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._target.allocate(num_blocks, block_size)
        self._draft.allocate(num_blocks, block_size)
        self._cache.allocate(num_blocks, block_size)

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        return self._target.forward(batch, masks)

    def copy_block(self, source: int, destination: int) -> None:
        self._target.copy_block(source, destination)
