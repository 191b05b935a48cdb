"""What every request passes: an id, a line in the log, a count, and an answer in OpenAI's shape whatever happens.

Written against ASGI itself, as nothing may stand between a response and its client's leaving. The log has the request's
id, method, route, status, key name and time: no path of the client's, no query, no header, no content.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from safegen.server.errors import ApiError
from safegen.server.meter import HttpMeter
from safegen.server.replies import error_answer

log = logging.getLogger("safegen.server")

REQUEST_ID_HEADER = b"x-request-id"
CLIENT_LEFT = 499
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """The outermost layer. A client's own x-request-id is taken if it is up to 64 letters, digits, '.', '_', '-'."""

    def __init__(self, app: ASGIApp, meter: HttpMeter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}".encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        started, status = time.perf_counter(), CLIENT_LEFT

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(REQUEST_ID_HEADER, request_id), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        self._meter.num_running += 1
        try:
            await self._app(scope, receive, told)
        except Exception as error:
            log.error("request %s failed: %s", request_id.decode(), type(error).__name__)
            if status == CLIENT_LEFT:
                fault = ApiError(500, "a fault inside the server", kind="server_error", code="internal_error")
                await error_answer(fault)(scope, receive, told)
        finally:
            self._meter.num_running -= 1
            route = getattr(scope.get("route"), "path", "none")
            self._meter.ended(route, status)
            log.info(
                "request %s %s %s %d key=%s %.1f ms", request_id.decode(), _method(scope), route, status,
                scope.get("state", {}).get("key_name", "-"), (time.perf_counter() - started) * 1e3,
            )  # fmt: skip


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method.isalpha() and len(method) <= 16 else "OTHER"
