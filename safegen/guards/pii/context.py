"""Words before a candidate that say what it is: "card", "born", "SSN". Sought in the visible text right before it."""

from __future__ import annotations

from safegen.guards.pattern_rules import CONTEXT_LENGTH
from safegen.guards.reading import compiled

_DIGIT = compiled(r"\d")


class Context:
    """words: RE2 alternatives, in lower case without accents. within: octets before the candidate that are searched.
    nearest: no other digit may stand between the word and the candidate."""

    def __init__(self, words: str, *, within: int = 48, nearest: bool = False) -> None:
        assert within <= CONTEXT_LENGTH
        self._pattern = compiled(rf"(?:\b|_)(?:{words})(?:\b|_|\d)", ignore_case=True)
        self._within, self._nearest = within, nearest

    def before(self, octets: bytes, start: int) -> bool:
        window = octets[max(0, start - self._within) : start]
        if not self._nearest:
            return self._pattern.search(window) is not None
        last = max((match.end() for match in self._pattern.finditer(window)), default=None)
        return last is not None and _DIGIT.search(window, last) is None


def joined_before(octets: bytes, start: int) -> bool:
    """Whether a number goes on to the left: a digit, or a digit and one of . - / + before it."""
    if start == 0:
        return False
    before = octets[start - 1 : start]
    return before.isalnum() or (before in b".-/+" and octets[max(0, start - 2) : start - 1].isdigit())


def joined_after(octets: bytes, end: int) -> bool:
    """Whether a number goes on to the right: an alphanumeric character, or one of . - / and a digit."""
    after = octets[end : end + 1]
    return after.isalnum() or (after != b"" and after in b".-/" and octets[end + 1 : end + 2].isdigit())
