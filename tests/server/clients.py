"""Clients over real sockets, good and bad, of the tests that put both beside each other."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from typing import Any

import httpx2

from tests.server.harness import ASK, Live, wait_for_blocks

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 5}
TYPED = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
GOOD: list[dict[str, Any]] = [
    {**ASK, "seed": seed, "stream": True, "max_tokens": 60, "min_tokens": 20, **(TYPED if seed % 2 else {})}
    for seed in range(6)
]
LONG = {**ASK, "stream": True, "max_tokens": 1500, "min_tokens": 1500}


def _deep_schema() -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"allOf": [deep, {"not": deep}]} if len(json.dumps(deep)) < 50_000 else {"items": deep}
    return deep


BAD_SCHEMAS: list[dict[str, Any]] = [
    {"type": 7},
    {"$ref": "#/nowhere"},
    {"not": {}},
    {"pattern": "(" * 300},
    {"enum": ["x" * 9000] * 3},
    _deep_schema(),
]


def text_of(server: Live, body: dict[str, Any]) -> str:
    """What a stream shows, with its ends."""
    answer = httpx2.post(f"{server.url}{CHAT}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    return json.dumps([(choice["delta"], choice["finish_reason"]) for choice in choices if choice["delta"]])


def joined(text: str) -> str:
    return "".join(delta.get("content") or "" for delta, _ in json.loads(text))


def request_bytes(body: dict[str, Any], path: str = CHAT) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def begun(
    server: Live, body: dict[str, Any], receive_buffer_bytes: int | None = None, path: str = CHAT
) -> socket.socket:
    """A connection whose stream has begun."""
    made = server.connect(receive_buffer_bytes)
    made.sendall(request_bytes(body, path))
    assert b"200 OK" in made.recv(256)
    return made


def num_running(server: Live) -> int:
    return server.runtime.engine_stats().running


def settled(server: Live, within_s: float = 10.0) -> bool:
    """No request is in work, no block is held, no place in the queue is taken."""
    admission = server.app.state.server.admission
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if admission.num_pending == 0 and server.app.state.server.meter.num_running == 0:
            return wait_for_blocks(server.runtime)
        time.sleep(0.01)
    return False


def die_mid_stream(server: Live) -> None:
    made = begun(server, LONG)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a crash
    made.close()


def send_oversized(server: Live, num_bytes: int) -> None:
    answer = httpx2.post(f"{server.url}{CHAT}", content=b" " * num_bytes, timeout=30)
    assert answer.status_code == 413


def send_bad_schema(server: Live, number: int) -> None:
    schema = BAD_SCHEMAS[number % len(BAD_SCHEMAS)]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = {**ASK, "response_format": form, "max_tokens": 3}
    answer = httpx2.post(f"{server.url}{CHAT}", json=body, timeout=30)
    assert answer.status_code in (200, 400)


def garbage(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 400))
    body = json.dumps(
        {**ASK, rng.choice(["temperature", "messages", "n", "x", "tools"]): rng.choice([[], {}, -1, "x"])}
    )
    raw = bytearray(request_bytes(json.loads(body)))
    if kind == 1:
        for _ in range(rng.randrange(1, 8)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 2:
        raw = raw[: rng.randrange(1, len(raw))]
    elif kind == 3:
        raw = bytearray(
            request_bytes(json.loads(body), rng.choice(["/", "/v1/models", "/health", "/v1/x?y=%ff", CHAT + "/"]))
        )
    elif kind == 4:
        at = raw.index(b"\r\n\r\n") + 4
        raw[at:] = rng.randbytes(len(raw) - at)
    return bytes(raw)


def send_garbage(server: Live, rng: random.Random) -> None:
    """One connection with garbage on it, to its end. No answer is a fault of the server's."""
    made = server.connect()
    try:
        made.sendall(garbage(rng))
        made.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := made.recv(65536):
            answer += piece
            assert len(answer) < 1 << 20
        status = answer.split(b" ", 2)[1] if answer.startswith(b"HTTP/1.1 ") else b"closed"
        assert not status.startswith(b"5"), answer
    except (ConnectionError, TimeoutError):
        pass
    finally:
        made.close()
