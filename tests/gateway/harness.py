"""A gateway on a real port, fake upstreams on others, all in the test's own loop. After every test nothing is left
over: no place at an upstream is taken, nobody waits, nothing is in work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from safegen.gateway.app import create_gateway
from safegen.gateway.config import read_config
from safegen.gateway.state import GatewayState
from safegen.server.auth import ApiKey
from safegen.server.serving import listen, make_server, serve
from tests.gateway.fake_upstream import FakeUpstream

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
QUICK: dict[str, Any] = {
    "health": {"interval_s": 0.1, "timeout_s": 0.25},
    "circuit": {"open_s": 0.2, "max_open_s": 0.4},
    "timeouts": {"connect_s": 0.5, "first_event_s": 5, "between_events_s": 5, "answer_s": 5},
    "queue": {"wait_s": 3},
}
Body = Callable[["Gateway"], Awaitable[None]]


@dataclass(frozen=True)
class Gateway:
    state: GatewayState
    http: httpx2.AsyncClient
    port: int
    fakes: Sequence[FakeUpstream]

    async def chat(self, **given: Any) -> httpx2.Response:
        headers = given.pop("headers", None)
        return await self.http.post(CHAT, json={**ASK, **given}, headers=headers)

    async def events(self, **given: Any) -> list[str]:
        """The data of a whole stream's events."""
        answer = await self.chat(stream=True, **given)
        assert answer.status_code == 200, answer.text
        return data_of(answer.text)

    def upstream(self, name: str) -> Any:
        return next(each for each in self.state.upstreams if each.name == name)

    def is_idle(self) -> bool:
        state = self.state
        return (
            state.admission.num_pending == 0
            and state.meter.num_running == 0
            and not any(upstream.outstanding for upstream in state.upstreams)
            and not any(state.router.num_waiting.values())
        )

    async def metrics(self) -> dict[str, Any]:
        text = (await self.http.get("/metrics")).text
        return {family.name: family for family in text_string_to_metric_families(text)}


def data_of(text: str) -> list[str]:
    """Whole events alone, each of one line of data."""
    assert text == "" or text.endswith("\n\n"), text[-200:]
    events = [block for block in text.split("\n\n") if block]
    assert all(block.startswith("data: ") and "\n" not in block for block in events), events
    return [block.removeprefix("data: ") for block in events]


def joined(events: Sequence[str]) -> str:
    """The text of the deltas of a stream."""
    documents = [json.loads(data) for data in events if data != "[DONE]"]
    return "".join(each["choices"][0]["delta"]["content"] for each in documents if "choices" in each)


def config_of(fakes: Sequence[FakeUpstream], **given: Any) -> dict[str, Any]:
    """given: sections; `each`: settings of every upstream; `models`: by the name of an upstream."""
    each, models = given.pop("each", {}), given.pop("models", {})
    upstreams = [{"name": fake.name, "url": fake.url, "models": models.get(fake.name, ["m"]), **each} for fake in fakes]
    sections = {name: {**QUICK.get(name, {}), **value} for name, value in given.items() if isinstance(value, dict)}
    return {"upstreams": upstreams, **QUICK, **given, **sections}


@contextlib.asynccontextmanager
async def gateway(
    fakes: Sequence[FakeUpstream],
    config: dict[str, Any],
    keys: Sequence[ApiKey] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Gateway]:
    app = create_gateway(read_config(config), keys, environment or {})
    state: GatewayState = app.state.server
    server, listening = make_server(app, state.settings), listen("127.0.0.1", 0, 30)
    port = listening.getsockname()[1]
    task = asyncio.create_task(serve(server, listening))
    try:
        async with asyncio.timeout(10):
            while not server.started:
                assert not task.done(), await task
                await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield Gateway(state, http, port, fakes)
    finally:
        for each in server.servers:  # an orderly end waits a fifth of a second; test_gateway_command has that
            each.close()
        await server.lifespan.shutdown()
        task.cancel()
        await asyncio.wait([task])


async def soon(holds: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether it holds, sooner or later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.005)
    return holds()


def through(
    body: Body,
    *fakes: FakeUpstream,
    keys: Sequence[ApiKey] = (),
    environment: Mapping[str, str] | None = None,
    **given: Any,
) -> None:
    """Run a test's body against a gateway before these upstreams; two of them unless some are given."""
    chosen = fakes or (FakeUpstream("one"), FakeUpstream("two"))

    async def main() -> None:
        for fake in chosen:
            await fake.start()
        try:
            async with gateway(chosen, config_of(chosen, **given), keys, environment) as running:
                await body(running)
                assert await soon(running.is_idle), running.state.router.num_waiting
        finally:
            for fake in chosen:
                await fake.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
