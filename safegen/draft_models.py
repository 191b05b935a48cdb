"""The drafters that are models: a second checkpoint beside the LLM's own, and the first layers of its own.

A draft model is loaded as the model is, with the same kernels and kinds of cache, and shares its cache memory (see
safegen.engine.speculate.draft_cache). It must have the same tokens.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from safegen.speculation import Speculation

if TYPE_CHECKING:
    from safegen.engine.backend import Backend
    from safegen.engine.config import KvCacheDtype
    from safegen.engine.runner import ModelRunner
    from safegen.engine.speculate.base import Drafter
    from safegen.engine.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class DraftModels:
    """What it takes to make them. path: of the LLM's own model, whose runner and tokenizer they go with."""

    def __init__(
        self,
        path: Path,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        *,
        kernels: str,
        kv_cache_dtype: KvCacheDtype,
        quantization: Literal["int8", "int4"] | None,
        enable_prefix_caching: bool,
        max_num_batched_tokens: int,
    ) -> None:
        self._path = path
        self._runner = runner
        self._tokenizer = tokenizer
        self._kernels = kernels
        self._kv_cache_dtype = kv_cache_dtype
        self._quantization = quantization
        self._enable_prefix_caching = enable_prefix_caching
        self._max_num_batched_tokens = max_num_batched_tokens

    def make(self, speculation: Speculation) -> tuple[Backend, list[Drafter]]:
        """The engine's backend, and the drafters among "model" and "self" that it is to have. Raises ModelLoadError."""
        backend: Backend = self._runner
        made: list[Drafter] = []
        if speculation.draft_model is not None:
            backend, drafter = self._second(speculation.draft_model)
            made.append(drafter)
        if speculation.self_draft:
            made.append(self._first_layers())
        return backend, made

    def _second(self, name: str | os.PathLike[str]) -> tuple[Backend, Drafter]:
        from safegen.engine.locate import locate_model
        from safegen.engine.runner import ModelRunner
        from safegen.engine.speculate.draft_backend import WithDraftModel
        from safegen.engine.speculate.draft_cache import OwnCache
        from safegen.engine.speculate.model import ModelDrafter
        from safegen.engine.speculate.vocabulary import check_same_vocabulary
        from safegen.engine.tokenizer import Tokenizer

        path = Path(locate_model(os.fspath(name)))
        runner = ModelRunner.load(path, self._kernels, self._kv_cache_dtype, self._quantization)
        tokens = Tokenizer.load(path, model_vocab_size=runner.vocab_size).token_bytes
        check_same_vocabulary(self._tokenizer.token_bytes, tokens, str(self._path), str(path))
        cache = OwnCache(runner.max_context, enable_prefix_caching=self._enable_prefix_caching)
        limit = self._max_num_batched_tokens
        drafter = ModelDrafter("model", runner.forward, cache, len(tokens), max_tokens_a_forward=limit)
        return WithDraftModel(self._runner, runner, cache), drafter

    def _first_layers(self) -> Drafter:
        from safegen.engine.speculate.depth import SAMPLE_TEXT, pick_depth
        from safegen.engine.speculate.draft_cache import SharedCache
        from safegen.engine.speculate.model import ModelDrafter

        depths = pick_depth(self._runner, self._tokenizer.encode(SAMPLE_TEXT))
        _log.info("depths for drafts of the model itself, the best first: %s", depths)
        forward = self._runner.early_exit(depths[0].num_layers)
        return ModelDrafter("self", forward, SharedCache(), len(self._tokenizer.token_bytes))
