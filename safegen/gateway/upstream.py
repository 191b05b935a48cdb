"""One upstream: how it is reached, what it has in work, whether it is well.

It is spoken to through httpx2's transport, which follows no redirect, keeps no cookie and reads no proxy or `.netrc` of
the environment. What is well is told by two things: checks (`is_up`), and the circuit over requests (`breaker`).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2

from safegen.errors import RequestError
from safegen.gateway.breaker import CircuitBreaker
from safegen.gateway.config import AUTOMATIC, NONE, Circuit, HealthChecks, UpstreamConfig

_KEY = re.compile(r"[!-~]+")
_KEEP_ALIVE_S = 4.0  # below what servers keep an idle connection: uvicorn five seconds, safegen fifteen
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 15, 5, 3
_UNACKNOWLEDGED_MS = 20_000


class Upstream:
    """transport: for tests; else one is made. Used by the event loop's thread alone.

    outstanding: requests that it has in work. counts: attempts by outcome. on_change: called when requests may go that
    could not before.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        circuit: Circuit,
        checks: HealthChecks,
        *,
        environment: Mapping[str, str] = os.environ,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.breaker = CircuitBreaker(circuit)
        self.transport = transport or _transport(config)
        self.outstanding = 0
        self.counts: Counter[str] = Counter()
        self.is_up = config.health == NONE
        self.on_change: Callable[[], None] = lambda: None
        self.look_again = asyncio.Event()
        self._checks = checks
        self._key = _bearer(config, environment)
        self._alike = 0  # checks in succession that say the other thing than is_up
        self._unbegun: list[UnbegunAttempt] = []

    @property
    def health_urls(self) -> tuple[str, ...]:
        """Where checks look, in this order; the first that is there is taken."""
        parts, base = urlsplit(self.config.url), self.config.url
        origin, chosen = f"{parts.scheme}://{parts.netloc}", self.config.health
        if chosen != AUTOMATIC:
            return (f"{origin}{chosen}",)
        root = base.removesuffix("/v1")
        return (f"{root}/ready", f"{root}/health", f"{base}/models")

    @property
    def takes_requests(self) -> bool:
        """Whether a request may go to it now."""
        return self.is_well and self.outstanding < self.config.max_concurrent

    @property
    def is_well(self) -> bool:
        return self.is_up and self.breaker.allows()

    def authorization(self, of_client: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """The header that it gets, if any."""
        given = of_client if self.config.forward_authorization else self._key
        return [] if given is None else [(b"authorization", given)]

    def checked(self, is_good: bool) -> None:
        """The outcome of a check, or False for a connection that could not be opened."""
        if self.config.health == NONE:
            return
        if is_good == self.is_up:
            self._alike = 0
            return
        self._alike += 1
        if self._alike < (self._checks.up_after if is_good else self._checks.down_after):
            return
        self._alike = 0
        self.is_up = is_good
        if is_good:
            self.breaker.reset()
            self.on_change()
        else:
            self._move_attempts()

    @contextmanager
    def unbegun(self, attempt: UnbegunAttempt) -> Iterator[None]:
        """While an attempt waits here for its answer to begin: if the upstream goes down meanwhile, it is moved."""
        self._unbegun.append(attempt)
        try:
            yield
        finally:
            self._unbegun.remove(attempt)

    def _move_attempts(self) -> None:
        """As far as the budget allows; the others stay, and may be lucky."""
        for attempt in self._unbegun:
            if not attempt.scope.expired() and attempt.may_move():
                attempt.is_moved = True
                attempt.scope.reschedule(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        await self.transport.aclose()


class UnbegunAttempt:
    """scope: bounds the wait for its answer. may_move: takes what another attempt costs, if there is enough."""

    def __init__(self, scope: asyncio.Timeout, may_move: Callable[[], bool]) -> None:
        self.scope = scope
        self.may_move = may_move
        self.is_moved = False


class Place:
    """A request's place at an upstream, with one outcome: the first of `succeeded`, `failed` and `busy` that is told;
    `close` gives it back, whatever came before, and once. After a success a stream may still fail."""

    def __init__(self, upstream: Upstream, on_close: Callable[[Upstream], None]) -> None:
        self.upstream = upstream
        self._on_close = on_close
        self._era = upstream.breaker.begin()
        self._outcome: str | None = None
        self._is_open = True
        upstream.outstanding += 1

    def succeeded(self) -> None:
        """The answer has begun."""
        self._outcome = "ok"
        was_closed = self.upstream.breaker.state == "closed"
        self.upstream.breaker.succeeded(self._era)
        if not was_closed:
            self.upstream.on_change()

    def failed(self) -> None:
        self._outcome = "failed"
        self.upstream.breaker.failed(self._era)

    def busy(self) -> None:
        """It lives, and has no room."""
        self._outcome = "busy"
        self.upstream.breaker.abandoned(self._era)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.upstream.outstanding -= 1
        if self._outcome is None:
            self.upstream.breaker.abandoned(self._era)
        self.upstream.counts[self._outcome or "cancelled"] += 1
        self._on_close(self.upstream)


def _bearer(config: UpstreamConfig, environment: Mapping[str, str]) -> bytes | None:
    if config.key_env is None:
        return None
    key = environment.get(config.key_env, "").strip()
    if not _KEY.fullmatch(key):
        problem = "is not set" if not key else "holds no key: printable ASCII without spaces"
        message = f"the variable {config.key_env!r} of the upstream {config.name!r} {problem}"
        raise RequestError(message, field="key_env", value=config.key_env)
    return f"Bearer {key}".encode()


def _transport(config: UpstreamConfig) -> httpx2.AsyncHTTPTransport:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (  # a host that is gone without a word is noticed; Linux has all of them
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return httpx2.AsyncHTTPTransport(
        verify=_certificates(config),
        trust_env=False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEEP_ALIVE_S),
        socket_options=options,
    )


def _certificates(config: UpstreamConfig) -> ssl.SSLContext | bool:
    if config.url.startswith("http:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # knows no authority, and is never used
    if config.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        message = f"ca_file={config.ca_file!r} of the upstream {config.name!r} cannot be used: {error}"
        raise RequestError(message, field="ca_file", value=config.ca_file) from error
