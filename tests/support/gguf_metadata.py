"""Tokenizer metadata as a GGUF file holds it, small or from a SentencePiece model."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from safegen.engine.token_bytes import BYTE_TO_CHAR

SENTENCEPIECE_FILE = "mistral_instruct_tokenizer_240323.model.v3"


def byte_level_metadata(merges: list[str], control: list[str], **more: Any) -> dict[str, Any]:
    """A byte-level BPE vocabulary: the control tokens, 256 bytes, one token a merge."""
    tokens = [*control, *BYTE_TO_CHAR.values(), *(merge.replace(" ", "") for merge in merges)]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(control) + [1] * (len(tokens) - len(control)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def sentencepiece_model_path() -> Path:
    """Mistral's 32k SentencePiece model, from the mistral-common package."""
    files = importlib.metadata.files("mistral-common") or []
    return next(Path(str(file.locate())) for file in files if file.name == SENTENCEPIECE_FILE)


def sentencepiece_metadata(model: Any, **more: Any) -> dict[str, Any]:
    """What a converter writes into a GGUF file for a SentencePieceProcessor."""
    ids = range(model.vocab_size())

    def token_type(i: int) -> int:
        kinds = (model.is_unknown(i), 2), (model.is_control(i), 3), (model.is_unused(i), 5), (model.is_byte(i), 6)
        return next((number for holds, number in kinds if holds), 1)

    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [token_type(i) for i in ids],
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}
