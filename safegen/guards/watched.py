"""Guards by their followers: those that can share one look at a growing text together, the others each by itself."""

from __future__ import annotations

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

    def is_quiet(self, start: int, end: int) -> bool:
        """Whether no guard need be asked about start..end. A follower that cannot say is no reason not to ask."""
        try:
            return self.follower is not None and self.follower.is_quiet(start, end)
        except Exception:
            return False


def watch_too(watched: list[Watched], entry: Entry) -> None:
    """Put one more guard among those that are watching. Raises what its `follow` raises."""
    follower = follower_of(entry.guard)
    for place, other in enumerate(watched):
        if follower is None or other.follower is None:
            continue
        common = other.follower.joined(follower)
        if common is not None:
            watched[place] = Watched((*other.entries, entry), common)
            return
    watched.append(Watched((entry,), follower))
