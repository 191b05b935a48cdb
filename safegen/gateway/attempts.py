"""One try at one upstream: from a place there to an answer that has begun, or a failure that says whether it counts.

A document has begun when all of it is here, a stream with its first event; until then another upstream may still be
asked. What is the client's own doing (a 4xx, a deadline that it set) is an answer. What is the upstream's (no
connection, silence, a 5xx, a redirect, no JSON, an error as the first event, a key that it refuses) is a failure.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

import safegen
from safegen.gateway.calls import Call
from safegen.gateway.config import Sizes, Timeouts
from safegen.gateway.framing import EventTooLong, Framer, error_of, first_data
from safegen.gateway.upstream import Place, UnbegunAttempt, Upstream
from safegen.server.errors import ApiError, overloaded

log = logging.getLogger("safegen.gateway")

USER_AGENT = f"safegen-gateway/{safegen.__version__}".encode()
_OVERLOADED, _NOT_IMPLEMENTED = 429, 501
_READ_WHOLE_BYTES = 1 << 16  # of longer documents only the brackets are looked at
_FAULTS = frozenset({"server_error", "rate_limit_error", "internalservererror", "api_error", "overloaded_error"})


@dataclass(frozen=True, slots=True)
class Whole:
    """A document, with its status. headers: those that a client gets."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class AttemptFailed(Exception):
    """reason: how the upstream failed, for the log and the client. answer: what it said, if a client may hear it.
    is_busy: it has no room, and is well. is_paid: what another try costs is taken already."""

    def __init__(
        self, reason: str, answer: Whole | None = None, *, is_busy: bool = False, is_paid: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        self.is_busy = is_busy
        self.is_paid = is_paid

    def told(self) -> Whole:
        """What a client gets when nothing else is tried. Raises ApiError."""
        if self.answer is None and self.is_busy:
            raise overloaded("all upstreams of the model are busy; try again later", 1.0)
        if self.answer is None:
            raise upstream_failed(f"the upstream {self.reason}")
        return self.answer


def upstream_failed(message: str) -> ApiError:
    return ApiError(502, message, kind="server_error", code="upstream_failed")


class Stream:
    """A stream that has begun. `aclose` gives its connection and its place back."""

    def __init__(self, place: Place, pieces: Pieces, framer: Framer, first: bytes, between_s: float) -> None:
        self._place = place
        self._pieces = pieces
        self._framer = framer
        self._first = first
        self._between_s = between_s

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Whole events, as soon as they are there. Raises ApiError where the upstream ends before the stream does."""
        yield self._first
        try:
            while (piece := await self._next()) is not None:
                if whole := self._framer.feed(piece):
                    yield whole
        except EventTooLong:
            raise self._cut("sent an event that is too long") from None
        if not self._framer.is_over:
            raise self._cut("ended before the answer did")

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(self._between_s):
                return await self._pieces.next()
        except TimeoutError:
            raise self._cut(f"has sent nothing for {self._between_s:g} s") from None
        except httpx2.TransportError:
            raise self._cut("has gone away") from None

    def _cut(self, reason: str) -> ApiError:
        self._place.failed()
        return upstream_failed(f"the upstream {reason}; what was sent is not the whole answer")

    async def aclose(self) -> None:
        try:
            await self._pieces.aclose()
        finally:
            self._place.close()


class Pieces:
    """The body of a response, as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._iterator: AsyncIterator[bytes] = response.aiter_raw()

    async def next(self) -> bytes | None:
        return await anext(self._iterator, None)

    async def whole(self, max_bytes: int) -> bytes:
        received = bytearray()
        while (piece := await self.next()) is not None:
            received += piece
            if len(received) > max_bytes:
                raise AttemptFailed(f"answered with more than {max_bytes:,} bytes")
        return bytes(received)

    async def aclose(self) -> None:
        await self._response.aclose()


class Attempts:
    def __init__(self, timeouts: Timeouts, sizes: Sizes) -> None:
        self._timeouts = timeouts
        self._sizes = sizes

    async def make(self, place: Place, call: Call, may_move: Callable[[], bool]) -> Whole | Stream:
        """The place is given back unless a stream has begun. may_move: takes what another attempt costs. Raises
        AttemptFailed."""
        answer: Whole | Stream | None = None
        try:
            answer = await self._bounded(place, call, may_move)
            place.succeeded()
            return answer
        except AttemptFailed as failure:
            log.warning("request %s: upstream %s %s", call.request_id, place.upstream.name, failure.reason)
            (place.busy if failure.is_busy else place.failed)()
            raise
        finally:
            if not isinstance(answer, Stream):
                place.close()

    async def _bounded(self, place: Place, call: Call, may_move: Callable[[], bool]) -> Whole | Stream:
        upstream = place.upstream
        limit_s = self._timeouts.first_event_s if call.is_stream else self._timeouts.answer_s
        scope = asyncio.timeout(limit_s)
        attempt = UnbegunAttempt(scope, may_move)
        try:
            async with scope:
                with upstream.unbegun(attempt):
                    return await self._begun(place, call)
        except TimeoutError:
            if attempt.is_moved:
                raise AttemptFailed("has gone down", is_paid=True) from None
            raise AttemptFailed(f"has not answered within {limit_s:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            upstream.checked(False)
            upstream.look_again.set()
            raise AttemptFailed("cannot be reached") from None
        except httpx2.TransportError:
            upstream.look_again.set()
            raise AttemptFailed("has gone away without an answer") from None

    async def _begun(self, place: Place, call: Call) -> Whole | Stream:
        response = await place.upstream.transport.handle_async_request(self._request(place.upstream, call))
        pieces = Pieces(response)
        stream = None
        try:
            media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.headers.get("content-encoding", "identity") != "identity":
                raise AttemptFailed("answered in an encoding that it was not asked for")
            if response.status_code == 200 and media_type == "text/event-stream":
                stream = await self._stream(place, pieces)
                return stream
            body = await pieces.whole(self._sizes.max_answer_bytes)
            return _judged(place.upstream, response, body, is_json=media_type.endswith("json") and _is_object(body))
        finally:
            if stream is None:
                await pieces.aclose()

    def _request(self, upstream: Upstream, call: Call) -> httpx2.Request:
        accept = b"text/event-stream" if call.is_stream else b"application/json"
        headers = [
            (b"accept", accept), (b"accept-encoding", b"identity"), (b"content-type", b"application/json"),
            (b"user-agent", USER_AGENT), *call.headers, *upstream.authorization(call.authorization),
        ]  # fmt: skip
        timeout = {"connect": self._timeouts.connect_s}
        return httpx2.Request(
            "POST", upstream.config.url + call.endpoint, headers=headers, content=call.body,
            extensions={"timeout": timeout},
        )  # fmt: skip

    async def _stream(self, place: Place, pieces: Pieces) -> Stream:
        """Up to its first event; comments before it are left out."""
        framer = Framer(self._sizes.max_event_bytes)
        try:
            while (piece := await pieces.next()) is not None:
                first = framer.feed(piece)
                data = first_data(first)
                if data is not None:
                    _refuse_fault(data)
                    return Stream(place, pieces, framer, first, self._timeouts.between_events_s)
        except EventTooLong:
            raise AttemptFailed("sent an event that is too long") from None
        raise AttemptFailed("ended its stream before it had begun")


def _judged(upstream: Upstream, response: httpx2.Response, body: bytes, *, is_json: bool) -> Whole:
    """Raises AttemptFailed where the status is the upstream's fault, or the body is none that it should be."""
    status = response.status_code
    if 300 <= status < 400:
        raise AttemptFailed("answered with a redirect, which is not followed")
    headers = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}
    said = Whole(status, body, headers) if is_json else None
    if status in (401, 403) and not upstream.config.forward_authorization:
        raise AttemptFailed("has refused the key of the gateway")
    if status == _OVERLOADED:
        raise AttemptFailed("is busy", said, is_busy=True)
    if status >= 500 and status != _NOT_IMPLEMENTED and not _is_own_deadline(status, body):
        raise AttemptFailed(f"answered with status {status}", said)
    if said is None and status < 300:
        raise AttemptFailed("answered with something that is no JSON object")
    return said or Whole(status, ApiError(status, f"the upstream answered with status {status}").encoded)


def _is_object(body: bytes) -> bool:
    if len(body) > _READ_WHOLE_BYTES:
        return body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _is_own_deadline(status: int, body: bytes) -> bool:
    """A deadline that the client has set itself, which safegen servers tell by name."""
    error = error_of(body) if status == 504 else None
    return error is not None and error.get("code") == "deadline_exceeded"


def _refuse_fault(data: bytes) -> None:
    """An error as the first event of a stream is a status that came late."""
    error = error_of(data)
    if error is None or not _is_fault(error):
        return
    is_busy = error.get("type") == "rate_limit_error"
    said = Whole(_OVERLOADED if is_busy else 502, json.dumps({"error": error}).encode())
    raise AttemptFailed("answered with an error", said, is_busy=is_busy)


def _is_fault(error: dict[str, Any]) -> bool:
    code = error.get("code")
    if isinstance(code, int) and not isinstance(code, bool):
        return code >= 500 or code == _OVERLOADED
    return str(error.get("type")).lower() in _FAULTS
