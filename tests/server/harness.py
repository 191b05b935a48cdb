"""A server in the test's own process (ASGI, no sockets), or on a real port of the loopback, and clients of both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI

from safegen.runtime import Runtime
from safegen.server.app import create_app
from safegen.server.serving import Server, listen, make_server, serve
from safegen.server.settings import ServerSettings
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_runtime

KEY = "a-key-of-at-least-sixteen"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(**{"model_names": ("m",), **given})


def slow_runtime(step_s: float, **given: Any) -> Runtime:
    """Every step of the engine takes so long."""
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.on_forward = lambda batch: time.sleep(step_s)
    return make_runtime(backend, **given)


@dataclass(frozen=True)
class InProcess:
    app: FastAPI
    runtime: Runtime
    http: httpx2.AsyncClient
    openai: AsyncOpenAI

    async def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return await self.http.post(path, json=body, **options)


@contextlib.asynccontextmanager
async def in_process(runtime: Runtime, key: str = KEY, **given: Any) -> AsyncIterator[InProcess]:
    app = create_app(runtime, settings(**given))
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=60) as http:
            client = AsyncOpenAI(api_key=key, base_url="http://server/v1", http_client=http, max_retries=0)
            yield InProcess(app, runtime, http, client)
    runtime.close()


def served(body: Callable[[InProcess], Awaitable[None]], runtime: Runtime | None = None, **given: Any) -> None:
    """Run a test's body against a server in process, over a runtime with pseudo-random logits unless one is given."""

    async def main() -> None:
        async with in_process(runtime or make_runtime(), **given) as server:
            await body(server)
            assert await blocks_return(server.runtime)

    asyncio.run(asyncio.wait_for(main(), 120))


async def blocks_return(runtime: Runtime, within_s: float = 5.0) -> bool:
    """Whether nothing runs and no sequence holds a block, soon."""
    return await asyncio.to_thread(wait_for_blocks, runtime, within_s)


def wait_for_blocks(runtime: Runtime, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        stats = runtime.engine_stats()
        if stats.running == 0 and stats.waiting == 0 and stats.free_blocks == stats.num_blocks:
            return True
        time.sleep(0.01)
    return False


@dataclass(frozen=True)
class Live:
    app: FastAPI
    runtime: Runtime
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = KEY) -> OpenAI:
        return OpenAI(api_key=key, base_url=f"{self.url}/v1", max_retries=0, timeout=60)

    def connect(self, receive_buffer_bytes: int | None = None) -> socket.socket:
        made = socket.socket()
        if receive_buffer_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        made.settimeout(30)
        made.connect(("127.0.0.1", self.port))
        return made


@contextlib.contextmanager
def live(runtime: Runtime, **given: Any) -> Iterator[Live]:
    """uvicorn in a thread, on a free port. Leaving drains it."""
    chosen = settings(**{"drain_timeout_s": 5.0, **given})
    app = create_app(runtime, chosen)
    server = make_server(app, chosen)
    listening = listen("127.0.0.1", 0, chosen.write_timeout_s)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(serve(server, listening)))
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield Live(app, runtime, server, port)
    finally:
        server.drain()
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"
        runtime.close()
