"""Answers that repeat what must not be repeated: the system prompt, or segments that the caller names.

An overlap is a run of letters and digits that stands in a protected text too; case, spaces, punctuation, symbols,
accents and look-alikes are not told apart. A letter without an ASCII look-alike stands for itself. The index holds
windows of the protected text at every `STEP`th letter, so every overlap of `min_overlap` letters holds one of them, and
a scan is one pass over the answer. At most STEP - 1 letters on either side of a found overlap stay outside of it; with
`block`, the default, that makes no difference.

Not covered: paraphrase, translation, other encodings.
"""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from safegen.errors import RequestError
from safegen.guards.base import Guard, GuardView, Match, Stage, texts
from safegen.guards.candidates import before_owner, pieces
from safegen.guards.following import Follower
from safegen.guards.reading import LETTER, MAX_SKIPPED, OTHER, read

STEP = 8
_SPREAD = 4  # characters that one letter of a window may take, separators included
_RANK = {"system_prompt": 0}
_ASCII = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_LETTERS = np.zeros(256, dtype=bool)
_LETTERS[[*_ASCII, *(LETTER + OTHER).encode("latin-1")]] = True
_NO_LETTERS = bytes(octet for octet in range(256) if octet not in _ASCII)


@dataclass(frozen=True, slots=True)
class Index:
    """windows: what an answer must not hold. beginnings: hashes of their proper beginnings, for streams."""

    windows: frozenset[str]
    beginnings: frozenset[int]


def letters(text: str) -> tuple[str, NDArray[np.intp], NDArray[np.intp]]:
    """The letters and digits of a text's reading in lower case, and where each character begins and ends."""
    reading = read(text)
    octets = np.frombuffer(reading.octets, dtype=np.uint8)
    places = np.flatnonzero(_LETTERS[octets])
    starts = places if reading.offsets is None else reading.offsets[places]
    found = octets[places].tobytes().lower().decode("latin-1")
    if found.isascii():
        return found, starts, starts + 1
    told = [char if char < "\x80" else _letter(text[at]) for char, at in zip(found, starts.tolist(), strict=True)]
    kept = starts[np.array([bool(char) for char in told], dtype=bool)]
    return "".join(told), kept, kept + 1


@lru_cache(maxsize=8192)
def _letter(character: str) -> str:
    """A letter or number without an ASCII look-alike, in lower case; nothing for a symbol."""
    small = character.lower()
    if unicodedata.category(character)[0] not in "LN":
        return ""
    return small if len(small) == 1 else character


@lru_cache(maxsize=32)
def index_of(protected: tuple[str, ...], allowed: tuple[str, ...], window: int) -> Index:
    harmless = {found[at : at + window] for text in allowed for found in [letters(text)[0]] for at in range(len(found))}
    windows = {
        found[at : at + window]
        for text in protected
        for found in [letters(text)[0]]
        for at in range(0, len(found) - window + 1, STEP)
    } - harmless
    return Index(frozenset(windows), frozenset(hash(each[:end]) for each in windows for end in range(1, window)))


class SystemPromptLeak(Guard):
    """Verbatim overlaps with protected texts.

    segments: further protected texts; the system messages of a request always are. min_overlap: letters and digits in a
    row that make a leak, at least 24. allow: texts that may be repeated, such as a product's description.
    """

    version = "1"
    default_stages: ClassVar[tuple[Stage, ...]] = ("output",)
    inline = True

    def __init__(
        self, *, segments: Sequence[str] = (), min_overlap: int = 48, allow: Sequence[str] = (), **common: Any
    ) -> None:
        super().__init__(**common)
        if isinstance(min_overlap, bool) or not isinstance(min_overlap, int) or not 24 <= min_overlap <= 400:
            raise RequestError(
                f"SystemPromptLeak: min_overlap={min_overlap!r}; it is a number of letters from 24 to 400",
                field="min_overlap",
                value=min_overlap,
            )
        self.segments = texts(self, "segments", segments)
        self.allow = texts(self, "allow", allow)
        self.min_overlap = min_overlap
        self._window = min_overlap - STEP + 1
        self._known: tuple[str, ...] = self.segments
        self.max_match = self._window * _SPREAD
        self.look_behind = self.max_match

    def protecting(self, protected: Sequence[str]) -> Self:
        """The guard that watches one request's streams: it knows that request's protected texts."""
        bound = copy.copy(self)
        bound._known = (*self.segments, *protected)
        return bound

    def find(self, view: GuardView) -> list[Match]:
        known = tuple(dict.fromkeys((*self._known, *view.protected)))
        candidates = self._candidates(view.text, index_of(known, self.allow, self._window))
        return [piece for piece, _ in pieces(candidates, _RANK)]

    def _candidates(self, text: str, index: Index) -> list[Match]:
        found, starts, ends = letters(text)
        window, windows = self._window, index.windows
        candidates = [
            Match(int(starts[at]), int(ends[at + window - 1]), "system_prompt")
            for at in range(len(found) - window + 1)
            if found[at : at + window] in windows
        ]
        assert self.max_match is not None
        return [m for m in candidates if m.end - m.start <= self.max_match]

    def frontier(self, text: str) -> int:
        assert self.max_match is not None
        index = index_of(tuple(dict.fromkeys(self._known)), self.allow, self._window)
        begin = max(0, len(text) - self.max_match)
        found, starts, _ = letters(text[begin:])
        first = max(0, len(found) - self._window + 1)
        at = next((at for at in range(first, len(found)) if hash(found[at:]) in index.beginnings), None)
        cut = len(text) if at is None else begin + int(starts[at])
        scan = max(0, cut - 2 * self.max_match)
        return scan + before_owner(self._candidates(text[scan:], index), cut - scan, _RANK)

    def follow(self) -> Follower:
        assert self.max_match is not None
        index = index_of(tuple(dict.fromkeys(self._known)), self.allow, self._window)
        return LeakFollower(index, self._window, self.max_match)

    @property
    def hold_bound(self) -> int | None:
        return None if self.max_match is None else 2 * self.max_match


class LeakFollower:
    """Keeps what may have begun: the place of its first letter and its letters so far, for each."""

    def __init__(self, index: Index, window: int, max_match: int) -> None:
        self._index, self._size, self._max_match = index, window, max_match
        self._last = ""  # characters that decide how those behind them are read
        self._num_fed = self._frontier = 0
        self._begun: list[tuple[int, str]] = []
        self._candidates: tuple[Match, ...] = ()

    def feed(self, text: str, num_decided: int) -> int:
        found, places = self._new_letters(text)
        self._num_fed += len(text)
        if self._candidates:
            self._candidates = tuple(each for each in self._candidates if each.end > num_decided)
        if found or self._begun:
            self._go_on(found, places)
        cut = self._begun[0][0] if self._begun else self._num_fed
        self._frontier = max(self._frontier, before_owner(self._candidates, cut, _RANK) if self._candidates else cut)
        return self._frontier

    def _new_letters(self, text: str) -> tuple[str, list[int]]:
        """Letters of what comes next, and their places in the whole text."""
        before, self._last = self._last, (self._last + text)[-MAX_SKIPPED - 1 :]
        if text.isascii():
            octets = text.encode()
            return octets.translate(None, _NO_LETTERS).lower().decode(), [
                place for place, octet in enumerate(octets, self._num_fed) if octet in _ASCII
            ]
        found, starts, _ = letters(before + text)
        places = [self._num_fed - len(before) + int(at) for at in starts]
        num_new = sum(place >= self._num_fed for place in places)
        return found[len(found) - num_new :], places[len(places) - num_new :]

    def _go_on(self, found: str, places: list[int]) -> None:
        """Which of these windows may still become one of the protected texts, and which have."""
        size, oldest, beginnings = self._size, self._num_fed - self._max_match, self._index.beginnings
        begun = [(place, known + found) for place, known in self._begun]
        begun += [(place, found[at:]) for at, place in enumerate(places)]
        self._begun = []
        for place, seen in begun:
            if len(seen) < size:
                if hash(seen) in beginnings and place >= oldest:
                    self._begun.append((place, seen))
            elif seen[:size] in self._index.windows:
                match = Match(place, places[size - len(seen) - 1] + 1, "system_prompt")
                if match.end - match.start <= self._max_match:
                    self._candidates = (*self._candidates, match)

    def is_quiet(self, start: int, end: int) -> bool:
        return not any(each.start < end and each.end > start for each in self._candidates)

    def joined(self, other: Follower) -> None:
        return None

    def copy(self) -> LeakFollower:
        return copy.copy(self)
