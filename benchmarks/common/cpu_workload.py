"""What every engine of `cpu_decode.py` is given: the same token ids, the same schema, the same counts.

Prompts are rendered once with the model's own chat template and tokenizer; engines that take text get the text, and
the safegen side checks that it makes as many tokens of it. The workload crosses to the engines' processes as one JSON
file. Only `build` needs safegen: an engine's own interpreter reads the file with the standard library.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATA_FILE = "injection-dev.jsonl.gz"
DATA_LABEL = "context"  # 50 e-mails; the text is theirs, in file order, from the first one on
QUALITY_WINDOWS, QUALITY_WINDOW_TOKENS = 4, 500
PREFILL_TOKENS = 512
BATCH_SIZES = (1, 8, 16, 32)
JSON_BATCH_SIZES = (1, 16)
LOADED_SEQUENCES = 16  # those that decode while the request of `ttft_ms` arrives

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 24},
        "city": {"type": "string", "maxLength": 20},
        "priority": {"enum": ["low", "normal", "high"]},
        "paid": {"type": "boolean"},
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 24},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
                },
                "required": ["name", "quantity"],
                "additionalProperties": False,
            },
        },
        "comment": {"type": "string", "maxLength": 60},
    },
    "required": ["customer", "city", "priority", "paid", "items", "comment"],
    "additionalProperties": False,
}

_TOPICS = (
    "the history of bridges", "how bread is baked", "life in a lighthouse", "the first railway", "a walk in winter",
    "how bees find flowers", "the invention of paper", "a market in the morning", "rivers and their deltas",
    "how a violin is made", "the moons of Jupiter", "a voyage to the north", "growing tomatoes", "old maps",
    "the work of a doctor", "glass and its makers",
)  # fmt: skip
_KINDS = ("Write a long story about", "Explain in many sentences")
_PEOPLE = (
    "Maria Lopez",
    "John Smith",
    "Aiko Tanaka",
    "Peter Novak",
    "Amina Diallo",
    "Olga Petrova",
    "Liam Byrne",
    "Ana",
)
_CITIES = ("Lisbon", "Boston", "Kyoto", "Prague", "Dakar", "Riga", "Cork", "Porto Alegre")
_GOODS = (("chairs", "lamps"), ("red pens", "notebooks"))


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: one user message. ids: what the model's template and tokenizer make of it."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Workload:
    """prefill: of PREFILL_TOKENS. decode, json: as many as the largest batch. steps: tokens decoded a sequence after
    its first. windows: QUALITY_WINDOWS texts of real tokens. stop_ids: the model's stop set. token_hex: the bytes of
    every id, none for those that stand for no text."""

    prefill: Prompt
    decode: list[Prompt]
    json: list[Prompt]
    schema: dict[str, Any]
    steps: int
    json_max_tokens: int
    windows: list[list[int]]
    stop_ids: list[int]
    token_hex: list[str]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Workload:
        fields = json.loads(path.read_text())
        fields["prefill"] = Prompt(**fields["prefill"])
        for name in ("decode", "json"):
            fields[name] = [Prompt(**prompt) for prompt in fields[name]]
        return cls(**fields)


def decode_texts() -> list[str]:
    return [f"{kind} {topic}." for kind in _KINDS for topic in _TOPICS]


def json_texts() -> list[str]:
    """Orders to be read, each with its own people, places and counts."""
    rows = [(person, number) for number in range(2) for person in range(len(_PEOPLE))]
    return [
        f"{_PEOPLE[person]} from {_CITIES[(person + 3 * number) % 8]} ordered {7 + person + number} "
        f"{_GOODS[number][0]} and {2 + person} {_GOODS[number][1]}, and "
        f"{'has paid' if person % 2 else 'will pay later'}. Give the order as JSON."
        for person, number in rows
    ]


def real_text(data: Path) -> str:
    """The rows that the quality figures are measured on, joined by blank lines."""
    with gzip.open(data / DATA_FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return "\n\n".join(row["text"] for row in rows if row["label"] == DATA_LABEL)


def exact_prompt(words: Sequence[str], num_tokens: int, encode: Callable[[str], list[int]]) -> Prompt:
    """As many of the words as make at most num_tokens, then a filler word until there are exactly that many."""
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(encode(" ".join(words[:middle]))) <= num_tokens else (low, middle - 1)
    text = " ".join(words[:low])
    while len(encode(text)) < num_tokens:
        text += " and"
    ids = encode(text)
    if len(ids) != num_tokens:
        raise ValueError(f"no prompt of exactly {num_tokens} tokens was found: it has {len(ids)}")
    return Prompt(text, ids)


def build(model: Path, data: Path, *, quick: bool) -> Workload:
    """model: the GGUF file whose tokenizer and template make the ids."""
    from safegen.engine.tokenizer import Tokenizer
    from safegen.prompt import chat_messages

    tokenizer = Tokenizer.load(model)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode_chat(chat_messages(text, None)))

    text = real_text(data)
    real_ids = tokenizer.encode(text)[: QUALITY_WINDOWS * QUALITY_WINDOW_TOKENS]
    if len(real_ids) < QUALITY_WINDOWS * QUALITY_WINDOW_TOKENS:
        raise ValueError(f"{DATA_FILE} gives only {len(real_ids)} tokens with label {DATA_LABEL!r}")
    starts = range(0, len(real_ids), QUALITY_WINDOW_TOKENS)
    return Workload(
        prefill=exact_prompt(text.split(), PREFILL_TOKENS, encode),
        decode=[Prompt(prompt, encode(prompt)) for prompt in decode_texts()],
        json=[Prompt(prompt, encode(prompt)) for prompt in json_texts()],
        schema=SCHEMA,
        steps=24 if quick else 64,
        json_max_tokens=256,
        windows=[real_ids[start : start + QUALITY_WINDOW_TOKENS] for start in starts],
        stop_ids=sorted(tokenizer.stop_ids),
        token_hex=[(text or b"").hex() for text in tokenizer.token_bytes],
    )
