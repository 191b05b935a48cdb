"""Clients of `benchmarks/serve.py`: streams of chat completions over HTTP, whose first and last text is timed.

The clients share the machine with the server that they measure, so they do little: one connection a request, bytes are
put by as they come, searched until there is a first text, and read as JSON when all requests have ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from safegen.load.trace import Arrival, Served

_FIRST_TEXT = re.compile(rb'"content" ?: ?"[^"]')


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. is_right: of the whole text and the reason that it ended for."""

    body: dict[str, Any]
    is_right: Callable[[str, str | None], bool]


@dataclass(slots=True)
class Raw:
    """An answer as it came, in seconds of the client's clock."""

    sent_s: float
    first_s: float | None = None
    last_s: float = 0.0
    data: bytearray = field(default_factory=bytearray)


async def fetch(port: int, body: dict[str, Any]) -> Raw:
    """The server ends the connection when the answer is complete."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    loop, raw = asyncio.get_running_loop(), Raw(time.perf_counter())
    transport, answer = await loop.create_connection(lambda: _Answer(raw), "127.0.0.1", port)
    transport.write(head.encode() + content)
    try:
        await answer.ended
    finally:
        transport.close()
    return raw


class _Answer(asyncio.Protocol):
    """Puts what comes into raw: without a task that would wake up for each piece."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        raw = self._raw
        raw.last_s = time.perf_counter()
        raw.data += data
        if raw.first_s is None and _FIRST_TEXT.search(raw.data):
            raw.first_s = raw.last_s

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._raw.last_s = time.perf_counter()
        if not self.ended.done():
            self.ended.set_result(None)


async def closed_loop(port: int, asks: Sequence[Ask], concurrency: int) -> list[Served]:
    """So many requests in flight until all have been asked. Raises RuntimeError where none was answered."""
    left, raws = iter(enumerate(asks)), dict[int, Raw]()
    start_s = time.perf_counter()

    async def client() -> None:
        for number, ask in left:
            raws[number] = await fetch(port, ask.body)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    served = [read_answer(number, asks[number], raws[number], start_s) for number in sorted(raws)]
    if not any(each.tokens for each in served):
        raise RuntimeError(f"no request was answered; the first got {bytes(raws[0].data[:500])!r}")
    return served


def read_answer(number: int, ask: Ask, raw: Raw, start_s: float) -> Served:
    """What a stream came to. tokens: as the server counts them, else one a piece of text."""
    text, reason, num_pieces, tokens, prompt_tokens = "", None, 0, 0, 0
    for document in documents(bytes(raw.data)):
        usage = document.get("usage") or {}
        tokens = usage.get("completion_tokens", tokens)
        prompt_tokens = usage.get("prompt_tokens", prompt_tokens)
        for choice in document.get("choices", ()):
            piece = (choice.get("delta") or {}).get("content")
            if piece:
                text, num_pieces = text + piece, num_pieces + 1
            reason = choice.get("finish_reason") or reason
    first_s = None if raw.first_s is None else raw.first_s - start_s
    sent_s, last_s = raw.sent_s - start_s, raw.last_s - start_s
    is_whole = raw.data.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in raw.data
    is_right = is_whole and ask.is_right(text, reason)
    return Served(Arrival(sent_s, number), sent_s, first_s, last_s, tokens or num_pieces, is_right, prompt_tokens)


def documents(answer: bytes) -> Iterator[dict[str, Any]]:
    """The JSON events of an answer; none of one that is no stream of events."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = b"".join(_chunks(body))
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def _chunks(body: bytes) -> Iterator[bytes]:
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        num_bytes = int(body[at:end].split(b";")[0] or b"0", 16)
        if num_bytes == 0:
            return
        yield body[end + 2 : end + 2 + num_bytes]
        at = end + 2 + num_bytes + 2


__all__ = ["Ask", "Raw", "closed_loop", "documents", "fetch", "read_answer"]
