"""The corpora that guards are measured on, and sets of secrets, code and prose that are made from a seed."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from tests.guards.samples import provider_keys

# Types of the corpora -> rules of PII. What is not listed needs a model (names, places) or is no personal data.
PII_TYPES = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "SOCIAL_SECURITY_NUMBER": "SSN",
    "US_SSN": "SSN",
    "IP_ADDRESS": "IP_ADDRESS",
    "CREDIT_CARD": "CREDIT_CARD",
    "IBAN_CODE": "IBAN",
    "MEDICAL_RECORD_NUMBER": "MEDICAL_RECORD",
}
BENIGN = ("benign", "context")
_AROUND = ("key = '{}'", "export TOKEN={}", "please use {} for it", "curl https://x.example/?k={}", "{}", "- token: {}")


@dataclass(frozen=True, slots=True)
class Row:
    """spans: (type, start, end) as the corpus has them."""

    text: str
    spans: tuple[tuple[str, int, int], ...] = ()
    label: str = ""
    source: str = ""


def load(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_row(json.loads(line)) for line in lines]


def _row(given: dict[str, Any]) -> Row:
    spans = tuple((span["type"], span["start"], span["end"]) for span in given.get("spans", ()))
    return Row(given["text"], spans, given.get("label", ""), given.get("source", ""))


def corpora(folder: Path, prefix: str) -> Iterator[tuple[str, list[Row]]]:
    """(file stem, rows) of every corpus of the folder whose name begins so."""
    for path in sorted(folder.glob(f"{prefix}*.jsonl.gz")):
        yield path.name.removesuffix(".jsonl.gz"), load(path)


def secret_texts(seeds: range) -> list[tuple[str, str, str]]:
    """(provider, key, text that holds it), a key of each provider for each seed."""
    return [
        (name, key, _AROUND[(seed + number) % len(_AROUND)].format(key))
        for seed in seeds
        for number, (name, key) in enumerate(provider_keys(seed).items())
    ]


@lru_cache(maxsize=1)
def functions_of_code() -> list[str]:
    """Every function of this project, as its source: code that holds no secret."""
    found = []
    for path in sorted((ROOT / "safegen").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found += [
            ast.get_source_segment(source, node) or ""
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef)
        ]
    return found
