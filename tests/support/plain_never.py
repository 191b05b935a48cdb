"""Bans as a scan of finished text understands them: folds by the interpreter's own Unicode data, search by `in`.

The oracle of the tests of `Never`; it shares no code and no table with it. Look-alikes are the few that tests use.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

_IGNORABLE = frozenset(
    [0x034F, 0x115F, 0x1160, 0x3164, 0xFFA0, *range(0x2060, 0x2070), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)]
)
_LOOKS = {"с": "c", "о": "o", "0": "o", "1": "l", "i": "l", "|": "l", "m": "rn", "а": "a", "е": "e", "к": "k"}


def plain_fold(text: str, fold: str) -> str:
    if fold == "exact":
        return text
    if fold == "case":
        return "".join(char.casefold() for char in text)
    folded = "".join(map(_compat, text))
    return folded if fold == "compat" else "".join(_LOOKS.get(char, char) for char in folded)


def holds_ban(text: str, phrases: Sequence[str], fold: str, word: bool = False) -> bool:
    folded = plain_fold(text, fold)
    return any(_stands(folded, plain_fold(phrase, fold), word) for phrase in phrases)


def texts_of(value: Any) -> Iterator[str]:
    """All strings and keys of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from texts_of(member)


def json_holds_ban(text: str, phrases: Sequence[str], fold: str, word: bool = False) -> bool:
    return any(holds_ban(each, phrases, fold, word) for each in texts_of(json.loads(text)))


def _compat(char: str) -> str:
    if _is_dropped(char):
        return ""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join(part for part in folded if not _is_dropped(part))


def _is_dropped(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "M" or category == "Cf" or ord(char) in _IGNORABLE


def _stands(text: str, phrase: str, word: bool) -> bool:
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        if not word or not (_is_word(text[at - 1 : at]) or _is_word(text[end : end + 1])):
            return True
        at = text.find(phrase, at + 1)
    return False


def _is_word(char: str) -> bool:
    return bool(char) and (unicodedata.category(char)[0] in "LMN" or unicodedata.category(char) == "Pc")
