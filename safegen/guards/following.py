"""Followers: a guard's eyes on one growing text, for streams.

`Guard.frontier` and `Guard.find` look at a whole text. Asked anew at every token they would read the same characters
again and again; a follower keeps what it knows and reads what is new. It gives no findings: it says what is certain and
where there is surely nothing, and `find` is asked only about a stretch that is not quiet. So what is found, and how it
is decided, is the same with a follower as without one; what a follower adds is the promise of its two answers, which
tests hold against `find` at every cut (the stream law, see `safegen.guards.base`).

A follower mirrors the `find` and `frontier` of one class. A subclass that changes those gets none, unless it brings its
own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, Self

from safegen.guards.base import Guard

_MIRRORED = ("find", "frontier", "check", "edits")


class Follower(Protocol):
    """Belongs to one text; one thread at a time."""

    def feed(self, text: str, num_decided: int) -> int:
        """Take what comes next in the text. num_decided: characters of the text that nothing will be asked about again.
        Returns the frontier, an offset into all that was fed; never less than the one before."""
        ...

    def is_quiet(self, start: int, end: int) -> bool:
        """Whether no match of the text so far holds a character of start..end. False may be wrong, True may not."""
        ...

    def joined(self, other: Follower) -> Follower | None:
        """A fresh follower for the guards of both, which have seen nothing yet; None where two are as good."""
        ...

    def copy(self) -> Self:
        """One that goes on from here by itself."""
        ...


def follower_of(guard: Guard) -> Follower | None:
    """A fresh follower; None where the guard has to be asked about the whole text each time."""
    return guard.follow() if _mirrors(type(guard)) else None


@lru_cache(maxsize=256)
def _mirrors(kind: type[Guard]) -> bool:
    """Whether `follow` is defined where `find` and `frontier` are, or below."""
    defined = {name: _definer(kind, name) for name in (*_MIRRORED, "follow")}
    return all(issubclass(defined["follow"], defined[name]) for name in _MIRRORED)


def _definer(kind: type[Guard], name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


class CharacterFollower:
    """For guards whose matches are decided character by character, so that all that was fed is certain. A subclass
    says of each piece whether there may be a match in it."""

    def __init__(self) -> None:
        self.num_fed = 0
        self._last_suspect = -1  # where the last piece with a suspect in it ends

    def feed(self, text: str, num_decided: int) -> int:
        is_suspect = self.suspects(text)
        self.num_fed += len(text)
        if is_suspect:
            self._last_suspect = self.num_fed
        return self.num_fed

    def suspects(self, text: str) -> bool:
        raise NotImplementedError

    def is_quiet(self, start: int, end: int) -> bool:
        return start >= self._last_suspect

    def joined(self, other: Follower) -> None:
        return None

    def copy(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin
