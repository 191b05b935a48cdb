"""Engines whose drafter is a model: a second fake one with blocks of its own, or the fake one itself, shared blocks and
all. Fakes show every mistake in what is cached where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.core import EngineCore
from safegen.engine.speculate.draft_backend import WithDraftModel
from safegen.engine.speculate.draft_cache import OwnCache, SharedCache
from safegen.engine.speculate.model import ModelDrafter
from safegen.engine.speculate.speculator import Speculator
from tests.support.engine_driver import TOKEN_BYTES, make_core
from tests.support.fake_backend import FAKE_VOCAB, FakeBackend

Kind = Literal["model", "self"]
KINDS: tuple[Kind, ...] = ("model", "self")
Shape = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def as_it_is(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits


def noised(scale: float) -> Shape:
    """Other logits, always the same for the same ones."""

    def shape(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        turned = np.sin(997.0 * logits.astype(np.float64)).astype(np.float32)
        return np.asarray(logits + np.float32(scale) * turned, dtype=np.float32)

    return shape


class ModelCore:
    """core: the engine. draft: the second backend, or for "self" the one there is. cache: of the second one."""

    def __init__(
        self,
        kind: Kind,
        shape: Shape = as_it_is,
        *,
        num_blocks: int = 64,
        max_tokens_a_draft: int = 5,
        adaptive: bool = False,
        max_context: int = 512,
        max_tokens_a_forward: int = 2048,
        token_bytes: list[bytes | None] = TOKEN_BYTES,
        backend: FakeBackend | None = None,
        **settings: Any,
    ) -> None:
        self.backend = backend or FakeBackend()
        self.draft = self.backend if kind == "self" else FakeBackend(max_context=max_context)
        self.cache = OwnCache(max_context)
        self.num_drafting, self.is_drafting = 0, False  # forwards
        self.now_s = 0.0
        drafter = ModelDrafter(
            kind,
            self._forward_of(shape),
            SharedCache() if kind == "self" else self.cache,
            FAKE_VOCAB,
            max_tokens_a_forward=max_tokens_a_forward,
            least_reach=0.0,  # the fakes are sure of nothing
        )
        self.drafter = drafter
        seam: Any = self.backend if kind == "self" else _Paired(self.backend, self.draft, self.cache)
        speculator = Speculator(
            [drafter], max_tokens_a_draft=max_tokens_a_draft, adaptive=adaptive, clock=lambda: self.now_s
        )
        if kind == "model":
            self.draft.check_writes = self._check_writes
        self.core: EngineCore = make_core(
            seam, num_blocks=num_blocks, speculator=speculator, token_bytes=token_bytes, **settings
        )

    def takes(self, target_s: float, draft_s: float) -> None:
        """Time goes by in forwards alone, so much in each."""

        def pass_time(batch: ForwardBatch) -> None:
            self.now_s += draft_s if self.is_drafting else target_s

        self.backend.on_forward = self.draft.on_forward = pass_time
        self.core._clock = lambda: self.now_s

    def _forward_of(self, shape: Shape) -> Callable[[ForwardBatch, RowMasks | None], NDArray[np.float32]]:
        def forward(batch: ForwardBatch, masks: RowMasks | None) -> NDArray[np.float32]:
            self.num_drafting, self.is_drafting = self.num_drafting + 1, True
            try:
                return shape(self.draft.forward(batch, masks))
            finally:
                self.is_drafting = False

        return forward

    def _check_writes(self, block_ids: set[int]) -> None:
        pool = self.cache._pool
        assert all(pool.is_plain(block_id) for block_id in block_ids), "a block of the draft model that others use"

    @property
    def has_all_blocks(self) -> bool:
        pool = self.cache._pool
        pool.check_invariants([held.block_table for held in self.cache._held.values()])
        return pool.num_free == pool.num_blocks and not self.cache._held


class _Paired(WithDraftModel):
    """Sizes the pools by the target alone, as the tests name its blocks; hands on what the driver hangs on it."""

    def __init__(self, target: FakeBackend, draft: FakeBackend, cache: OwnCache) -> None:
        super().__init__(target, draft, cache)
        self._fake = target

    def bytes_per_block(self, block_size: int) -> int:
        return self._fake.bytes_per_block(block_size)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "check_writes":
            self._fake.check_writes = value
