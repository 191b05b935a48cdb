"""`create_app`: the ASGI application over a loaded model. Any ASGI server can run it; `safegen serve` runs uvicorn."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import safegen
from safegen.async_llm import AsyncLLM
from safegen.llm import LLM
from safegen.runtime import Runtime
from safegen.server.batch_routes import batch_routes, file_routes
from safegen.server.batches import Batches
from safegen.server.errors import ApiError
from safegen.server.middleware import RequestIds
from safegen.server.openapi import describe
from safegen.server.playground.routes import playground_routes
from safegen.server.replies import error_answer
from safegen.server.routes import completion_routes, model_routes, state_routes
from safegen.server.settings import ServerSettings
from safegen.server.state import ServerState

_DESCRIPTION = "A model with guaranteed answers, in the shapes of OpenAI's API. What is not listed is refused by name."


def create_app(llm: LLM | AsyncLLM | Runtime, settings: ServerSettings | None = None) -> FastAPI:
    """The application. The model stays the caller's: it is not closed with the application.

    Its guards hold for every request. `app.state.server` is the ServerState. Raises RequestError for files and batches
    that cannot be kept where settings say.
    """
    runtime = llm if isinstance(llm, Runtime) else llm._runtime
    state = ServerState(runtime, settings or ServerSettings())
    folder = state.settings.data_dir
    batches = None if folder is None else Batches(state, folder)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(state.answers.close)
            if batches is not None:
                await stack.enter_async_context(batches)
            yield

    app = FastAPI(
        title="safegen", version=safegen.__version__, description=_DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.server = state
    for router in (completion_routes(state), model_routes(state), state_routes(state)):
        app.include_router(router)
    if state.settings.playground:
        app.include_router(playground_routes(state))
    if batches is not None:
        app.include_router(file_routes(state, batches))
        app.include_router(batch_routes(state, batches))
    app.openapi = partial(  # type: ignore[method-assign]
        describe, app, has_keys=not state.settings.keyring.is_open, model_names=state.settings.model_names
    )
    _handle_errors(app)
    if state.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(state.settings.cors_origins), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"], expose_headers=["x-request-id"],
        )  # fmt: skip
    app.add_middleware(RequestIds, meter=state.meter)
    return app


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error_answer(request: Request, error: ApiError) -> Response:
        return error_answer(error)

    @app.exception_handler(HTTPException)
    async def http_answer(request: Request, error: HTTPException) -> Response:
        """Of the router: no such path, or no such method there."""
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        message = {404: "there is nothing here", 405: "no such method here"}.get(error.status_code, "refused")
        return error_answer(ApiError(error.status_code, message, code=code, headers=error.headers))

    @app.exception_handler(RequestValidationError)
    async def parameter_answer(request: Request, error: RequestValidationError) -> Response:
        """Of a parameter in a path or a query."""
        first = error.errors()[0]
        param = str(first["loc"][-1])[:256]
        return error_answer(ApiError(400, f"invalid value for {param!r}", param=param, code="invalid_value"))
