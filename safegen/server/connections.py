"""A client's connection: uvicorn's own for HTTP/1.1, with a bound on the time that a request's headers may take.

uvicorn bounds their size, and how long a connection may idle after an answer, but waits for ever for the first request
and for the rest of a header.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """headers_timeout_s: from the opening of the connection, or from the first byte of a later request, to the end of
    its headers; then it is closed."""

    def __init__(self, *arguments: Any, headers_timeout_s: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers_timeout_s = headers_timeout_s
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._watch()
        else:
            self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._overdue is None and not self.transport.is_closing():
            self._overdue = self.loop.call_later(self._headers_timeout_s, self._give_up)

    def _unwatch(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _give_up(self) -> None:
        self._overdue = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
