"""What a load test asks: prompts of one's own, or made-up ones of a given length."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safegen.errors import RequestError
from safegen.load.replay import Asked

_WORDS = (
    "river", "stone", "garden", "winter", "letter", "market", "window", "bridge", "silver", "morning", "paper",
    "village", "mountain", "light", "evening", "water", "forest", "music", "history", "table", "doctor", "island",
    "engine", "summer", "question", "answer", "story", "city", "road", "picture", "ocean", "number",
)  # fmt: skip


def made_up(
    count: int,
    prompt_tokens: int,
    output_tokens: int,
    count_tokens: Callable[[str], int],
    *,
    type: Any = None,
    spread: float = 0.5,
    seed: int = 0,
) -> list[Asked]:
    """`count` prompts of about prompt_tokens tokens as the model counts them, no two alike. Answers take
    output_tokens on average, evenly spread by +-spread of it (so that requests do not march in step), each to its full
    length; one of a type ends where the type ends, or there."""
    rng = random.Random(seed)
    empty, sample = count_tokens("a") - 1, " ".join(rng.choice(_WORDS) for _ in range(200))
    tokens_a_word = max(0.2, (count_tokens(sample) - empty) / 200)
    num_words = max(1, round((prompt_tokens - empty) / tokens_a_word))
    low, high = max(1, round(output_tokens * (1 - spread))), max(1, round(output_tokens * (1 + spread)))
    made = []
    for _ in range(count):
        prompt = " ".join(rng.choice(_WORDS) for _ in range(num_words))
        max_tokens = rng.randint(low, high)
        options = {} if type is not None else {"min_tokens": max_tokens}
        made.append(Asked(prompt, type, max_tokens, options))
    return made


def of_prompts(prompts: Sequence[Any], output_tokens: int, *, type: Any = None) -> list[Asked]:
    """Prompts as they are; (prompt, type) pairs have a type of their own."""
    if not prompts:
        raise RequestError("a load test needs at least one prompt", field="prompts", value=prompts)
    pairs = [each if isinstance(each, tuple) and len(each) == 2 else (each, type) for each in prompts]
    return [Asked(prompt, own, output_tokens) for prompt, own in pairs]


def read_prompts(path: str) -> list[Any]:
    """Of a JSONL file: strings, lists of chat messages, or objects with "prompt". Raises RequestError by line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}", field="--input", value=path) from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompts.append(entry["prompt"] if isinstance(entry, dict) else entry)
        except (ValueError, KeyError) as error:
            raise RequestError(
                f'line {number} of {path} is no JSON string, list of messages or object with "prompt"',
                field="--input", value=path,
            ) from error  # fmt: skip
    return prompts


__all__ = ["made_up", "of_prompts", "read_prompts"]
