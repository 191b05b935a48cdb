"""One replica: the server's application over a model of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from safegen.engine.threads import set_num_threads
from safegen.llm import LLM
from safegen.runtime import Runtime
from safegen.server.app import create_app
from safegen.server.middleware import REQUEST_ID_HEADER
from safegen.server.on_ray.forward import forward_routes
from safegen.server.settings import ServerSettings

MakeModel = Callable[[], LLM | Runtime]


@dataclass(frozen=True, slots=True)
class ReplicaRecipe:
    """All that a replica is made of; it crosses to its process pickled. cpus: that Ray sets aside for it, whose whole
    number is its threads, one at least. batches_at: where the replica that keeps files and batches is
    reached; None for that one itself, and where there is none."""

    make_model: MakeModel
    settings: ServerSettings
    cpus: float
    batches_at: str | None = None


class Replica:
    """Wrapped by `serve.ingress`, which asks for the application once this is made. Raises what making the model and
    the application raises; the deployment then fails with it."""

    def __init__(self, recipe: ReplicaRecipe) -> None:
        set_num_threads(max(1, math.floor(recipe.cpus)))
        self._model = recipe.make_model()
        self._runtime = self._model if isinstance(self._model, Runtime) else self._model._runtime
        settings = recipe.settings
        if recipe.batches_at is not None:
            settings = replace(settings, data_dir=None)
        self._application = create_app(self._runtime, settings)
        if recipe.batches_at is not None:
            self._application.include_router(forward_routes(recipe.batches_at, settings))
        self._application.state.server.labels["replica"] = replica_name()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return _without_request_id(self._application)

    def check_health(self) -> None:
        """Ray Serve replaces a replica whose engine has ended."""
        if self._runtime.is_closed:
            raise RuntimeError("the engine has ended")

    def __del__(self) -> None:
        runtime: Any = getattr(self, "_runtime", None)
        if runtime is not None:
            runtime.close()


def _without_request_id(app: ASGIApp) -> ASGIApp:
    """Ray's proxy gives every request its id, or takes the client's, and puts it on the answer: it must not stand there
    twice."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0] != REQUEST_ID_HEADER]
                message = {**message, "headers": kept}
            await send(message)

        await app(scope, receive, told)

    return called


def replica_name() -> str:
    from ray import serve

    return str(serve.get_replica_context().replica_id.unique_id)
