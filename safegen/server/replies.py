"""The way back: one JSON document, or server-sent events, for as long as the client is there to take them.

`Answering` runs the work of a request against its client's leaving: when the connection closes, the work is cancelled,
and with it the engine's request. A client that does not take what is sent within `write_timeout_s` counts as gone. An
error before the first byte is a status; after it, it is an event, and no `[DONE]` follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from safegen.server.errors import ApiError, api_error
from safegen.server.shapes import encoded

_log = logging.getLogger(__name__)
Work = Callable[["Reply"], Awaitable[None]]

_JSON = b"application/json"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client has left, or does not read."""


class JsonAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


def error_answer(error: ApiError) -> Response:
    return Response(error.encoded, error.status, error.headers, media_type="application/json")


class Reply:
    """What work may send: `json` or `whole` once, or `open`, any number of `event` and `piece`, and `done`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._since: float | None = None  # when the message was handed over that is not gone yet
        self._now = asyncio.get_running_loop().time
        self.is_begun = False

    @property
    def waiting_s(self) -> float:
        """How long the client has not taken what was sent."""
        return 0.0 if self._since is None else self._now() - self._since

    async def json(self, document: Any) -> None:
        await self.whole(200, encoded(document), {})

    async def error(self, error: ApiError) -> None:
        if self.is_begun:
            await self.piece(b"data: " + error.encoded + b"\n\n", more=False)
        else:
            await self.whole(error.status, error.encoded, error.headers)

    async def open(self) -> None:
        self.is_begun = True
        await self._put({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def event(self, document: bytes) -> None:
        """document: JSON, encoded."""
        await self.piece(b"data: " + document + b"\n\n", more=True)

    async def done(self) -> None:
        await self.piece(b"data: [DONE]\n\n", more=False)

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.is_begun = True
        listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        listed += [(b"content-type", _JSON), (b"content-length", str(len(body)).encode())]
        await self._put({"type": "http.response.start", "status": status, "headers": listed})
        await self.piece(body, more=False)

    async def piece(self, body: bytes, *, more: bool) -> None:
        await self._put({"type": "http.response.body", "body": body, "more_body": more})

    async def _put(self, message: dict[str, Any]) -> None:
        self._since = self._now()
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error
        self._since = None


class Answering(Response):
    """work: sends the answer; it has deadline_s. on_end: called once, whatever happens."""

    def __init__(self, work: Work, *, deadline_s: float, write_timeout_s: float, on_end: Callable[[], None]) -> None:
        self.status_code, self.background, self.raw_headers = 200, None, []
        self._work = work
        self._deadline_s = deadline_s
        self._write_timeout_s = write_timeout_s
        self._on_end = on_end
        self._has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        work = asyncio.create_task(self._answer(reply))
        watches = [asyncio.create_task(_client_left(receive)), asyncio.create_task(self._client_stalls(reply))]
        try:
            await asyncio.wait({work, *watches}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                for task in (work, *watches):
                    task.cancel()
                await asyncio.gather(work, *watches, return_exceptions=True)
            finally:
                self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end()

    async def _client_stalls(self, reply: Reply) -> None:
        """Ends when the client has taken nothing for too long; one look now and then is cheaper than a timer a send."""
        while reply.waiting_s < self._write_timeout_s:
            await asyncio.sleep(self._write_timeout_s / 4)

    async def _answer(self, reply: Reply) -> None:
        with contextlib.suppress(ClientGone):
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._work(reply)
            except ClientGone:
                raise
            except Exception as error:
                answer = api_error(error)
                if answer.status >= 500:
                    _log.error("a request failed: %s", type(error).__name__, exc_info=_trace(error, answer))
                await reply.error(answer)
            finally:
                self._end()  # now: a client that has its answer may ask again at once


def _trace(error: Exception, answer: ApiError) -> Any:
    """Where a fault of ours came from, without its message, which may quote a text."""
    if answer.code != "internal_error":
        return None
    return (RuntimeError, RuntimeError(type(error).__name__), error.__traceback__)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
