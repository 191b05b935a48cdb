"""What lies around the routes of every HTTP front of ours: errors in OpenAI's shape, CORS, ids, the log, the counts."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from safegen.server.door import Door
from safegen.server.errors import ApiError
from safegen.server.middleware import RequestIds
from safegen.server.replies import error_answer


def dress(app: FastAPI, door: Door) -> None:
    """Call it once, after the routes are there."""
    app.state.server = door
    _handle_errors(app)
    if door.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(door.settings.cors_origins), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"], expose_headers=["x-request-id"],
        )  # fmt: skip
    app.add_middleware(RequestIds, meter=door.meter)


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
