"""The retry budget: tries beyond the first are a bounded share of the requests, whatever happens behind.

When upstreams fail because they are overloaded, trying again makes it worse. Every request puts `share` of a token into
a bucket, every second `per_second`; every further try, a hedge included, takes one. An empty bucket means that the
failure is told to the client. (The budget of Finagle and Linkerd.)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from safegen.gateway.config import Retries


class RetryBudget:
    """Starts full. most_in_work: requests that all upstreams may have, the reserve unless there is one. Used by the
    event loop's thread alone."""

    def __init__(self, config: Retries, most_in_work: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._most = float(most_in_work if config.reserve is None else config.reserve)
        self._tokens = self._most
        self._filled_at = clock()
        self.num_refused = 0

    @property
    def tokens(self) -> float:
        return self._tokens

    def deposit(self) -> None:
        """A request has come."""
        self._add(self._config.share)

    def withdraw(self) -> bool:
        """Whether one more try may be made; it is counted."""
        now = self._clock()
        self._add((now - self._filled_at) * self._config.per_second)
        self._filled_at = now
        if self._tokens < 1:
            self.num_refused += 1
            return False
        self._tokens -= 1
        return True

    def _add(self, tokens: float) -> None:
        self._tokens = min(self._most, self._tokens + tokens)
