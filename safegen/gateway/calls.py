"""A request as the gateway sees it: which model, whether a stream, and what its prompt begins with. The body itself
goes on as it came, byte for byte.

It is read as strict JSON all the same: of a name given twice the gateway and an upstream might take different ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from safegen.server.bodies import parse_body
from safegen.server.errors import ApiError


class Envelope(BaseModel):
    """What is looked at; upstreams judge the rest."""

    model_config = ConfigDict(extra="ignore", strict=True)
    model: Annotated[str, Field(min_length=1, max_length=256)]
    stream: bool | None = None
    messages: Any = None
    prompt: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """endpoint: below the base URL of an upstream. affinity: of the prompt's beginning, None where it has none.
    headers: what upstreams get beside their own. authorization: the client's own."""

    endpoint: str
    model: str
    is_stream: bool
    body: bytes
    affinity: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    authorization: bytes | None = None

    @property
    def request_id(self) -> str:
        return next((value.decode() for name, value in self.headers if name == b"x-request-id"), "-")


def read_call(
    endpoint: str,
    body: bytes,
    *,
    model_names: frozenset[str],
    prefix_characters: int,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    authorization: bytes | None = None,
) -> Call:
    """Raises ApiError 400, or 404 for a model that no upstream has."""
    envelope = parse_body(Envelope, body)
    if envelope.model not in model_names:
        raise ApiError(404, f"there is no model {envelope.model!r:.80}", param="model", code="model_not_found")
    affinity = affinity_of(envelope, prefix_characters)
    return Call(endpoint, envelope.model, bool(envelope.stream), body, affinity, headers, authorization)


def affinity_of(envelope: Envelope, prefix_characters: int) -> bytes | None:
    """A digest of the model and of how the prompt begins, so far as it stays the same from turn to turn: the messages
    up to the first one of the user, cut after so many characters. A prompt that is a list is one by its first item."""
    if prefix_characters == 0:
        return None
    pieces, left = [], prefix_characters
    for text in _beginning(envelope):
        pieces.append(text[:left])
        left -= len(pieces[-1])
        if left <= 0:
            break
    if not any(pieces):
        return None
    written = json.dumps([envelope.model, "".join(pieces)])
    return hashlib.blake2b(written.encode(), digest_size=16).digest()


def _beginning(envelope: Envelope) -> Iterator[str]:
    prompt = envelope.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if prompt is not None:
        yield prompt if isinstance(prompt, str) else json.dumps(prompt)
    for message in envelope.messages if isinstance(envelope.messages, list) else ():
        if not isinstance(message, dict):
            return
        content = message.get("content")
        yield f"\n{message.get('role')}: "
        yield content if isinstance(content, str) else json.dumps(content)
        if message.get("role") == "user":
            return
