"""Who may come in now: a bounded number of sequences for all, a rate and a concurrency for each key.

What does not fit is refused at once with 429 and the seconds after which to try again: it costs nobody anything. A
place is held by a `Lease`, from before the body is looked at until the last byte of the answer is gone, whatever way
that goes. Used by the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from safegen.server.auth import ApiKey
from safegen.server.errors import ApiError, overloaded, unavailable

_KEPT_SHARE = 0.9  # of the mean duration, at every request that ends
_FIRST_GUESS_S = 1.0
_ANONYMOUS_COMPILES = 2  # nobody knows how many clients that is


class _Account:
    """What one key has used. tokens: requests that it may make at once; a bucket that fills at the key's rate."""

    def __init__(self, key: ApiKey, now: float) -> None:
        self.num_running = 0
        self.compiling = asyncio.Semaphore(1 if key.digest else _ANONYMOUS_COMPILES)
        self._rate_s = None if key.requests_per_minute is None else key.requests_per_minute / 60
        self._most = 0.0 if key.requests_per_minute is None else max(1.0, key.requests_per_minute / 6)
        self._tokens = self._most
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """Takes a token; else how long it is until there is one."""
        if self._rate_s is None:
            return 0.0
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._rate_s)
        self._filled_at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate_s


class Admission:
    """max_pending: sequences of all keys. A key's burst is ten seconds of its rate, and at least one request."""

    def __init__(self, max_pending: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_pending = max_pending
        self.num_pending = 0
        self.is_draining = False
        self._clock = clock
        self._mean_s = _FIRST_GUESS_S
        self._accounts: dict[str, _Account] = {}

    def enter(self, key: ApiKey) -> Lease:
        """Raises ApiError 429 or 503."""
        if self.is_draining:
            raise unavailable()
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = _Account(key, self._clock())
        if key.max_concurrent is not None and account.num_running >= key.max_concurrent:
            message = f"the key has {key.max_concurrent} requests in work, which is its limit"
            raise overloaded(message, self._mean_s, code="concurrency_limit_exceeded")
        wait_s = account.wait_s(self._clock())
        if wait_s > 0:
            message = f"the key's limit is {key.requests_per_minute:g} requests a minute"
            raise overloaded(message, wait_s, code="rate_limit_exceeded")
        return Lease(self, account, self._clock())

    def _busy(self) -> ApiError:
        return overloaded(f"{self.num_pending} sequences are in work or wait; try again later", self._mean_s)

    def _ended(self, seconds: float) -> None:
        self._mean_s = _KEPT_SHARE * self._mean_s + (1 - _KEPT_SHARE) * min(seconds, 3600.0)


class Lease:
    """One request's place. `grow` takes the sequences that it turns out to need; `close`, once, gives all back."""

    def __init__(self, admission: Admission, account: _Account, now: float) -> None:
        self._admission = admission
        self._account = account
        self._since = now
        self._num_sequences = 0
        self._is_open = True
        self.compiling = account.compiling
        account.num_running += 1

    def grow(self, num_sequences: int) -> None:
        """Raises ApiError 429 where that many do not fit now, 400 where they never will."""
        admission = self._admission
        if num_sequences > admission.max_pending:
            message = f"{num_sequences} sequences are more than the server takes at all ({admission.max_pending})"
            raise ApiError(400, message, param="n", code="invalid_value")
        if admission.num_pending + num_sequences > admission.max_pending:
            raise admission._busy()
        admission.num_pending += num_sequences
        self._num_sequences += num_sequences

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._account.num_running -= 1
            self._admission.num_pending -= self._num_sequences
            if self._num_sequences:
                self._admission._ended(max(0.0, self._admission._clock() - self._since))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
