"""From bytes to a checked body: bounded, in time, strict JSON, the right shape. All failures are ApiErrors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from safegen.errors import SchemaError
from safegen.server.errors import ApiError
from safegen.types import parse_json

B = TypeVar("B", bound=BaseModel)

_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body as it came. Raises ApiError 413, 408, 400."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise too_large(max_bytes)
    received = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                received += piece
                if len(received) > max_bytes:
                    raise too_large(max_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} s"
        raise ApiError(408, message, code="body_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "the client left before its body had arrived", code="client_disconnected") from None
    return bytes(received)


def too_large(max_bytes: int) -> ApiError:
    message = f"the body is longer than {max_bytes:,} bytes"
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def parse_body(kind: type[B], raw: bytes) -> B:
    """Raises ApiError 400 that names the parameter."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is no UTF-8 at byte {error.start}", code="invalid_json") from None
    try:
        parsed = parse_json(text)
    except SchemaError as error:
        reason = error.reason.replace(" of the schema", "").replace("the schema", "the body")
        raise ApiError(400, f"the body is no strict JSON: {reason}", code="invalid_json") from None
    return validated(kind, parsed)


def validated(kind: type[B], parsed: Any) -> B:
    """Raises ApiError 400 that names the parameter."""
    if not isinstance(parsed, dict):
        raise ApiError(400, f"the body is an object, not {type(parsed).__name__}", code="invalid_json")
    try:
        return kind.model_validate(parsed)
    except ValidationError as failure:
        raise _first(failure, parsed) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _first(failure: ValidationError, parsed: Any) -> ApiError:
    """Of several things that are wrong an unknown name is told first: it may be what the others come from. Of the
    branches of a union the one that came farthest is the one that was meant."""
    errors = failure.errors(include_url=False, include_input=False, include_context=False)
    chosen = next((error for error in errors if error["type"] == "extra_forbidden"), None)
    if chosen is None:
        chosen = max(errors, key=lambda error: len(error["loc"]))
    param = param_of(chosen["loc"], parsed)
    code = _CODES.get(chosen["type"], "invalid_value")
    if code == "unknown_parameter":
        message = f"unknown parameter: {param!r}"
    elif code == "missing_required_parameter":
        message = f"missing required parameter: {param!r}"
    else:
        message = f"invalid value for {param!r}: {chosen['msg'][:1].lower()}{chosen['msg'][1:]}"
    return ApiError(400, message, param=param, code=code)


def param_of(loc: Sequence[int | str], parsed: Any) -> str | None:
    """The path in the body, as `messages[0].content`. What stands in loc for a branch of a union is left out."""
    path, at = "", parsed
    for number, step in enumerate(loc):
        is_last = number == len(loc) - 1
        if isinstance(step, int):
            if not isinstance(at, list):
                continue
            path += f"[{step}]"
            at = at[step] if step < len(at) else None
        elif isinstance(at, dict) and step == "[key]":
            continue
        elif isinstance(at, dict) and (step in at or is_last):
            path += f".{step}" if path else step
            at = at.get(step)
    return path[:256] or None
