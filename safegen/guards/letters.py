"""From a fold and a partition of its characters to the letters of an automaton (grammars/bans.py).

All characters whose folds look alike to an automaton are one letter: for phrases, everything that no phrase holds is
one character ("other"; two where it matters whether it belongs to a word), for a regex all characters that the same of
its sets hold. So there are some hundred letters, not 1.1 million characters, and few states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from safegen.grammars.bans import LetterTable
from safegen.guards.folding import HANGUL, Folding, Ranges, is_word, word_ranges

_LAST = 0x10FFFF
OTHER, OTHER_OF_WORD = _LAST + 1, _LAST + 2  # no code points: they stand for what no phrase holds
_Letter = tuple[int, ...]
_Piece = tuple[int, int, _Letter]  # code points from low to high are of one letter


def phrase_letters(
    fold: Folding, phrases: Iterable[str], *, word: bool, symbols: frozenset[str] = frozenset()
) -> tuple[LetterTable, Ranges]:
    """The letters, and which of the code points they fold to are of words. phrases: folded. symbols: characters that
    are none of a phrase's, whatever they fold to."""
    alphabet = {char for phrase in phrases for char in phrase}
    known = {char: ord(char) for char in alphabet}

    def stands_for(char: str) -> int:
        code = known.get(char)
        return code if code is not None else OTHER_OF_WORD if word and is_word(char) else OTHER

    pieces: list[_Piece] = [(ord(char), ord(char), (ord(char),)) for char in alphabet if fold.of(char) == char]
    others: list[_Piece] = [(low, high, (OTHER_OF_WORD,)) for low, high in word_ranges()] if word else []
    changed = _changed(fold, stands_for, hangul=not alphabet.isdisjoint(_parts_of_syllables(fold)))
    pieces += [(low, high, (OTHER,) if chr(low) in symbols else letter) for low, high, letter in changed]
    table = _table(pieces, others, (OTHER,))
    words = [ord(char) for char in alphabet if is_word(char)] + [OTHER_OF_WORD]
    return table, tuple((code, code) for code in sorted(words))


def set_letters(fold: Folding, sets: Iterable[Ranges]) -> tuple[LetterTable, Callable[[Ranges], Ranges]]:
    """The letters for a regex over folded text, and what a set of its characters is among those they fold to."""
    cuts = sorted({0, *(cut for ranges in sets for low, high in ranges for cut in (low, high + 1) if cut <= _LAST)})

    def stands_for(char: str) -> int:
        return cuts[bisect_right(cuts, ord(char)) - 1]

    ends = [*(cut - 1 for cut in cuts[1:]), _LAST]
    others: list[_Piece] = [(low, high, (low,)) for low, high in zip(cuts, ends, strict=True)]

    def among(ranges: Ranges) -> Ranges:
        return tuple((cut, cut) for cut in cuts if any(low <= cut <= high for low, high in ranges))

    return _table(_changed(fold, stands_for, hangul=True), others, (0,)), among


def _changed(fold: Folding, stands_for: Callable[[str], int], *, hangul: bool) -> Iterator[_Piece]:
    """The characters whose fold is another text. hangul: syllables, too, as some of their letters matter."""
    for char, folded in fold.changed.items():
        yield ord(char), ord(char), _letter(folded, stands_for)
    for low, high in fold.dropped:
        yield low, high, ()
    if hangul and fold.decomposes_hangul:
        parts = {char: stands_for(char) for char in _parts_of_syllables(fold)}
        for code in range(HANGUL[0][0], HANGUL[0][1] + 1):
            yield code, code, _letter(fold.of(chr(code)), parts.__getitem__)


def _parts_of_syllables(fold: Folding) -> set[str]:
    letters = (chr(code + number) for code in (0x1100, 0x1161, 0x11A7) for number in range(28))
    return {part for letter in letters for part in fold.of(letter)}


def _letter(folded: str, stands_for: Callable[[str], int]) -> _Letter:
    """Characters that are like none in a row are like one."""
    letter: list[int] = []
    for char in folded:
        code = stands_for(char)
        if not (letter and letter[-1] == code and code in (OTHER, OTHER_OF_WORD)):
            letter.append(code)
    return tuple(letter)


def _table(pieces: Iterable[_Piece], others: Sequence[_Piece], other: _Letter) -> LetterTable:
    """others: what the code points between the pieces are, and `other` what is left between those."""
    numbers: dict[_Letter, int] = {other: 0}
    ranges: list[tuple[int, int, int]] = []
    next_other, start = 0, 0

    def add(low: int, high: int, letter: _Letter) -> None:
        number = numbers.setdefault(letter, len(numbers))
        if ranges and ranges[-1][2] == number and ranges[-1][1] + 1 == low:
            ranges[-1] = (ranges[-1][0], high, number)
        else:
            ranges.append((low, high, number))

    def fill(start: int, stop: int) -> None:
        """The others from start to before stop."""
        nonlocal next_other
        while next_other < len(others) and others[next_other][1] < start:
            next_other += 1
        at = next_other
        while at < len(others) and others[at][0] < stop:
            low, high, letter = others[at]
            add(max(low, start), min(high, stop - 1), letter)
            at += 1

    for low, high, letter in sorted(pieces):
        if low > start:
            fill(start, low)
        add(low, high, letter)
        start = high + 1
    fill(start, _LAST + 1)
    return LetterTable(tuple(numbers), tuple(ranges), 0)
