"""Folding: what counts as the same text when something must not be said.

A fold maps every character by itself to a text, and a text to the joined folds of its characters (a homomorphism). So a
fold of a part is a part of the fold, where a text is cut does not matter, and the inverse image of a regular language
is regular: the decoder can hold a model to it (see grammars/bans.py). Four levels, each finer than the next:

    exact     nothing is folded
    case      full case folding (ß is ss)
    compat    NFKD, case, NFKD; marks, format and other ignorable characters dropped: ﬁ, full width, é, soft hyphens
    skeleton  compat, then look-alikes: Cyrillic с is c, 0 is o, 1, I, i and | are l, m is rn

The tables are in `folds.json`: for each fold that is no identity, the characters that have it. They were made from the
Unicode character data of CPython 3.11 (Unicode 14.0; Hangul syllables are decomposed by rule instead) and, for
look-alikes, from the Unicode confusables data (UTS 39) as the package confusable-homoglyphs 3.3.1 ships it. Look-alikes
work on characters that compat has folded already, so a text that compat folds to a phrase is one that skeleton does,
too; an upper-case look-alike counts for its lower-case letter where that resembles no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

Fold = Literal["exact", "case", "compat", "skeleton"]
FOLDS: tuple[Fold, ...] = get_args(Fold)
Ranges = tuple[tuple[int, int], ...]

HANGUL: Ranges = ((0xAC00, 0xD7A3),)
_NUM_VOWELS, _NUM_TAILS = 21, 28
_MAX_LOOKS = 8  # a chain of look-alikes is shorter


class Folding:
    """One level. changed: characters whose fold is another text, Hangul syllables left out, by character. dropped:
    those whose fold is empty, as code point ranges. decomposes_hangul: whether syllables fold to their letters."""

    def __init__(self, level: Fold) -> None:
        self.level = level
        self.decomposes_hangul = level in ("compat", "skeleton")
        self.dropped: Ranges = _ranges("dropped") if self.decomposes_hangul else ()
        self.changed: dict[str, str] = _changed(level)
        self._known: dict[int, str] = {ord(char): folded for char, folded in self.changed.items()}
        for low, high in self.dropped:
            self._known.update(dict.fromkeys(range(low, high + 1), ""))

    def of(self, char: str) -> str:
        """The fold of one character."""
        code = ord(char)
        if self.decomposes_hangul and 0xAC00 <= code <= 0xD7A3:
            return "".join(self._known.get(ord(part), part) for part in jamo(code))
        return self._known.get(code, char)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Characters of no word whose fold holds characters of words, such as ™ and, to skeleton, |."""
        return frozenset(
            char for char, folded in self.changed.items() if any(map(is_word, folded)) and not is_word(char)
        )

    def text(self, text: str) -> str:
        if not self._known:
            return text
        if self.decomposes_hangul and any("\uac00" <= char <= "\ud7a3" for char in text):
            return "".join(map(self.of, text))
        return text.translate(self._known)

    def with_offsets(self, text: str) -> tuple[str, list[int]]:
        """The fold, and for each of its characters the index in `text` of the one that it comes from."""
        folded: list[str] = []
        offsets: list[int] = []
        for index, char in enumerate(text):
            piece = self.of(char)
            folded.append(piece)
            offsets += [index] * len(piece)
        return "".join(folded), offsets


@cache
def folding(level: Fold) -> Folding:
    return Folding(level)


def jamo(code: int) -> str:
    """The letters of a Hangul syllable, as NFKD has them."""
    lead_vowel, tail = divmod(code - 0xAC00, _NUM_TAILS)
    lead, vowel = divmod(lead_vowel, _NUM_VOWELS)
    return chr(0x1100 + lead) + chr(0x1161 + vowel) + (chr(0x11A7 + tail) if tail else "")


@cache
def word_ranges() -> Ranges:
    """Characters of words: letters, marks, numbers and connectors such as the underscore."""
    return _ranges("word")


def is_word(char: str) -> bool:
    return _is_in(ord(char), word_ranges())


def _is_in(code: int, ranges: Ranges) -> bool:
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        if ranges[middle][1] < code:
            low = middle + 1
        else:
            high = middle
    return low < len(ranges) and ranges[low][0] <= code


@cache
def _tables() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(Path(__file__).with_name("folds.json").read_text("ascii"))
    return stored


@cache
def _ranges(name: str) -> Ranges:
    return tuple(_decoded(_tables()[name]))


def _decoded(encoded: str) -> Iterator[tuple[int, int]]:
    """Ranges from gaps and lengths in hexadecimal."""
    numbers = [int(number, 16) for number in encoded.split()]
    end = 0
    for gap, length in zip(numbers[::2], numbers[1::2]):
        yield end + gap, end + gap + length
        end += gap + length


def _changed(level: Fold) -> dict[str, str]:
    if level == "exact":
        return {}
    base = {char: folded for folded, chars in _tables()[_base(level)].items() for char in chars}
    if level != "skeleton":
        return base
    looks = {char: folded for folded, chars in _tables()["skeleton"].items() for char in chars}
    both = looks | {char: "".join(looks.get(part, part) for part in folded) for char, folded in base.items()}
    closed = {char: _closed(folded, both) for char, folded in both.items()}
    return {char: folded for char, folded in closed.items() if char != folded}


def _closed(folded: str, looks: dict[str, str]) -> str:
    """What look-alikes of look-alikes come to: ∩ is like ո, which is like n."""
    for _ in range(_MAX_LOOKS):
        further = "".join(looks.get(part, part) for part in folded)
        if further == folded:
            break
        folded = further
    return folded


def _base(level: Fold) -> str:
    return "case" if level == "case" else "compat"
