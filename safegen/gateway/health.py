"""Active health checks: each upstream is asked now and then whether it lives.

With `health: auto` the first is taken that the upstream has of /ready, /health and its list of models, and remembered
for as long as it is there. A failed connection of a request brings the next check forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import httpx2

from safegen.gateway.attempts import USER_AGENT, AttemptFailed, Pieces
from safegen.gateway.config import NONE, HealthChecks
from safegen.gateway.upstream import Upstream

log = logging.getLogger("safegen.gateway")

_ABSENT = frozenset({404, 405, 501})
_MAX_BODY_BYTES = 1 << 20
_LEAST_PAUSE_S = 0.1


class Watch:
    """The checks of one upstream."""

    def __init__(self, upstream: Upstream, checks: HealthChecks) -> None:
        self._upstream = upstream
        self._checks = checks
        self._found: str | None = None

    async def run(self) -> None:
        """For ever, until it is cancelled."""
        while self._upstream.config.health != NONE:
            self._upstream.look_again.clear()
            try:
                await self.check()
            except Exception:  # a watch that ends would leave its upstream as it is, for ever
                log.exception("the check of upstream %s has failed", self._upstream.name)
                self._upstream.checked(False)
            await asyncio.sleep(_LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._checks.interval_s * random.uniform(0.8, 1.2)):
                    await self._upstream.look_again.wait()

    async def check(self) -> None:
        """Ask once, and tell the upstream."""
        if self._upstream.config.health == NONE:
            return
        try:
            async with asyncio.timeout(self._checks.timeout_s):
                self._upstream.checked(await self._is_well())
        except (TimeoutError, httpx2.TransportError, AttemptFailed):
            self._upstream.checked(False)

    async def _is_well(self) -> bool:
        for url in self._upstream.health_urls if self._found is None else (self._found,):
            status = await self._status(url)
            if status not in _ABSENT:
                self._found = url
                return 200 <= status < 300
        self._found = None
        return False

    async def _status(self, url: str) -> int:
        headers = [(b"user-agent", USER_AGENT), *self._upstream.authorization()]
        request = httpx2.Request("GET", url, headers=headers)
        response = await self._upstream.transport.handle_async_request(request)
        pieces = Pieces(response)
        try:
            await pieces.whole(_MAX_BODY_BYTES)
        finally:
            await pieces.aclose()
        return response.status_code
