"""Bad clients, over real sockets: whatever one does, the others' answers are bitwise those they have alone, and every
block of the cache comes back."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from safegen.guards import Guards
from tests.server.harness import ASK, Live, live, slow_runtime, wait_for_blocks
from tests.support.guards import Ssn
from tests.support.sdk_fakes import make_runtime

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 5}
TYPED = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
GOOD: list[dict[str, Any]] = [
    {**ASK, "seed": seed, "stream": True, "max_tokens": 60, "min_tokens": 20, **(TYPED if seed % 2 else {})}
    for seed in range(6)
]
LONG = {**ASK, "stream": True, "max_tokens": 1500, "min_tokens": 1500}


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


def beside(server: Live, bad: Any) -> None:
    """Six good streams while `bad` goes on: each shows what it shows alone."""
    alone = [joined(text_of(server, body)) for body in GOOD]
    assert len(set(alone)) == len(alone)
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            bad()

    with ThreadPoolExecutor(len(GOOD) + 2) as pool:
        worker = pool.submit(go_on)
        try:
            for _ in range(2):
                assert [joined(text) for text in pool.map(lambda body: text_of(server, body), GOOD)] == alone
        finally:
            over.set()
        worker.result()


def test_a_client_killed_mid_stream_is_cancelled_and_harms_nobody() -> None:
    with live(slow_runtime(0.002)) as server:

        def killed() -> None:
            made = begun(server, LONG)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a crash
            made.close()

        beside(server, killed)
        assert settled(server)
        assert server.runtime.engine_stats().finished["cancelled"] > 0


def test_a_client_that_leaves_before_its_answer_is_cancelled() -> None:
    with live(slow_runtime(0.01)) as server:
        made = server.connect()
        made.sendall(request_bytes({**LONG, "stream": False}))
        deadline = time.monotonic() + 10
        while not num_running(server) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert num_running(server) == 1
        made.close()
        assert settled(server)
        assert server.runtime.engine_stats().finished["cancelled"] == 1


def test_a_slow_reader_holds_up_nobody_and_is_given_up() -> None:
    guards = Guards([Ssn(on_fail="redact")])
    with live(make_runtime(guards=guards), write_timeout_s=0.5) as server:
        many = {**LONG, "n": 8, "logprobs": True, "top_logprobs": 20}
        slow = [begun(server, many, receive_buffer_bytes=2048) for _ in range(2)]
        assert joined(text_of(server, GOOD[1])) == joined(text_of(server, GOOD[1]))
        assert settled(server, 30.0)
        for made in slow:
            came = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := made.recv(1 << 16):
                    came += piece
            assert b"[DONE]" not in came
            made.close()


def test_a_half_open_socket_is_no_client() -> None:
    """One that never sends its body, one that sends half a header, one that shuts its side and waits."""
    with live(slow_runtime(0.002), body_timeout_s=0.5) as server:
        half = request_bytes(LONG)
        without_body = server.connect()
        without_body.sendall(half[:-20])
        header = server.connect()
        header.sendall(half[:40])
        silent = server.connect()
        shut = server.connect()
        shut.sendall(request_bytes({**LONG, "max_tokens": 1500}))
        shut.shutdown(socket.SHUT_WR)
        assert text_of(server, GOOD[0]) == text_of(server, GOOD[0])
        assert b"408" in without_body.recv(64)
        assert header.recv(64) == silent.recv(64) == b""  # closed
        assert settled(server, 20.0)
        for made in (without_body, header, silent, shut):
            made.close()
        assert text_of(server, GOOD[2]) == text_of(server, GOOD[2])


def test_kernel_timeouts_are_set_on_every_connection() -> None:
    with live(make_runtime(), write_timeout_s=2.0) as server:
        listening = server.server.servers[0].sockets[0]
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4000


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


def test_garbage_harms_nobody(full: bool) -> None:
    rng = random.Random(11)
    count = 0
    with live(make_runtime(), body_timeout_s=0.2) as server:

        def one() -> None:
            nonlocal count
            count += 1
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

        beside(server, one)
        while count < (10_000 if full else 300):
            one()
        assert settled(server)
        assert httpx2.get(f"{server.url}/health").status_code == 200


def test_bad_schemas_and_oversized_bodies_harm_nobody() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"allOf": [deep, {"not": deep}]} if len(json.dumps(deep)) < 50_000 else {"items": deep}
    schemas = [
        {"type": 7},
        {"$ref": "#/nowhere"},
        {"not": {}},
        {"pattern": "(" * 300},
        {"enum": ["x" * 9000] * 3},
        deep,
    ]
    number = 0
    with live(make_runtime(), max_body_bytes=200_000) as server:

        def bad() -> None:
            nonlocal number
            number += 1
            if number % 3 == 0:
                answer = httpx2.post(f"{server.url}{CHAT}", content=b" " * 300_000, timeout=30)
                assert answer.status_code == 413
                return
            form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schemas[number % len(schemas)]}}
            answer = httpx2.post(
                f"{server.url}{CHAT}", json={**ASK, "response_format": form, "max_tokens": 3}, timeout=30
            )
            assert answer.status_code in (200, 400)

        beside(server, bad)
        assert settled(server)


def test_a_schema_that_is_slow_to_compile_holds_up_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = make_runtime()
    compile_type, let_go = runtime.compile, threading.Event()

    def slow(spec: Any, guards: Any = None) -> Any:
        if "slow" in str(spec):
            let_go.wait(20)
        return compile_type(spec, guards)

    monkeypatch.setattr(runtime, "compile", slow)
    form = {"type": "regex", "pattern": "slow"}
    with live(runtime) as server, ThreadPoolExecutor(40) as pool:
        alone = text_of(server, GOOD[0])
        waiting = [pool.submit(text_of, server, {**ASK, "stream": True, "response_format": form}) for _ in range(30)]
        time.sleep(0.2)
        assert joined(text_of(server, GOOD[0])) == joined(alone)
        let_go.set()
        assert {joined(each.result()) for each in waiting} == {"slow"}
        assert settled(server)


def test_clients_that_leave_while_their_schema_compiles_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = make_runtime()
    compile_type, let_go, entered = runtime.compile, threading.Event(), threading.Semaphore(0)

    def slow(spec: Any, guards: Any = None) -> Any:
        if "slow" in str(spec):
            entered.release()
            let_go.wait(20)
        return compile_type(spec, guards)

    monkeypatch.setattr(runtime, "compile", slow)
    with live(runtime) as server:
        body = {**ASK, "response_format": {"type": "regex", "pattern": "slow"}}
        for _ in range(8):
            made = server.connect()
            made.sendall(request_bytes(body))
            time.sleep(0.02)
            made.close()
        assert entered.acquire(timeout=10)
        assert settled(server)
        let_go.set()
        time.sleep(0.1)
        assert text_of(server, {**body, "stream": True})


def test_a_later_request_on_a_connection_has_its_own_time_for_headers() -> None:
    with live(slow_runtime(0.02), body_timeout_s=0.4) as server:
        made = server.connect()
        for _ in range(2):
            made.sendall(request_bytes({**ASK, "max_tokens": 40, "min_tokens": 40}))  # takes longer than headers may
            answer = made.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200")
            while not answer.rstrip().endswith(b"}"):
                answer += made.recv(1 << 16)
        made.sendall(b"GET /health HT")
        assert made.recv(64) == b""
        made.close()
