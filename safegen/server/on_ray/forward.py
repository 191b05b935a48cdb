"""Files and batches on a cluster: every replica passes these requests on to the one that keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from safegen.server.errors import ApiError
from safegen.server.settings import ServerSettings

_OF_ONE_HOP = frozenset({"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_METHODS = ["GET", "POST", "DELETE"]


def forward_routes(address: str, settings: ServerSettings) -> APIRouter:
    """address: of that replica's application. Keys and limits are that one's to look at."""
    router = APIRouter(include_in_schema=False)
    timeout = httpx2.Timeout(settings.request_timeout_s, connect=5.0)
    client = httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)

    async def forward(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_ONE_HOP]
        url = f"{address}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
        content = _body(request) if request.method == "POST" else None
        try:
            answer = await client.send(
                client.build_request(request.method, url, headers=headers, content=content), stream=True
            )
        except httpx2.HTTPError as error:
            raise ApiError(
                503, "the replica that keeps files and batches cannot be reached", kind="server_error",
                code="service_unavailable", headers={"Retry-After": "5"},
            ) from error  # fmt: skip
        told = {name: value for name, value in answer.headers.items() if name not in _OF_ONE_HOP}
        return StreamingResponse(_pieces(answer), answer.status_code, told)

    for path in ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}"):
        router.add_api_route(path, forward, methods=_METHODS)
    return router


async def _pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Its connection is given back, also where the client leaves in the middle."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        yield piece
