"""The page and its two endpoints, under the server's keys, limits and guards."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from safegen.server.admission import Lease
from safegen.server.bodies import parse_body
from safegen.server.errors import ApiError
from safegen.server.playground.explain import Explaining, ExplainRequest
from safegen.server.playground.page import page
from safegen.server.playground.places import telling_places
from safegen.server.playground.run import TracedAnswer
from safegen.server.replies import Work
from safegen.server.schemas import ChatRequest
from safegen.server.state import ServerState
from safegen.server.translate import chat_call


def playground_routes(state: ServerState) -> APIRouter:
    """The page itself takes no key: it holds nothing that is worth one."""
    router = APIRouter(include_in_schema=False)

    def run(raw: bytes, cache_salt: str | None, lease: Lease) -> tuple[Work, float]:
        call = chat_call(parse_body(ChatRequest, raw), state.settings, cache_salt)
        if call.n != 1:
            raise ApiError(400, "the playground shows one answer", param="n", code="invalid_value")
        traced = replace(call, options=replace(call.options, token_origins=True))
        return TracedAnswer(state.answers, traced, lease).send, call.deadline_s

    def explain(raw: bytes, cache_salt: str | None, lease: Lease) -> tuple[Work, float]:
        body = parse_body(ExplainRequest, raw)
        call = chat_call(body, state.settings, cache_salt)
        return Explaining(state.answers, call, body.text, lease).send, call.deadline_s

    @router.get("/")
    async def playground() -> Response:
        made = page()
        return Response(made.body, headers=made.headers)

    @router.post("/playground/run")
    async def playground_run(request: Request) -> Response:
        with telling_places():
            return await state.admitted(request, run)

    @router.post("/playground/explain")
    async def playground_explain(request: Request) -> Response:
        with telling_places():
            return await state.admitted(request, explain)

    return router
