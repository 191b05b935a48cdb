"""Text that is not seen: tag characters, variation selectors, zero-width and format characters, bidirectional controls,
terminal controls. A match is one character, so that a redaction takes out what is hidden and leaves what is read.

What has a use stays: joiners within an emoji or a word of a script that shapes letters (Persian, Hindi), one variation
selector behind a character that has variants, tags that make a flag of a region, marks of direction beside letters
written from the right, tabs and line ends. A flag is a black flag with two to six region letters; what else is spelled
in tags is hidden text.
"""

from __future__ import annotations

import copy
import unicodedata
from typing import Any

from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.following import Follower

_ZWNJ, _ZWJ = "\u200c", "\u200d"
_FLAG, _CANCEL_TAG = "\U0001f3f4", "\U000e007f"
_MAX_FLAG = 6  # region letters of a flag
_REACH = _MAX_FLAG + 2  # characters on either side that decide about one

_TAGS = frozenset(map(chr, range(0xE0000, 0xE0080)))
_SELECTORS = frozenset(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E), 0x180F]))
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MARKS = frozenset("\u200e\u200f\u061c")
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u180e\ufffc")
_ZERO_WIDTH = frozenset(
    [
        *"\u00ad\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\u2065\u206a\u206b\u206c\u206d\u206e\u206f\ufeff",
        *map(
            chr, [*range(0xFFF0, 0xFFFC), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0080, 0xE0100)]
        ),
        *map(chr, range(0xE01F0, 0xE1000)),
    ]
)
_CONTROLS = frozenset(map(chr, [*range(0x20), *range(0x7F, 0xA0)])) - frozenset("\t\n\r\x85")
_SUSPECTS = _TAGS | _SELECTORS | _BIDI | _MARKS | _FILLERS | _ZERO_WIDTH | _CONTROLS
_REGION = frozenset(map(chr, [*range(0xE0061, 0xE007B), *range(0xE0030, 0xE003A)]))


class InvisibleText(Guard):
    """Hidden characters. Rules: tag, variation_selector, zero_width, bidi_control, direction_mark, filler, control."""

    version = "1"
    inline = True
    max_match = 1
    look_ahead = _REACH
    look_behind = _REACH

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)

    def find(self, view: GuardView) -> list[Match]:
        text = view.text
        if _SUSPECTS.isdisjoint(text):
            return []
        suspects = [at for at, character in enumerate(text) if character in _SUSPECTS]
        return [Match(at, at + 1, rule) for at in suspects if (rule := _rule(text, at)) is not None]

    def frontier(self, text: str) -> int:
        begin = max(0, len(text) - _REACH)
        return next((at for at in range(begin, len(text)) if text[at] in _SUSPECTS), len(text))

    def follow(self) -> Follower:
        return InvisibleFollower()

    def placeholder(self, match: Match) -> str:
        """Nothing: hidden text is taken out."""
        return ""


class InvisibleFollower:
    """Keeps the last characters, of which what comes may decide some."""

    def __init__(self) -> None:
        self._num_fed = self._frontier = 0
        self._last = ""
        self._behind_suspects = 0  # no suspect stands from here on

    def feed(self, text: str, num_decided: int) -> int:
        self._num_fed += len(text)
        if not _SUSPECTS.isdisjoint(text):
            self._behind_suspects = self._num_fed
        elif self._num_fed - self._behind_suspects >= _REACH:
            self._last, self._frontier = "", self._num_fed
            return self._num_fed
        self._last = (self._last + text)[-_REACH:]
        begin = self._num_fed - len(self._last)
        found = (begin + at for at, character in enumerate(self._last) if character in _SUSPECTS)
        self._frontier = max(self._frontier, next(found, self._num_fed))
        return self._frontier

    def is_quiet(self, start: int, end: int) -> bool:
        return start >= self._behind_suspects

    def joined(self, other: Follower) -> None:
        return None

    def copy(self) -> InvisibleFollower:
        return copy.copy(self)


def _rule(text: str, at: int) -> str | None:
    """The rule that text[at] breaks; None where it has a use."""
    character, before, after = text[at], text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    if character in _TAGS:
        return None if _is_flag(text, at) else "tag"
    if character in _SELECTORS:
        return None if _has_variants(before, character) else "variation_selector"
    if character in (_ZWJ, _ZWNJ):
        return None if _joins(before, character, after) else "zero_width"
    if character in _MARKS:
        return None if _is_from_right(before) or _is_from_right(after) else "direction_mark"
    kinds = ((_BIDI, "bidi_control"), (_FILLERS, "filler"), (_ZERO_WIDTH, "zero_width"))
    return next((rule for characters, rule in kinds if character in characters), "control")


def _is_flag(text: str, at: int) -> bool:
    start, end = at, at
    while start > 0 and at - start < _REACH and text[start - 1] in _REGION:
        start -= 1
    while end < len(text) and end - at < _REACH and text[end] in _REGION:
        end += 1
    begins = start > 0 and text[start - 1] == _FLAG
    return begins and text[end : end + 1] == _CANCEL_TAG and 3 <= end - start <= _MAX_FLAG


def _has_variants(before: str, selector: str) -> bool:
    if not before or before in _SUSPECTS:
        return False
    if selector >= "\U000e0100" or selector <= "\ufe0d":
        return unicodedata.category(before) in ("Lo", "Sm", "Nd", "Po")
    return before in "#*0123456789" or unicodedata.category(before) in ("So", "Sm", "Po", "Lo", "Sk", "Pd", "Sc")


def _joins(before: str, joiner: str, after: str) -> bool:
    if not before or not after:
        return False
    if _shapes(before) and (_shapes(after) or joiner == _ZWJ or after in " \n.,،؟!"):
        return True
    emoji_before = _is_emoji(before) or before == "\ufe0f" or before in _TAGS
    return joiner == _ZWJ and emoji_before and _is_emoji(after)


def _is_emoji(character: str) -> bool:
    return unicodedata.category(character) in ("So", "Sk") and ord(character) >= 0x2190


def _shapes(character: str) -> bool:
    """Whether the script joins letters or stacks them: Arabic, Syriac, N'Ko, Mongolian, those of India and its
    neighbours."""
    code = ord(character)
    ranges = (
        (0x600, 0x8FF),
        (0x900, 0xDFF),
        (0xF00, 0x109F),
        (0x1780, 0x18AF),
        (0xA840, 0xA8DF),
        (0xFB50, 0xFDFF),
        (0xFE70, 0xFEFE),
    )
    return any(first <= code <= last for first, last in ranges) and unicodedata.category(character)[0] in "LM"


def _is_from_right(character: str) -> bool:
    return bool(character) and unicodedata.bidirectional(character) in ("R", "AL", "AN")
