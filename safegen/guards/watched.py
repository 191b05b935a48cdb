"""Guards by their followers: those that can share one look at a growing text together, the others each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safegen.guards.following import Follower, follower_of
from safegen.guards.running import Entry


@dataclass(slots=True)
class Watched:
    """Guards and their common follower of one unit, or one guard that has none. seconds: that they took."""

    entries: tuple[Entry, ...]
    follower: Follower | None
    seconds: float = 0.0

    def copy(self) -> Watched:
        return Watched(self.entries, None if self.follower is None else self.follower.copy(), self.seconds)


def watched_of(entries: Sequence[Entry]) -> list[Watched]:
    made: list[Watched] = []
    for entry in entries:
        follower = follower_of(entry.guard)
        for place, other in enumerate(made):
            if follower is None or other.follower is None:
                continue
            common = other.follower.joined(follower)
            if common is not None:
                made[place] = Watched((*other.entries, entry), common)
                break
        else:
            made.append(Watched((entry,), follower))
    return made
