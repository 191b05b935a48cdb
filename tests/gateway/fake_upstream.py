"""An upstream in OpenAI's shapes that does what a test tells it, bad things included. Of the standard library alone, so
that it also starts in a blink as a process of its own: `python fake_upstream.py PORT NAME STEP_S`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

EVENTS = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def delta(text: str, **further: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **further}
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@dataclass
class Exchange:
    """One request, and the way to answer it. gone: set when the client's side of the connection has closed."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    keeps_open: bool = True

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed

    async def send(self, piece: bytes | str) -> None:
        self.writer.write(piece.encode() if isinstance(piece, str) else piece)
        await self.writer.drain()

    async def chunk(self, piece: bytes) -> None:
        await self.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    async def json(self, document: Any, status: int = 200, headers: str = "") -> None:
        await self.whole(json.dumps(document).encode(), status, "content-type: application/json\r\n" + headers)

    async def whole(self, body: bytes, status: int = 200, headers: str = "") -> None:
        await self.send(f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body)

    def cut(self) -> None:
        """As a process that is killed: a reset, nothing more."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.keeps_open = False


class FakeUpstream:
    """answer: what it does with a completion; health: with a check. seen: completions, as they came."""

    def __init__(self, name: str = "one", step_s: float = 0.0) -> None:
        self.name = name
        self.step_s = step_s
        self.answer: Callable[[Exchange], Awaitable[None]] = self.well
        self.health: Callable[[Exchange], Awaitable[None]] = self.ready
        self.seen: list[Exchange] = []
        self.num_checks = 0
        self.num_running = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port or self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def ready(self, exchange: Exchange) -> None:
        if exchange.path == "/ready":
            await exchange.json({"status": "ok"})
        else:
            await exchange.json({}, 404)

    async def well(self, exchange: Exchange) -> None:
        """`max_tokens` words, one each step_s."""
        count = exchange.body.get("max_tokens", 3)
        if not exchange.body.get("stream"):
            await asyncio.sleep(self.step_s * count)
            message = {"role": "assistant", "content": words(count)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await exchange.json({"id": self.name, "object": "chat.completion", "choices": [choice]})
            return
        for number in range(count):
            await asyncio.sleep(self.step_s)
            if number == 0:
                await exchange.send(EVENTS)
            await exchange.chunk(delta(f"w{number}" if number == 0 else f" w{number}"))
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.send("0\r\n\r\n")

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while (exchange := await _request(reader, writer)) is not None:
                await self._exchange(exchange, reader)
                if not exchange.keeps_open:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _exchange(self, exchange: Exchange, reader: asyncio.StreamReader) -> None:
        if exchange.method == "GET":
            self.num_checks += 1
            await self.health(exchange)
            return
        self.seen.append(exchange)
        work = asyncio.ensure_future(self.answer(exchange))
        watch = asyncio.ensure_future(_left(reader, exchange))
        self.num_running += 1
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.num_running -= 1
            exchange.keeps_open = exchange.keeps_open and not watch.done()
            for task in (work, watch):
                task.cancel()
            for task in (work, watch):
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task


async def _left(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    """A client that waits for its answer sends nothing more: what is read is its end."""
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
    exchange.gone.set()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ")
    return Exchange(method, path, headers, raw, writer)


async def _serve(port: int, name: str, step_s: float) -> None:
    fake = FakeUpstream(name, step_s)
    await fake.start(port)
    print("ready", fake.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
