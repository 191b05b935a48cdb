"""What a gateway is told: upstreams, and how they are chosen, watched and given up. One YAML (or JSON) file, read once.

Every number has a default and bounds; what is unknown is refused by its path, as `upstreams[0].url`. Keys of upstreams
are named by environment variables, so that the file holds no secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from safegen.errors import RequestError
from safegen.server.auth import ApiKey
from safegen.server.bodies import param_of
from safegen.server.settings import ServerSettings

AUTOMATIC, NONE = "auto", "none"
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
_HEADER = re.compile(r"[a-z0-9-]{1,64}")
_NOT_FORWARDED = frozenset({
    "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie",
    "expect", "forwarded", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id",
})  # fmt: skip


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class UpstreamConfig(_Section):
    """url: the base URL, as OpenAI clients take it; without a path it is the host's /v1. models: the names that it
    answers to. key_env: the variable that holds its key. forward_authorization: it gets the client's own key instead.
    max_concurrent: requests that it has at once. health: the path that tells whether it lives, "none", or "auto" for
    the first that it has of /ready, /health and its list of models. ca_file: of who has signed its certificate."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    url: str
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)]
    key_env: str | None = None
    forward_authorization: bool = False
    max_concurrent: Count = 64
    health: str = AUTOMATIC
    ca_file: str | None = None

    @field_validator("url")
    @classmethod
    def _is_base_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("a base URL is http://HOST:PORT/v1 or https://HOST/v1")
        if parts.username is not None or parts.query or parts.fragment or re.search(r"[^!-~]|\\|\.\.", url):
            raise ValueError("a base URL has no user, query, fragment, '..', or characters outside of ASCII")
        try:
            httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ValueError(str(error)) from None
        path = parts.path.rstrip("/")
        return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"

    @field_validator("health")
    @classmethod
    def _is_path(cls, health: str) -> str:
        if health not in (AUTOMATIC, NONE) and not re.fullmatch(r"/(?!/)[!-~]*", health):
            raise ValueError("it takes a path such as /health, 'auto' or 'none'")
        return health

    @model_validator(mode="after")
    def _has_one_key(self) -> UpstreamConfig:
        if self.forward_authorization and self.key_env is not None:
            raise ValueError("an upstream has key_env or forward_authorization, not both")
        return self


class Routing(_Section):
    """prefix_characters: how much of the beginning of a prompt picks the favoured upstream; 0 leaves that out.
    spill_after: how many more requests than the least busy one the favoured may have."""

    prefix_characters: Annotated[int, Field(ge=0, le=1 << 20)] = 2048
    spill_after: Annotated[int, Field(ge=0, le=1 << 20)] = 4


class HealthChecks(_Section):
    """An upstream is down after so many failed checks in succession, and up after so many good ones. A connection that
    cannot be opened counts as a failed check, and brings the next one forward."""

    interval_s: Seconds = 2.0
    timeout_s: Seconds = 2.0
    down_after: Count = 2
    up_after: Count = 1


class Circuit(_Section):
    """failures: in succession, or failure_share of the last `window` requests; then the upstream rests for open_s, and
    after each probe that fails twice as long, up to max_open_s."""

    failures: Count = 5
    window: Count = 20
    failure_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    open_s: Seconds = 1.0
    max_open_s: Seconds = 30.0

    @model_validator(mode="after")
    def _grows(self) -> Circuit:
        if self.max_open_s < self.open_s:
            raise ValueError("max_open_s is at least open_s")
        return self


class Retries(_Section):
    """max_attempts: of one request, the first included. share: tries beyond the first, of all requests; per_second: so
    many more; reserve: how many may come at once, such as when an upstream dies with all that it has in work; None is
    as many as all upstreams together may have."""

    max_attempts: Annotated[int, Field(ge=1, le=16)] = 3
    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    per_second: Annotated[float, Field(ge=0, le=10_000)] = 10.0
    reserve: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class Timeouts(_Section):
    """connect_s: to an upstream. first_event_s: of a stream; between_events_s: silence after that. answer_s: of a whole
    document. The request's own deadline, server.request_timeout_s, is above all of them."""

    connect_s: Seconds = 3.0
    first_event_s: Seconds = 60.0
    between_events_s: Seconds = 60.0
    answer_s: Seconds = 300.0


class Queue(_Section):
    """Requests that wait, of one model, while none of its upstreams has room or lives; and how long they do."""

    max_waiting: Annotated[int, Field(ge=0, le=1 << 20)] = 128
    wait_s: Seconds = 10.0


class Sizes(_Section):
    """max_answer_bytes: of a document, which is held until it is whole. max_event_bytes: of one event of a stream."""

    max_answer_bytes: Count = 16 << 20
    max_event_bytes: Count = 1 << 20


class ServerSection(_Section):
    """What ServerSettings has for a server. max_pending: requests in work or waiting, of all models."""

    max_pending: Count = 1024
    max_body_bytes: Count = 1 << 20
    body_timeout_s: Seconds = 30.0
    request_timeout_s: Seconds = 600.0
    write_timeout_s: Seconds = 30.0
    drain_timeout_s: Seconds = 30.0
    cors_origins: tuple[str, ...] = ()


class GatewayConfig(_Section):
    """hedge_after_s: a request whose answer has not begun after that is also sent to a second upstream, and the first
    to begin wins; None never does. forward_headers: of the client's headers, which upstreams get."""

    upstreams: Annotated[tuple[UpstreamConfig, ...], Field(min_length=1, max_length=256)]
    routing: Routing = Routing()
    health: HealthChecks = HealthChecks()
    circuit: Circuit = Circuit()
    retries: Retries = Retries()
    timeouts: Timeouts = Timeouts()
    queue: Queue = Queue()
    sizes: Sizes = Sizes()
    server: ServerSection = ServerSection()
    hedge_after_s: Seconds | None = None
    forward_headers: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_are_distinct(self) -> GatewayConfig:
        names = [upstream.name for upstream in self.upstreams]
        if len(set(names)) != len(names):
            raise ValueError("two upstreams have the same name")
        return self

    @field_validator("forward_headers")
    @classmethod
    def _are_headers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(name.lower() for name in names)
        for name in lowered:
            if not _HEADER.fullmatch(name) or name in _NOT_FORWARDED:
                raise ValueError(f"{name!r:.80} is no header that can be forwarded")
        return lowered

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for upstream in self.upstreams for name in upstream.models))

    def server_settings(self, keys: Iterable[ApiKey] = ()) -> ServerSettings:
        return ServerSettings(model_names=self.model_names, keys=tuple(keys), **self.server.model_dump())


def read_config(document: Any) -> GatewayConfig:
    """Raises RequestError that names the place."""
    try:
        return GatewayConfig.model_validate_json(json.dumps(document, default=str))  # JSON has lists for tuples
    except ValidationError as failure:
        errors = failure.errors(include_url=False, include_context=False)
        first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
        field = param_of(first["loc"], document)
        if first["type"] == "extra_forbidden":
            message = f"there is no setting {field!r}"
        else:
            message = f"{field or 'the configuration'}: {first['msg'].removeprefix('Value error, ')}"
        raise RequestError(message, field=field) from None


def load_config(path: str | os.PathLike[str]) -> GatewayConfig:
    """From a YAML (or JSON) file. Raises RequestError."""
    import yaml  # type: ignore[import-untyped]

    try:
        document: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}", field="config", value=str(path)) from error
    except yaml.YAMLError as error:
        raise RequestError(f"{path} is no YAML: {error}", field="config", value=str(path)) from error
    try:
        return read_config(document)
    except RequestError as error:
        raise RequestError(f"{path}: {error}", field=error.field) from None
