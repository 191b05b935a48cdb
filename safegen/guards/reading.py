"""How detectors read a text: one byte for each visible character, so that linear-time patterns see through disguises.

A `Reading` maps every character to its ASCII look-alike (full-width and mathematical forms, digits of any script,
Cyrillic and Greek confusables, accents, dashes, spaces) and leaves invisible ones out (format characters, variation
selectors, combining marks), at most `MAX_SKIPPED` in a row. What has no look-alike is one of two bytes: LETTER, OTHER.
Offsets into the bytes map back to characters, so nothing is ever rewritten by its reading.

The reading is local: the byte of a character depends on it and on at most `MAX_SKIPPED` characters before it, never on
what follows. That is what lets a stream be watched with it.

Not seen through: letters that only resemble others in some fonts (rn for m), text in pictures, other encodings.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

MAX_SKIPPED = 16
LETTER, OTHER = "\xaa", "\xa4"
_SKIP, _SKIPPED_OCTET = "\xad", b"\xad"
_MAX_TABLE = 50_000

# Letters of other scripts that are drawn as ASCII ones. The pairs of UTS #39 that matter for words and addresses.
_PAIRS = (
    "АA ВB ЕE ЅS ІI ЈJ КK МM НH ОO РP СC ТT УY ХX ҮY ԌG ԚQ ԜW ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX ϹC "
    "ᎪA ᎬE ᏟC ᎢT ᏒR аa вb еe ѕs іi јj кk мm нh оo рp сc тt уy хx ԁd ԍg ԛq ԝw үy һh ӏl ѵv "
    "αa γy ιi κk νv οo ρp τt υu χx ωw ϲc ϳj ɑa ɡg ɩi ıi øo łl đd ℓl"
)
_CONFUSABLES = {pair[0]: pair[1] for pair in _PAIRS.split()}
_CONFUSABLES |= {"。": ".", "․": ".", "·": ".", "∶": ":", "׃": ":", "−": "-", "⁄": "/", "∕": "/"}
_CONFUSABLES |= dict.fromkeys("“”„«»", '"') | dict.fromkeys("‘’‚´", "'")


class _Table(dict[int, str]):
    """For str.translate; an entry is made when its character is first met."""

    def __missing__(self, code_point: int) -> str:
        if len(self) > _MAX_TABLE:
            self.clear()
        self[code_point] = found = look_alike(chr(code_point))
        return found


def look_alike(character: str) -> str:
    """The byte (as a Latin-1 character) that stands for a character."""
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if is_skipped(character, category):
        return _SKIP
    if character in _CONFUSABLES:
        return _CONFUSABLES[character]
    if category == "Nd":
        return str(unicodedata.digit(character))
    plain = unicodedata.normalize("NFKD", character)
    base = _CONFUSABLES.get(plain[0], plain[0])
    if base.isascii() and all(unicodedata.category(mark) == "Mn" for mark in plain[1:]):
        return base
    if category in ("Zs", "Zl", "Zp"):
        return " " if category == "Zs" else "\n"
    if category == "Pd":
        return "-"
    return LETTER if category in ("Lu", "Ll", "Lt", "Lm") else OTHER


def is_skipped(character: str, category: str) -> bool:
    """Whether a character draws nothing of its own: format characters, marks, fillers, selectors."""
    return category in ("Cf", "Mn", "Me") or character in "\u115f\u1160\u3164\uffa0\u2800"


_TABLE = _Table()


@dataclass(frozen=True, slots=True)
class Reading:
    """octets: one for each character that is read. offsets: the character behind each octet, None where they agree."""

    octets: bytes
    offsets: NDArray[np.intp] | None

    def octet(self, character: int) -> int:
        """The first octet at or behind a character offset."""
        return character if self.offsets is None else int(np.searchsorted(self.offsets, character))

    def start(self, octet: int) -> int:
        return octet if self.offsets is None else int(self.offsets[octet])

    def end(self, octet: int) -> int:
        """The character offset behind a span that ends before `octet`; invisible characters at its end stay outside."""
        return octet if self.offsets is None or octet == 0 else int(self.offsets[octet - 1]) + 1


def read(text: str) -> Reading:
    if text.isascii():
        return Reading(text.encode("ascii"), None)
    return _read(text) if len(text) <= 4096 else _translate(text)


def read_on(before: Reading, text: str, more: str) -> Reading:
    """The reading of `text`, which is what was read before and `more`."""
    if before.offsets is None:
        octets = more.encode("ascii") if more.isascii() else more.translate(_TABLE).encode("latin-1")
        if _SKIPPED_OCTET not in octets:
            return Reading(before.octets + octets, None)
    return read(text)


def _translate(text: str) -> Reading:
    octets = text.translate(_TABLE).encode("latin-1")
    if _SKIPPED_OCTET not in octets:
        return Reading(octets, None)
    values = np.frombuffer(octets, dtype=np.uint8)
    skipped = values == ord(_SKIP)
    positions = np.arange(values.size)
    last_read = np.maximum.accumulate(np.where(skipped, -1, positions))
    kept = ~skipped | (positions - last_read > MAX_SKIPPED)
    read_values = np.where(skipped, ord(OTHER), values).astype(np.uint8)
    return Reading(read_values[kept].tobytes(), np.flatnonzero(kept))


_read = lru_cache(maxsize=64)(_translate)


@lru_cache(maxsize=1024)
def compiled(pattern: str, *, ignore_case: bool = False) -> Any:
    """A pattern over the bytes of readings: linear time, Latin-1, no Unicode classes. Guards share it: what RE2 has
    learned of a pattern while matching serves all of them."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    options.max_mem = 64 << 20
    return re2.compile(pattern.encode("latin-1"), options)


@lru_cache(maxsize=256)
def union(patterns: tuple[str, ...], tail: str) -> Any:
    """One pattern for all of them, each with `tail` behind it."""
    return compiled(f"(?:{'|'.join(dict.fromkeys(patterns))}){tail}")


def overlapping(pattern: Any, octets: bytes) -> Iterator[Any]:
    """Matches from every start, those within an earlier match too: no match hides another."""
    match = pattern.search(octets)
    while match is not None:
        yield match
        match = pattern.search(octets, match.start() + 1)
