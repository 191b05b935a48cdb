"""`create_app`: the ASGI application over a loaded model. Any ASGI server can run it; `safegen serve` runs uvicorn."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI

import safegen
from safegen.async_llm import AsyncLLM
from safegen.llm import LLM
from safegen.runtime import Runtime
from safegen.server.batch_routes import batch_routes, file_routes
from safegen.server.batches import Batches
from safegen.server.openapi import describe
from safegen.server.playground.routes import playground_routes
from safegen.server.routes import completion_routes, model_routes, state_routes
from safegen.server.settings import ServerSettings
from safegen.server.shell import dress
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
    shared = (model_routes(state), state_routes(state, state.unready, state.metrics_text))
    for router in (completion_routes(state), *shared):
        app.include_router(router)
    if state.settings.playground:
        app.include_router(playground_routes(state))
    if batches is not None:
        app.include_router(file_routes(state, batches))
        app.include_router(batch_routes(state, batches))
    app.openapi = partial(  # type: ignore[method-assign]
        describe, app, has_keys=not state.settings.keyring.is_open, model_names=state.settings.model_names
    )
    dress(app, state)
    return app
