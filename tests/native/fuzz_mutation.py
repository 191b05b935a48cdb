"""Mutations of texts: what a fuzzer does to a corpus entry. Deterministic in its random numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

_CHARS = [*map(chr, range(0x20, 0x7F)), "\n", "\t", "\x00", "\x7f", "é", "\u2028", "😀", "\ud800", "\ufffd"]
_NUMBERS = ("0", "1", "2", "-1", "0.1", "1e3", "255", "65536", "4294967296", "1e400", "0.30000000000000004")
MAX_CHARS = 6000


class Mutator:
    """seeds: the corpus. words: pieces of the language, which single characters would seldom spell."""

    def __init__(self, rng: random.Random, seeds: Sequence[str], words: Sequence[str]) -> None:
        self.rng = rng
        self.seeds = seeds
        self.words = words

    def draw(self) -> str:
        text = self.rng.choice(self.seeds)
        if text.startswith("{") and self.rng.random() < 0.4:
            return json.dumps(self._changed(json.loads(text)), ensure_ascii=False)[:MAX_CHARS]
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 6))):
            text = self._edited(text)
        return text[:MAX_CHARS]

    def _span(self, text: str) -> tuple[int, int]:
        start = self.rng.randrange(len(text) + 1)
        return start, min(len(text), start + self.rng.choice((0, 1, 1, 2, 5, 20)))

    def _edited(self, text: str) -> str:
        rng = self.rng
        start, end = self._span(text)
        before, piece, after = text[:start], text[start:end], text[end:]
        match rng.randrange(8):
            case 0:
                return before + after
            case 1:
                return before + piece * rng.choice((2, 2, 3, 50)) + after
            case 2:
                return before + rng.choice(self.words) + after
            case 3:
                return before + rng.choice(self.words) + piece + after
            case 4:
                return before + rng.choice(_CHARS) + after
            case 5:
                other = rng.choice(self.seeds)
                low, high = self._span(other)
                return before + other[low:high] + after
            case 6:
                return before + rng.choice(_NUMBERS) + after
            case _:
                other = rng.choice(self.seeds)
                return before + other[rng.randrange(len(other) + 1) :]

    # Of JSON: parts of one document in the places of another's.

    def _changed(self, document: Any) -> Any:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            document = self._replaced(document, self._part(json.loads(self.rng.choice(self.seeds))))
        return document

    def _part(self, document: Any) -> Any:
        while isinstance(document, dict | list) and document and self.rng.random() < 0.8:
            document = self.rng.choice(list(document.values()) if isinstance(document, dict) else document)
        return document

    def _replaced(self, document: Any, part: Any) -> Any:
        rng = self.rng
        if isinstance(document, dict) and document and rng.random() < 0.85:
            name = rng.choice(list(document))
            kind = rng.random()
            if kind < 0.1:
                return {other: value for other, value in document.items() if other != name}
            if kind < 0.2:
                return {**document, rng.choice(list(document)): document[name]}
            if kind < 0.35 and isinstance(part, dict):
                return {**document, **part}
            return {**document, name: self._replaced(document[name], part)}
        if isinstance(document, list) and document and rng.random() < 0.85:
            place = rng.randrange(len(document))
            return [*document[:place], self._replaced(document[place], part), *document[place + 1 :]]
        return part
