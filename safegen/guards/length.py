"""A limit on the length of a text, in characters or words. Decided as soon as the limit is passed: nothing is held."""

from __future__ import annotations

import re
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.following import CharacterFollower, Follower

_WORD = re.compile(r"\S+")


class MaxLength(Guard):
    """characters, words: the most there may be; one of them at least. The match is the first character beyond, so
    "redact" makes no sense here and is refused."""

    version = "1"
    inline = True
    max_match = 1

    def __init__(self, *, characters: int | None = None, words: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        for field, value in (("characters", characters), ("words", words)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise RequestError(
                    f"MaxLength: {field}={value!r}; it is a whole number from 0 on", field=field, value=value
                )
        if characters is None and words is None:
            raise RequestError("MaxLength: give characters, words or both", field="characters", value=None)
        if self.on_fail == "redact":
            raise RequestError(
                "MaxLength: on_fail='redact' would cut a text; use 'block' or 'retry', or max_tokens of the call",
                field="on_fail",
                value="redact",
            )
        self.characters, self.words = characters, words

    def find(self, view: GuardView) -> list[Match]:
        found = []
        if self.characters is not None and len(view.text) > self.characters:
            found.append(Match(self.characters, self.characters + 1, "max_characters"))
        if self.words is not None:
            for number, word in enumerate(_WORD.finditer(view.text)):
                if number == self.words:
                    found.append(Match(word.start(), word.start() + 1, "max_words"))
                    break
        return found

    def frontier(self, text: str) -> int:
        return len(text)

    def follow(self) -> Follower:
        return LengthFollower(self.characters, self.words)


class LengthFollower(CharacterFollower):
    """Counts on: a word that is cut is one word."""

    def __init__(self, characters: int | None, words: int | None) -> None:
        super().__init__()
        self._max_characters, self._max_words = characters, words
        self._num_words = 0
        self._is_in_word = False

    def suspects(self, text: str) -> bool:
        if self._max_words is not None:
            self._num_words += len(_WORD.findall(text)) - (self._is_in_word and _WORD.match(text) is not None)
            self._is_in_word = not text[-1:].isspace()
        return (self._max_characters is not None and self.num_fed + len(text) > self._max_characters) or (
            self._max_words is not None and self._num_words > self._max_words
        )
