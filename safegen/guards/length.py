"""A limit on the length of a text, in characters or words. Decided as soon as the limit is passed: nothing is held."""

from __future__ import annotations

import re
from typing import Any

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match

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
