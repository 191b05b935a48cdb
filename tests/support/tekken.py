"""Mistral's Tekken vocabulary (131,072 ids) out of the mistral-common package: a real large vocabulary for tests.

Ids 0 to 999 are control tokens (0 <unk>, 1 <s>, 2 </s>), then come byte strings by rank. The file is read as it lies;
mistral-common's own code is not imported.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE_NAME = "tekken_240911.json"
_END_OF_SEQUENCE = 2


@dataclass(frozen=True)
class TekkenVocabulary:
    """token_bytes: one entry an id, None for control ids. stop_ids: the id of </s>. split: its pre-tokenizer regex."""

    token_bytes: tuple[bytes | None, ...]
    stop_ids: frozenset[int]
    split: str


@cache
def tekken_vocabulary() -> TekkenVocabulary:
    files = importlib.metadata.files("mistral-common") or []
    path = next(Path(str(file.locate())) for file in files if file.name == _FILE_NAME)
    stored = json.loads(path.read_text(encoding="utf-8"))
    config = stored["config"]
    num_control = config["default_num_special_tokens"]
    num_text = config["default_vocab_size"] - num_control
    text = tuple(base64.b64decode(entry["token_bytes"]) for entry in stored["vocab"][:num_text])
    return TekkenVocabulary((None,) * num_control + text, frozenset({_END_OF_SEQUENCE}), config["pattern"])
