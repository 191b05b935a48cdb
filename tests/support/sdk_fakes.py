"""A small model for the SDK's tests: a byte tokenizer with a few longer tokens, and the engine's fake backend.

The backend's logits are pseudo-random and know nothing of what is legal, so what comes out well-formed does so because
of the constraint. `ScriptedBackend` prefers to spell a given text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.config import EngineConfig
from safegen.engine.engine import Engine
from safegen.engine.speculate.speculator import Speculator
from safegen.limits import Limits
from safegen.llm import LLM
from safegen.runtime import Runtime
from safegen.speculation import OFF, Speculation
from tests.support.fake_backend import FakeBackend

STOP, PAD = 256, 257
LONGER = ["ab", "abc", "true", "false", '{"', '":', "pos", "neg", "itive", "10", "é", "€€"]
TOKEN_BYTES: list[bytes | None] = [
    *(bytes([value]) for value in range(256)),
    None,
    None,
    *(text.encode() for text in LONGER),
]
MAX_CONTEXT = 2048


class ByteTokenizer:
    """Every byte is a token; the longer tokens are never made from text, only sampled."""

    token_bytes: Sequence[bytes | None] = TOKEN_BYTES
    stop_ids = frozenset({STOP})
    chat_template: str | None = "fake"
    control_tokens: Mapping[str, int] = MappingProxyType({})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> list[int]:
        return list("".join(f"{message['role']}: {message['content']}\n" for message in messages).encode())


class TellingBackend(FakeBackend):
    """Knows the tokens of each sequence, and lets a subclass say what it prefers after them."""

    def __init__(self) -> None:
        super().__init__(len(TOKEN_BYTES), MAX_CONTEXT)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        super().allocate(num_blocks, block_size)
        self._ids = np.zeros(num_blocks * block_size, dtype=np.int64)

    def copy_block(self, source: int, destination: int) -> None:
        super().copy_block(source, destination)
        size = self._block_size
        self._ids[destination * size : (destination + 1) * size] = self._ids[source * size : (source + 1) * size]

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        logits = super().forward(batch).copy()
        self._ids[batch.slot] = batch.ids
        for row, place in enumerate(batch.sampled_rows.tolist()):
            number = int(np.searchsorted(batch.query_start, place, side="right")) - 1
            ids = self._ids[self._slots_of(batch, number)[: int(batch.position[place]) + 1]].tolist()
            self.prefer(logits[row], ids)
        return logits

    def prefer(self, row: NDArray[np.float32], ids: list[int]) -> None:
        """Change the logits of what follows ids, in place."""
        raise NotImplementedError


class ScriptedBackend(TellingBackend):
    """Prefers to spell `text` (without newlines) byte by byte after the newline that ends the prompt, then to stop."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._script = [*text.encode(), STOP]

    def prefer(self, row: NDArray[np.float32], ids: list[int]) -> None:
        num_output = ids[::-1].index(ord("\n"))
        row[self._script[min(num_output, len(self._script) - 1)]] += 100.0


def make_runtime(
    backend: FakeBackend | None = None,
    *,
    limits: Limits | None = None,
    speculator: Speculator | None = None,
    speculation: Speculation = OFF,
    guards: Any = (),
    runs_tables: bool = False,
    **settings: Any,
) -> Runtime:
    limits = limits or Limits()
    backend = backend or FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    config = EngineConfig(**{"max_num_seqs": 8, "max_queue": limits.max_queue, **settings})
    engine = Engine(backend, TOKEN_BYTES, config, speculator)
    return Runtime(
        engine,
        ByteTokenizer(),
        limits,
        max_context=backend.max_context,
        max_num_seqs=config.max_num_seqs,
        speculation=speculation,
        guards=guards,
        runs_tables=runs_tables,
    )


def make_llm(backend: FakeBackend | None = None, **settings: Any) -> LLM:
    return LLM.from_runtime(make_runtime(backend, **settings))
