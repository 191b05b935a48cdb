"""Which scripts a text may be written in, character by character: nothing is held back in a stream."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match, texts
from safegen.guards.following import CharacterFollower, Follower

# Script -> what the Unicode names of its letters begin with.
SCRIPTS: dict[str, tuple[str, ...]] = {
    "Latin": ("LATIN", "FULLWIDTH LATIN", "MODIFIER LETTER", "FEMININE ORDINAL", "MASCULINE ORDINAL"),
    "Greek": ("GREEK",),
    "Cyrillic": ("CYRILLIC",),
    "Armenian": ("ARMENIAN",),
    "Georgian": ("GEORGIAN",),
    "Hebrew": ("HEBREW",),
    "Arabic": ("ARABIC",),
    "Devanagari": ("DEVANAGARI",),
    "Bengali": ("BENGALI",),
    "Tamil": ("TAMIL",),
    "Telugu": ("TELUGU",),
    "Thai": ("THAI",),
    "Han": ("CJK", "KANGXI", "IDEOGRAPHIC"),
    "Hiragana": ("HIRAGANA",),
    "Katakana": ("KATAKANA", "HALFWIDTH KATAKANA"),
    "Hangul": ("HANGUL",),
    "Ethiopic": ("ETHIOPIC",),
}


class Charset(Guard):
    """scripts: of SCRIPTS; letters of all others are matches. Digits, punctuation, symbols, spaces and marks belong to
    every script, unless ascii_only is set: then every character beyond ASCII is a match."""

    version = "1"
    inline = True
    max_match = 1
    look_behind = 0

    def __init__(self, *, scripts: Sequence[str] = ("Latin",), ascii_only: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.scripts = texts(self, "scripts", scripts)
        self.ascii_only = ascii_only
        for script in self.scripts:
            if script not in SCRIPTS:
                raise RequestError(
                    f"Charset: scripts holds {script!r}; known are {', '.join(SCRIPTS)}", field="scripts", value=script
                )
        self._allowed = frozenset(self.scripts)

    def find(self, view: GuardView) -> list[Match]:
        text = view.text
        if text.isascii() and (self.ascii_only or "Latin" in self._allowed):
            return []
        return [Match(at, at + 1, "charset") for at, character in enumerate(text) if not self._is_allowed(character)]

    def _is_allowed(self, character: str) -> bool:
        if self.ascii_only:
            return character.isascii()
        script = script_of(character)
        return script is None or script in self._allowed

    def frontier(self, text: str) -> int:
        return len(text)

    def follow(self) -> Follower:
        return CharsetFollower(self)


class CharsetFollower(CharacterFollower):
    def __init__(self, guard: Charset) -> None:
        super().__init__()
        self._guard = guard
        self._passes_ascii = guard.ascii_only or "Latin" in guard.scripts

    def suspects(self, text: str) -> bool:
        if text.isascii() and self._passes_ascii:
            return False
        return bool(self._guard.find(GuardView(text, final=False)))


@lru_cache(maxsize=8192)
def script_of(character: str) -> str | None:
    """The script of a letter; "Other" where it is none of SCRIPTS, None for what all scripts share."""
    if unicodedata.category(character)[0] != "L":
        return None
    name = unicodedata.name(character, "")
    return next((script for script, begins in SCRIPTS.items() if name.startswith(begins)), "Other")
