"""Bad clients, over real sockets: whatever one does, the others' answers are bitwise those they have alone, and every
block of the cache comes back."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from safegen.guards import Guards
from tests.server.clients import (
    GOOD,
    LONG,
    begun,
    die_mid_stream,
    joined,
    num_running,
    request_bytes,
    send_bad_schema,
    send_garbage,
    send_oversized,
    settled,
    text_of,
)
from tests.server.harness import ASK, Live, live, slow_runtime
from tests.support.guards import Ssn
from tests.support.sdk_fakes import make_runtime


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
        beside(server, lambda: die_mid_stream(server))
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


def test_garbage_harms_nobody(full: bool) -> None:
    rng = random.Random(11)
    count = 0
    with live(make_runtime(), body_timeout_s=0.2) as server:

        def one() -> None:
            nonlocal count
            count += 1
            send_garbage(server, rng)

        beside(server, one)
        while count < (10_000 if full else 300):
            one()
        assert settled(server)
        assert httpx2.get(f"{server.url}/health").status_code == 200


def test_bad_schemas_and_oversized_bodies_harm_nobody() -> None:
    number = 0
    with live(make_runtime(), max_body_bytes=200_000) as server:

        def bad() -> None:
            nonlocal number
            number += 1
            if number % 3 == 0:
                send_oversized(server, 300_000)
            else:
                send_bad_schema(server, number - number // 3)

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


@pytest.mark.parametrize("is_whole", [True, False])
def test_headers_past_their_bound_are_431_and_the_end_of_the_connection(is_whole: bool) -> None:
    with live(make_runtime()) as server:
        made = server.connect()
        made.sendall(request_bytes(ASK))  # a first request, whose own headers must not count
        answer = b""
        while not answer.rstrip().endswith(b"}") and (piece := made.recv(1 << 16)):
            answer += piece
        head = b"GET /health HTTP/1.1\r\nhost: x\r\npadding: "
        with contextlib.suppress(ConnectionError):
            for _ in range(80):
                made.sendall(head + b"x" * 1024)
                head = b""
            made.sendall(b"\r\n\r\n" if is_whole else b"x")
        with contextlib.suppress(ConnectionResetError):
            assert made.recv(64).startswith(b"HTTP/1.1 431 ")
        made.close()
        for size, status in ((60_000, b"200"), (70_000, b"431")):
            made = server.connect()
            made.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\npadding: " + b"x" * size + b"\r\n\r\n")
            assert made.recv(64).startswith(b"HTTP/1.1 " + status)
            made.close()


def test_endless_headers_behind_a_request_in_work_end_the_connection() -> None:
    with live(slow_runtime(0.02)) as server:
        made = server.connect()
        made.sendall(request_bytes({**ASK, "max_tokens": 200, "min_tokens": 200}))
        head, received = b"GET /health HTTP/1.1\r\npadding: ", b""
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):  # what comes in one piece with the request does not count
                made.sendall(head + b"x" * 1024)
                head = b""
            received = made.recv(64)
        assert received == b""
        made.close()
        assert settled(server)
