"""A client's connection: uvicorn's own for HTTP/1.1 over llhttp, with bounds on a request's headers.

uvicorn bounds neither their size there nor their time: it waits for ever for the first request and for the rest of a
header. How long a connection may idle after an answer it does bound.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """headers_timeout_s: from the opening of the connection, or from the first byte of a later request, to the end of
    its headers; then it is closed. max_header_bytes: of a request's line and headers; past it the answer is 431."""

    def __init__(self, *arguments: Any, headers_timeout_s: float, max_header_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers_timeout_s = headers_timeout_s
        self._max_header_bytes = max_header_bytes
        self._num_header_bytes = 0  # that came of headers which are not complete, or were not when their last part came
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._is_between_requests:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if not self._is_between_requests:
            self._unwatch()
        elif self._num_header_bytes > self._max_header_bytes:
            self._refuse()
        else:
            self._watch()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._num_header_bytes = 0
        if size > self._max_header_bytes:
            self._refuse()
        else:
            super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _watch(self) -> None:
        if self._overdue is None and not self.transport.is_closing():
            self._overdue = self.loop.call_later(self._headers_timeout_s, self._give_up)

    def _unwatch(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _give_up(self) -> None:
        self._overdue = None
        if self._is_between_requests:
            self.transport.close()
