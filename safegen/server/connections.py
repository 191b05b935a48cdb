"""A client's connection: uvicorn's own for HTTP/1.1 over llhttp, with bounds on a request's headers.

uvicorn bounds neither their size there nor their time: it waits for ever for the first request and for the rest of a
header. How long a connection may idle after an answer it does bound.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol


class _HeadersTooLarge(Exception):
    pass


class Connection(HttpToolsProtocol):
    """headers_timeout_s: from the opening of the connection, or from the first byte of a later request, to the end of
    its headers; then it is closed. max_header_bytes: of a request's line and headers; past it the answer is 431."""

    def __init__(self, *arguments: Any, headers_timeout_s: float, max_header_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers_timeout_s = headers_timeout_s
        self._max_header_bytes = max_header_bytes
        self._num_header_bytes: int | None = 0  # that came of the next request; None while its body comes
        self._is_too_large = False
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._num_header_bytes is not None:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._num_header_bytes is not None and self._num_header_bytes > self._max_header_bytes:
            self._is_too_large = True
            self.send_400_response("")
        elif self._is_between_requests:
            self._watch()
        else:
            self._unwatch()

    def on_headers_complete(self) -> None:
        self._num_header_bytes = None
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._max_header_bytes:
            self._is_too_large = True
            raise _HeadersTooLarge  # llhttp stops; uvicorn takes it for a bad request
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._num_header_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_too_large:
            super().send_400_response(msg)
        elif not self.transport.is_closing():
            if self._is_between_requests:  # else it would lie within another request's answer
                self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

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
