"""`Rule`: one kind of finding by its shape, and the lengths within which rules are decided.

**Streams.** `Rule.live` is a pattern of everything that is not decided at the end of a text: each proper beginning of a
candidate with the characters behind it that decide it. The frontier is where the first of these begins, or the start of
a match that lies across it. In prose that is the beginning of the last word, not the static bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Candidate = tuple[int, int, float] | tuple[int, int, float, str]
Scan = Callable[[bytes], Iterable[Candidate]]

# Invisible characters that a candidate may hold beside its visible ones; with more of them it is not matched.
MAX_INVISIBLE = 64
# Visible characters before a candidate that a rule may look at, boundary included.
CONTEXT_LENGTH = 64
# Octets within which a rule without a hint is decided: frontiers look no further back for these.
SHORT_LENGTH = 320


@dataclass(frozen=True, slots=True)
class Rule:
    """name: what matches are called, unless a candidate brings one of `names`. max_length: of a candidate, in octets.
    scan: all candidates (start, end, score), in any order, each decided by CONTEXT_LENGTH octets before it and
    `look_ahead` behind it. live: RE2 pattern of what is undecided at the end. gate: RE2 pattern that occurs in every
    candidate, or in what `live` has before it (the "//" before credentials: it is live from its first character on).
    hint: RE2 pattern that occurs in all that is undecided and longer than SHORT_LENGTH octets."""

    name: str
    max_length: int
    scan: Scan
    live: str
    gate: str = "[0-9]"
    look_ahead: int = 1
    names: tuple[str, ...] = ()
    hint: str | None = None
