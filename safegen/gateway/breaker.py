"""The circuit breaker of one upstream: an upstream that fails rests, and then shows with one request that it is well.

Closed: requests go. Open, after enough failures: none does, for a time that doubles with every probe that fails.
Half-open, when that is over: one does, the probe; its success closes the circuit, its failure opens it again.

A request that was begun before the circuit last changed says nothing about the state that it has now: `begin` gives the
era, and outcomes of another era are not counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from safegen.gateway.config import Circuit


class CircuitBreaker:
    """Used by the event loop's thread alone."""

    def __init__(self, config: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._era = 0
        self._successive_failures = 0
        self._failed: deque[bool] = deque(maxlen=config.window)
        self._opens_until: float | None = None  # None is closed
        self._open_s = config.open_s
        self._is_probed = False

    @property
    def state(self) -> str:
        """closed, open or half_open."""
        if self._opens_until is None:
            return "closed"
        return "open" if self._clock() < self._opens_until else "half_open"

    @property
    def rest_s(self) -> float:
        """How long it stays open."""
        return 0.0 if self._opens_until is None else max(0.0, self._opens_until - self._clock())

    def allows(self) -> bool:
        """Whether a request may go now."""
        return self.state == "closed" or (self.state == "half_open" and not self._is_probed)

    def begin(self) -> int:
        """A request goes. Returns the era, to be given back with its outcome."""
        if self._opens_until is not None:
            self._is_probed = True
        return self._era

    def succeeded(self, era: int) -> None:
        if era != self._era:
            return
        if self._opens_until is None:
            self._successive_failures = 0
            self._failed.append(False)
        else:
            self.reset()

    def failed(self, era: int) -> bool:
        """Returns whether the circuit opened by it."""
        if era != self._era:
            return False
        if self._opens_until is not None:
            self._open_s = min(2 * self._open_s, self._config.max_open_s)
            self._open()
            return True
        self._successive_failures += 1
        self._failed.append(True)
        is_full = len(self._failed) == self._config.window
        share = sum(self._failed) / self._config.window
        if self._successive_failures >= self._config.failures or (is_full and share >= self._config.failure_share):
            self._open()
            return True
        return False

    def abandoned(self, era: int) -> None:
        """A request that ended without an outcome, as when its client left: another may be the probe."""
        if era == self._era:
            self._is_probed = False

    def reset(self) -> None:
        """Close it, and forget: the upstream has shown that it is well."""
        self._change(None)
        self._open_s = self._config.open_s

    def _open(self) -> None:
        self._change(self._clock() + self._open_s)

    def _change(self, opens_until: float | None) -> None:
        self._era += 1
        self._opens_until = opens_until
        self._is_probed = False
        self._successive_failures = 0
        self._failed.clear()
