"""The OpenAPI document: FastAPI's own, with the bodies that are read by hand put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from safegen.server.responses import ErrorDocument
from safegen.server.schemas import BatchRequest, ChatRequest, CompletionRequest

_BODIES: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, BatchRequest)
_REFERENCE = "#/components/schemas/{model}"

_ERRORS: dict[int | str, str] = {
    400: "what is wrong with the request, by the name of the parameter",
    401: "no valid API key",
    404: "there is no such thing",
    405: "no such method here",
    409: "not in this state",
    408: "the body did not arrive in time",
    413: "the body is too large",
    422: "no valid answer was found within the limits",
    429: "a limit; Retry-After says when to try again",
    503: "the server is shutting down",
    504: "the deadline came first",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorDocument, "description": _ERRORS[status]} for status in statuses}


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """For openapi_extra of a route that reads its body itself."""
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


STREAM_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer: one document, or with stream chunks as server-sent events.",
          "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}  # fmt: skip


def describe(app: FastAPI, *, has_keys: bool, model_names: Sequence[str]) -> dict[str, Any]:
    """model_names: what `model` may be."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = made.setdefault("components", {})
        _, bodies = models_json_schema([(kind, "validation") for kind in _BODIES], ref_template=_REFERENCE)
        for kind in (ChatRequest, CompletionRequest):
            bodies["$defs"][kind.__name__]["properties"]["model"]["enum"] = list(model_names)
        components.setdefault("schemas", {}).update(bodies["$defs"])
        if has_keys:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{"key": []}]
        app.openapi_schema = made
    return app.openapi_schema
