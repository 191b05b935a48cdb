"""What a server is started with: limits, keys, names. Frozen, checked once; nothing in a request changes it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from safegen.errors import RequestError
from safegen.server.auth import ApiKey, Keyring


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """model_names: what requests may call the model; the first is what answers say. keys: who may call; none is
    everybody. data_dir: where files and batches are kept; None leaves /v1/files and /v1/batches out.

    max_pending: sequences of requests in work or waiting at once; more are answered 429. max_body_bytes: of a JSON
    body; max_file_bytes: of an uploaded file; max_stored_bytes: of all files of one key. body_timeout_s: for a
    request's headers to arrive, and for its body. request_timeout_s: for an answer, which a request may only
    shorten. write_timeout_s: for a client to take what was sent. max_choices: n times the prompts of a request.
    max_messages, max_tools: of a chat request. compile_threads: output types that are compiled at once; of one key
    one at a time. cors_origins: pages that may call from a browser; none by default. tool_format: how the model
    writes tool calls. drain_timeout_s: for requests in work after SIGTERM. batch_window: rows of a batch in flight,
    None is half of the engine's sequences. playground: the page at `/`.

    Raises RequestError that names the setting and its value.
    """

    model_names: tuple[str, ...] = ("default",)
    keys: tuple[ApiKey, ...] = ()
    data_dir: Path | None = None
    max_pending: int = 256
    max_body_bytes: int = 1 << 20
    max_file_bytes: int = 64 << 20
    max_stored_bytes: int = 1 << 30
    body_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    write_timeout_s: float = 30.0
    max_choices: int = 16
    max_messages: int = 1024
    max_tools: int = 128
    compile_threads: int = 2
    cors_origins: tuple[str, ...] = ()
    tool_format: str = "hermes"
    drain_timeout_s: float = 30.0
    batch_window: int | None = None
    playground: bool = True
    keyring: Keyring = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.model_names or not all(isinstance(name, str) and name for name in self.model_names):
            raise self._wrong("model_names", "at least one name")
        counts = (
            "max_pending", "max_body_bytes", "max_file_bytes", "max_stored_bytes", "max_choices", "max_messages",
            "max_tools", "compile_threads",
        )  # fmt: skip
        for name in counts:
            self._count(name)
        if self.batch_window is not None:
            self._count("batch_window")
        for name in ("body_timeout_s", "request_timeout_s", "write_timeout_s", "drain_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise self._wrong(name, "seconds above 0")
        if not isinstance(self.playground, bool):
            raise self._wrong("playground", "True or False")
        if "*" in self.cors_origins and self.keys:
            raise self._wrong("cors_origins", "the origins by name where there are keys")
        object.__setattr__(self, "keyring", Keyring(self.keys))

    def _count(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a number from 1 on")

    def _wrong(self, name: str, wanted: str) -> RequestError:
        value = getattr(self, name)
        return RequestError(f"{name}={value!r:.120}; it takes {wanted}", field=name, value=value)


LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def check_exposure(host: str, settings: ServerSettings, *, allow_anonymous: bool) -> None:
    """A server that others can reach has keys, unless it is told to have none. Raises RequestError."""
    if host not in LOOPBACK_HOSTS and not settings.keys and not allow_anonymous:
        raise RequestError(
            f"host={host!r} can be reached from other machines, and there are no API keys; pass --api-keys FILE, set "
            "SAFEGEN_API_KEYS, or pass --allow-anonymous",
            field="host",
            value=host,
        )


def default_model_name(model: str | os.PathLike[str] | None) -> str:
    """The name of a file without its suffix, of a folder, or of a hub id."""
    named = os.fspath(model) if model is not None else os.environ.get("SAFEGEN_MODEL", "")
    if not named:
        return "default"
    path = Path(named)
    return path.stem if path.suffix == ".gguf" else named.strip("/") if not path.exists() else path.name
