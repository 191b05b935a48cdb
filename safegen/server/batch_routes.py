"""/v1/files and /v1/batches. What touches the disk runs on worker threads."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response
from starlette.types import Message

from safegen.server.auth import ApiKey
from safegen.server.batches import Batches
from safegen.server.bodies import parse_body, read_body, too_large
from safegen.server.errors import ApiError
from safegen.server.openapi import error_responses, json_body
from safegen.server.replies import JsonAnswer
from safegen.server.responses import BatchDocument, BatchList, FileDeleted, FileDocument, FileList
from safegen.server.schemas import BatchRequest
from safegen.server.state import ServerState

_FORM_SLACK_BYTES = 1 << 14  # boundaries and the other fields of an upload
_UPLOAD_TIMEOUTS = 20  # of a body; files are longer
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}

After = Annotated[str | None, Query(max_length=64)]


def file_routes(state: ServerState, batches: Batches) -> APIRouter:
    router = APIRouter()
    files = batches.files

    @router.post(
        "/v1/files", response_model=FileDocument, responses=error_responses(400, 401, 408, 413, 429, 503),
        openapi_extra=_UPLOAD,
    )  # fmt: skip
    async def upload_file(request: Request) -> Response:
        key = state.authenticated(request)
        with state.admission.enter(key):
            form = await _form(request, state)
            try:
                file, purpose = _upload(form)
                name = file.filename or ""
                return JsonAnswer(await asyncio.to_thread(files.add, file.file, name, purpose, key.name))
            finally:
                await form.close()

    @router.get("/v1/files", response_model=FileList, responses=error_responses(400, 401))
    async def list_files(
        request: Request,
        after: After = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        key = state.authenticated(request)
        return JsonAnswer(files.documents.page(key.name, after, limit, newest_first=order == "desc"))

    @router.get("/v1/files/{id}", response_model=FileDocument, responses=error_responses(401, 404))
    async def retrieve_file(request: Request, id: str) -> Response:
        key = state.authenticated(request)
        return JsonAnswer(files.documents.find(id, key.name)["shown"])

    @router.get(
        "/v1/files/{id}/content",
        responses={200: {"content": {"application/jsonl": {}}}, **error_responses(401, 404)},
    )
    async def retrieve_file_content(request: Request, id: str) -> Response:
        key = state.authenticated(request)
        files.documents.find(id, key.name)
        return FileResponse(files.content(id), media_type="application/jsonl")

    @router.delete("/v1/files/{id}", response_model=FileDeleted, responses=error_responses(401, 404))
    async def delete_file(request: Request, id: str) -> Response:
        key = state.authenticated(request)
        await asyncio.to_thread(files.remove, id, key.name)
        return JsonAnswer({"id": id, "object": "file", "deleted": True})

    return router


async def _form(request: Request, state: ServerState) -> FormData:
    """Raises ApiError 400, 408, 413."""
    most, received = state.settings.max_file_bytes + _FORM_SLACK_BYTES, 0
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "an upload is multipart/form-data", param="file", code="invalid_value")

    async def bounded() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise too_large(most)
        return message

    try:
        async with asyncio.timeout(state.settings.body_timeout_s * _UPLOAD_TIMEOUTS):
            limited = Request(request.scope, bounded)
            return await limited.form(max_files=1, max_fields=4, max_part_size=1 << 12)
    except TimeoutError:
        raise ApiError(408, "the upload did not arrive in time", code="body_timeout") from None
    except (HTTPException, KeyError, ValueError, ClientDisconnect):
        raise ApiError(400, "the form cannot be read", param="file", code="invalid_value") from None


def _upload(form: FormData) -> tuple[UploadFile, str]:
    unknown = sorted(set(form) - {"file", "purpose"})
    if unknown:
        raise ApiError(400, f"unknown parameter: {unknown[0]!r:.80}", param=unknown[0][:80], code="unknown_parameter")
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is an uploaded file", param="file", code="missing_required_parameter")
    if purpose != "batch":
        raise ApiError(400, "purpose is 'batch'", param="purpose", code="invalid_value")
    return file, purpose


def batch_routes(state: ServerState, batches: Batches) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/batches", response_model=BatchDocument, responses=error_responses(400, 401, 404, 408, 413, 429, 503),
        openapi_extra=json_body(BatchRequest),
    )  # fmt: skip
    async def create_batch(request: Request) -> Response:
        key: ApiKey = state.authenticated(request)
        with state.admission.enter(key):
            raw = await read_body(request, state.settings.max_body_bytes, state.settings.body_timeout_s)
            body = parse_body(BatchRequest, raw)
            stored = await asyncio.to_thread(batches.create, body, key)
        return JsonAnswer(stored["shown"])

    @router.get("/v1/batches", response_model=BatchList, responses=error_responses(400, 401))
    async def list_batches(
        request: Request, after: After = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        key = state.authenticated(request)
        return JsonAnswer(batches.documents.page(key.name, after, limit, newest_first=True))

    @router.get("/v1/batches/{id}", response_model=BatchDocument, responses=error_responses(401, 404))
    async def retrieve_batch(request: Request, id: str) -> Response:
        key = state.authenticated(request)
        return JsonAnswer(batches.shown(id, key.name))

    @router.post("/v1/batches/{id}/cancel", response_model=BatchDocument, responses=error_responses(401, 404, 409))
    async def cancel_batch(request: Request, id: str) -> Response:
        key = state.authenticated(request)
        stored = await asyncio.to_thread(batches.cancel, id, key.name)
        return JsonAnswer(stored["shown"])

    return router
