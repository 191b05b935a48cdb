"""Errors as OpenAI's API has them: `{"error": {"message", "type", "param", "code"}}` with a status.

`api_error` is the one place where the SDK's errors become answers. Messages are the SDK's own, which name fields, rules
and limits; a fault inside the server says its kind alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safegen.errors import (
    Cancelled,
    CapacityError,
    EngineClosed,
    GrammarError,
    GuardBlocked,
    InvalidOutput,
    JobError,
    QueueFull,
    RequestError,
    RetractsExhausted,
    SafegenError,
    SchemaError,
)

_MAX_MESSAGE_CHARACTERS = 2000


class ApiError(Exception):
    """An answer that is an error. param: the field of the request, as `messages[0].content`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:_MAX_MESSAGE_CHARACTERS]
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def encoded(self) -> bytes:
        """The body in ASCII: a message may name a text that has no UTF-8."""
        return json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Params:
    """What the request calls the things that the SDK's errors are about. spec: the output type."""

    prompt: str | None = None
    spec: str | None = None


def api_error(error: BaseException, params: Params = Params()) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return overloaded("the queue of the model is full; try again later", 1.0)
    if isinstance(error, TimeoutError):
        return ApiError(504, "the answer took longer than the deadline", kind="timeout_error", code="deadline_exceeded")
    if isinstance(error, EngineClosed | Cancelled):
        return unavailable()
    found = _of_the_request(error, params)
    if found is not None:
        return found
    if isinstance(error, InvalidOutput):
        where = f" (at {error.pointer})" if isinstance(error, RetractsExhausted) and error.pointer else ""
        message = f"no valid answer was found within the limits{where}"  # the error itself may quote the answer
        return ApiError(422, message, kind="invalid_output_error", code="invalid_output")
    named = f": {type(error).__name__}" if isinstance(error, SafegenError) else ""
    return ApiError(500, f"a fault inside the server{named}", kind="server_error", code="internal_error")


def _of_the_request(error: BaseException, params: Params) -> ApiError | None:
    """What the client can mend."""
    if isinstance(error, SchemaError):
        return ApiError(400, str(error), param=params.spec, code="invalid_json_schema")
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param=params.spec, code="invalid_grammar")
    if isinstance(error, CapacityError):
        return ApiError(400, str(error), param=params.prompt, code="context_length_exceeded")
    if isinstance(error, GuardBlocked):
        return ApiError(400, str(error), param=params.prompt, code="content_filter")
    if isinstance(error, JobError):
        return ApiError(400, error.reason, code="invalid_batch")
    if isinstance(error, RequestError):
        code = "context_length_exceeded" if error.field == "prompt" and "tokens" in str(error) else "invalid_value"
        param = params.prompt if error.field in ("prompt", "messages") else error.field
        return ApiError(400, str(error), param=param, code=code)
    return None


def overloaded(message: str, retry_after_s: float, *, code: str = "server_overloaded") -> ApiError:
    wait_s = max(1, min(3600, int(retry_after_s + 0.999)))
    headers = {"Retry-After": str(wait_s)}
    return ApiError(429, message, kind="rate_limit_error", code=code, headers=headers)


def unavailable() -> ApiError:
    return ApiError(
        503, "the server is shutting down", kind="server_error", code="shutting_down", headers={"Retry-After": "5"}
    )
