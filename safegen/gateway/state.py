"""What the routes of one gateway share: its upstreams and the ways to them, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial

from fastapi import Request
from starlette.responses import Response

from safegen.gateway.attempts import Attempts, Whole
from safegen.gateway.budget import RetryBudget
from safegen.gateway.calls import Call, read_call
from safegen.gateway.config import GatewayConfig
from safegen.gateway.dispatch import Dispatch
from safegen.gateway.health import Watch
from safegen.gateway.meter import gateway_families
from safegen.gateway.router import Router, no_upstream
from safegen.gateway.upstream import Upstream
from safegen.observe.openmetrics import families_text
from safegen.server.admission import Lease
from safegen.server.auth import ApiKey
from safegen.server.door import Door
from safegen.server.errors import ApiError
from safegen.server.middleware import REQUEST_ID_HEADER
from safegen.server.replies import Reply, Work


class GatewayState(Door):
    """One a gateway; used by its event loop's thread. Raises RequestError for a variable without a key."""

    def __init__(
        self, config: GatewayConfig, keys: Iterable[ApiKey] = (), environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(config.server_settings(keys))
        self.config = config
        self.upstreams = tuple(
            Upstream(each, config.circuit, config.health, environment=environment) for each in config.upstreams
        )
        self.router = Router(self.upstreams, config.routing, config.queue)
        self.budget = RetryBudget(config.retries, sum(each.max_concurrent for each in config.upstreams))
        attempts = Attempts(config.timeouts, config.sizes)
        self.dispatch = Dispatch(
            self.router, attempts, self.budget, config.retries.max_attempts, config.hedge_after_s
        )  # fmt: skip
        self._model_names = frozenset(config.model_names)
        self._forwarded = frozenset(name.encode() for name in config.forward_headers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Every upstream has been asked once when it begins, and is asked until it ends."""
        watches = [Watch(upstream, self.config.health) for upstream in self.upstreams]
        await asyncio.gather(*(watch.check() for watch in watches))
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for upstream in self.upstreams:
                await upstream.aclose()

    def unready(self) -> ApiError | None:
        if any(upstream.is_up for upstream in self.upstreams):
            return None
        return no_upstream("no upstream can be reached")

    def metrics_text(self) -> str:
        own = gateway_families(self.upstreams, self.router, self.dispatch, self.budget)
        return families_text([*own, *self.meter.families(self.admission)])

    async def answering(self, request: Request, endpoint: str) -> Response:
        """endpoint: below the base URL of upstreams; the route's own, never the client's text. Raises ApiError."""

        def work(raw: bytes, cache_salt: str | None, lease: Lease) -> tuple[Work, float]:
            authorization = next((value for name, value in self._headers(request, b"authorization")), None)
            call = read_call(
                endpoint,
                raw,
                model_names=self._model_names,
                prefix_characters=self.config.routing.prefix_characters,
                headers=(
                    (REQUEST_ID_HEADER, request.state.request_id.encode()),
                    *self._headers(request, *self._forwarded),
                ),
                authorization=authorization,
            )
            lease.grow(1)
            return partial(self._send, call), self.settings.request_timeout_s

        return await self.admitted(request, work)

    def _headers(self, request: Request, *names: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((name, value) for name, value in request.scope["headers"] if name in names)

    async def _send(self, call: Call, reply: Reply) -> None:
        """Whole events go on as they come; a stream that is cut raises, and so ends with an error event."""
        answer = await self.dispatch.answer(call)
        if isinstance(answer, Whole):
            await reply.whole(answer.status, answer.body, answer.headers)
            return
        try:
            await reply.open()
            async with contextlib.aclosing(answer.events()) as events:
                async for whole in events:
                    await reply.piece(whole, more=True)
            await reply.piece(b"", more=False)
        finally:
            await answer.aclose()
