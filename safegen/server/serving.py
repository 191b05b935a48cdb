"""Running the application with uvicorn: sockets that notice a vanished client, and an orderly end.

SIGTERM or SIGINT: `/ready` says 503, nothing new is taken, requests in work are finished as far as `drain_timeout_s`
allows, then cancelled; batches stop and go on with the next start. A second signal ends at once.

A client that vanishes without a word (half-open) is found by the kernel: keep-alive probes where nothing is sent, and
TCP_USER_TIMEOUT where something is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from safegen.errors import RequestError
from safegen.server.connections import Connection
from safegen.server.settings import ServerSettings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MAX_HEADER_BYTES = 1 << 16
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 30, 10, 3
_KEEP_ALIVE_S = 15


class Server(uvicorn.Server):
    """on_drain: called at the first signal."""

    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_drain = on_drain

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again at the end, so that an orderly end would look like a crash."""
        loop, handled = asyncio.get_running_loop(), list[signal.Signals]()
        for each in _SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                loop.add_signal_handler(each, self.drain)
                handled.append(each)
        try:
            yield
        finally:
            for each in handled:
                loop.remove_signal_handler(each)

    def drain(self) -> None:
        """Take nothing new; a second time: end at once."""
        if self.should_exit:
            self.force_exit = True
            return
        self._on_drain()
        self.should_exit = True


def make_server(app: FastAPI, settings: ServerSettings) -> Server:
    connection = partial(Connection, headers_timeout_s=settings.body_timeout_s, max_header_bytes=_MAX_HEADER_BYTES)
    config = uvicorn.Config(
        app,
        http=connection,  # type: ignore[arg-type] # called as the class is
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout_s)),
        limit_concurrency=None,
    )
    admission = app.state.server.admission

    def on_drain() -> None:
        admission.is_draining = True

    return Server(config, on_drain)


def listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """A listening socket whose connections inherit what finds vanished clients. Raises RequestError."""
    if not 0 <= port <= 65535:
        raise RequestError(f"port={port} cannot be listened at: ports are 0 to 65535", field="port", value=port)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (
                ("TCP_KEEPIDLE", _PROBE_AFTER_S),
                ("TCP_KEEPINTVL", _PROBE_EVERY_S),
                ("TCP_KEEPCNT", _PROBES),
                ("TCP_USER_TIMEOUT", int(write_timeout_s * 2000)),
            ):
                if hasattr(socket, name):  # Linux has all of them
                    made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            made.bind(address)
            made.listen(1024)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        raise RequestError(f"{host}:{port} cannot be listened at: {error}", field="port", value=port) from error
    return made


async def serve(server: Server, listening: socket.socket) -> None:
    """Serve until a signal, or until `server.drain()`."""
    try:
        await server.serve(sockets=[listening])
    finally:
        listening.close()
