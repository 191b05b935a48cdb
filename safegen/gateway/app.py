"""`create_gateway`: the ASGI application over a configuration. Any ASGI server runs it; the command runs uvicorn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

import safegen
from safegen.gateway.config import GatewayConfig
from safegen.gateway.state import GatewayState
from safegen.server.auth import ApiKey
from safegen.server.routes import model_routes, state_routes
from safegen.server.shell import dress

_VERSION = "/v1"
ENDPOINTS = ("/chat/completions", "/completions", "/embeddings")


def create_gateway(
    config: GatewayConfig, keys: Iterable[ApiKey] = (), environment: Mapping[str, str] = os.environ
) -> FastAPI:
    """keys: who may call; none is everybody. environment: where the keys of upstreams are. `app.state.server` is the
    GatewayState. Raises RequestError for a key or certificate that is not there."""
    state = GatewayState(config, keys, environment)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with state.running():
            yield

    app = FastAPI(
        title="safegen gateway", version=safegen.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    for router in (_answer_routes(state), model_routes(state), state_routes(state, state.unready, state.metrics_text)):
        app.include_router(router)
    dress(app, state)
    return app


def _answer_routes(state: GatewayState) -> APIRouter:
    router = APIRouter()
    for endpoint in ENDPOINTS:

        async def answer(request: Request, endpoint: str = endpoint) -> Response:
            return await state.answering(request, endpoint)

        router.add_api_route(_VERSION + endpoint, answer, methods=["POST"], response_model=None)
    return router
