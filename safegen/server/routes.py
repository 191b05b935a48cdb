"""The routes of completions, models and the server's own state."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from safegen.observe.openmetrics import CONTENT_TYPE
from safegen.server.bodies import parse_body
from safegen.server.completions import ChatSpelling, TextSpelling
from safegen.server.door import Door
from safegen.server.errors import ApiError, unavailable
from safegen.server.openapi import STREAM_CONTENT, error_responses, json_body
from safegen.server.replies import JsonAnswer
from safegen.server.responses import ChatCompletion, Health, ModelDocument, ModelList, TextCompletion
from safegen.server.schemas import ChatRequest, CompletionRequest
from safegen.server.state import ServerState
from safegen.server.translate import Call, chat_call, completion_call

_COMPLETION_RESPONSES = {**STREAM_CONTENT, **error_responses(400, 401, 404, 408, 413, 422, 429, 503, 504)}


def completion_routes(state: ServerState) -> APIRouter:
    router = APIRouter()

    def chat(raw: bytes, cache_salt: str | None) -> Call:
        return chat_call(parse_body(ChatRequest, raw), state.settings, cache_salt)

    def text(raw: bytes, cache_salt: str | None) -> Call:
        return completion_call(parse_body(CompletionRequest, raw), state.settings, cache_salt)

    @router.post(
        "/v1/chat/completions", response_model=ChatCompletion, responses=_COMPLETION_RESPONSES,
        openapi_extra=json_body(ChatRequest),
    )  # fmt: skip
    async def create_chat_completion(request: Request) -> Response:
        return await state.answering(request, chat, ChatSpelling(state.logprobs))

    @router.post(
        "/v1/completions", response_model=TextCompletion, responses=_COMPLETION_RESPONSES,
        openapi_extra=json_body(CompletionRequest),
    )  # fmt: skip
    async def create_completion(request: Request) -> Response:
        return await state.answering(request, text, TextSpelling(state.logprobs))

    return router


def model_routes(door: Door) -> APIRouter:
    router = APIRouter()
    created = int(time.time())
    models = {
        name: {"id": name, "object": "model", "created": created, "owned_by": "safegen"}
        for name in door.settings.model_names
    }

    @router.get("/v1/models", response_model=ModelList, responses=error_responses(401))
    async def list_models(request: Request) -> Response:
        door.authenticated(request)
        return JsonAnswer({"object": "list", "data": list(models.values())})

    @router.get("/v1/models/{model:path}", response_model=ModelDocument, responses=error_responses(401, 404))
    async def retrieve_model(request: Request, model: str) -> Response:
        door.authenticated(request)
        if model not in models:
            raise ApiError(404, f"there is no model {model!r:.80}", param="model", code="model_not_found")
        return JsonAnswer(models[model])

    return router


def state_routes(door: Door, unready: Callable[[], ApiError | None], text: Callable[[], str]) -> APIRouter:
    """/health and /ready take no key: load balancers have none. unready: why nothing can be answered, while nothing
    drains. text: of /metrics."""
    router = APIRouter()

    @router.get("/health", response_model=Health)
    async def health() -> Response:
        return JsonAnswer({"status": "ok"})

    @router.get("/ready", response_model=Health, responses=error_responses(503))
    async def ready() -> Response:
        reason = unavailable() if door.admission.is_draining else unready()
        if reason is not None:
            raise reason
        return JsonAnswer({"status": "ok"})

    @router.get("/metrics", responses={200: {"content": {CONTENT_TYPE: {}}}, **error_responses(401)})
    async def metrics(request: Request) -> Response:
        door.authenticated(request)
        return Response(text().encode("utf-8", "backslashreplace"), headers={"content-type": CONTENT_TYPE})

    return router
