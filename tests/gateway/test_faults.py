"""Bad upstreams and bad clients, over real sockets. What has not begun is answered by another upstream; what has begun
ends with an error event, after whole events; what a client leaves is given back."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.gateway.fake_upstream import EVENTS, Exchange, FakeUpstream, delta, event, words
from tests.gateway.harness import ASK, CHAT, Gateway, joined, soon, through

Answer = Callable[[Exchange], Awaitable[None]]
HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
JSON_TYPE = "content-type: application/json\r\n"


def hand_made(*pieces: bytes | str, end: str = "reset") -> Answer:
    """Exactly these bytes; then a reset, an orderly close, half a close, or silence."""

    async def answer(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.send(piece)
        if end == "reset":
            await asyncio.sleep(0.02)
            exchange.cut()
        elif end == "half_close":
            exchange.writer.write_eof()
            await exchange.gone.wait()
        elif end == "silence":
            await exchange.gone.wait()
        exchange.keeps_open = False

    return answer


def told(status: int, body: bytes, headers: str = JSON_TYPE) -> Answer:
    async def answer(exchange: Exchange) -> None:
        await exchange.whole(body, status, headers)

    return answer


ERROR = event({"error": {"message": "x", "type": "server_error", "param": None, "code": "shutting_down"}})
UNBEGUN = {
    "killed": hand_made(),
    "closes": hand_made(end="close"),
    "half_open": hand_made(end="half_close"),
    "hangs": hand_made(end="silence"),
    "hangs_in_its_head": hand_made("HTTP/1.1 200 OK\r\ncontent-", end="silence"),
    "hangs_after_its_head": hand_made(EVENTS, end="silence"),
    "garbage": hand_made(b"\x16\x03\x01\x00\xff garbage \x00\r\n\r\n" * 20, end="close"),
    "no_http": hand_made("220 ready\r\n", end="close"),
    "many_headers": hand_made("HTTP/1.1 200 OK\r\n" + "x: y\r\n" * 30_000, end="close"),
    "cut_document": hand_made(HEAD + 'content-length: 500\r\n\r\n{"id": '),
    "cut_chunks": hand_made(HEAD + 'transfer-encoding: chunked\r\n\r\n7\r\n{"id": \r\n'),
    "cut_without_a_length": hand_made(HEAD + '\r\n{"id": ', end="close"),
    "no_json": told(200, b"{nothing}"),
    "no_object": told(200, b"[1]"),
    "page": told(200, b"<html>login</html>", "content-type: text/html\r\n"),
    "encoded": told(200, b"{}", JSON_TYPE + "content-encoding: gzip\r\n"),
    "too_long": told(200, b'{"x":"' + b"y" * 70_000 + b'"}'),
    "status_500": told(500, b'{"error": {"message": "x", "type": "server_error", "param": null, "code": null}}'),
    "status_502": told(502, b"<html>bad gateway</html>", "content-type: text/html\r\n"),
    "status_503": told(503, b'{"error": {"message": "x", "type": "server_error", "code": "shutting_down"}}'),
    "status_529": told(529, b"{}"),
    "busy": told(429, b'{"error": {"message": "x", "type": "rate_limit_error", "code": "server_overloaded"}}'),
    "redirects": told(302, b"", "location: http://127.0.0.1:1/\r\n"),
    "refuses_our_key": told(401, b'{"error": {"message": "secret of the upstream"}}'),
    "empty_stream": hand_made(EVENTS, "0\r\n\r\n", end="close"),
    "comments_alone": hand_made(EVENTS, "c\r\n: waiting\n\n\r\n", end="reset"),
    "half_an_event": hand_made(EVENTS, "6\r\ndata: \r\n", end="reset"),
    "error_first": hand_made(EVENTS, f"{len(ERROR):x}\r\n".encode() + ERROR + b"\r\n0\r\n\r\n", end="close"),
    "endless_event": hand_made(EVENTS, "11170\r\n" + "y" * 70_000 + "\r\n", end="silence"),
}
BOUNDS: dict[str, Any] = {
    "timeouts": {"first_event_s": 0.3, "answer_s": 0.3, "between_events_s": 0.3},
    "sizes": {"max_answer_bytes": 65_536, "max_event_bytes": 65_536},
}


@pytest.mark.parametrize("name", sorted(UNBEGUN))
def test_what_has_not_begun_is_answered_by_another(name: str) -> None:
    bad, good = FakeUpstream("bad"), FakeUpstream("good")
    bad.answer = UNBEGUN[name]

    async def body(gateway: Gateway) -> None:
        number = 0
        for stream in (False, True):
            bad.seen.clear()
            while not bad.seen:  # until the beginning of a prompt sends one there first
                number += 1
                answer = await gateway.chat(messages=[{"role": "user", "content": str(number)}], stream=stream)
                assert answer.status_code == 200 and number < 50
                if stream:
                    assert answer.text.endswith("data: [DONE]\n\n") and "w0" in answer.text
                else:
                    assert answer.json()["id"] == "good"
            assert len(bad.seen) == 1 and good.seen[-1].raw == bad.seen[0].raw
        assert gateway.state.dispatch.counts["retry"] == 2 and len(good.seen) == number
        assert gateway.upstream("bad").counts["busy" if name == "busy" else "failed"] == 2

    through(body, bad, good, **BOUNDS)


@pytest.mark.parametrize("name", ["killed", "hangs", "garbage", "page", "status_500", "busy", "refuses_our_key"])
def test_where_all_fail_the_failure_is_told(name: str) -> None:
    fake = FakeUpstream()
    fake.answer = UNBEGUN[name]
    expected = {"status_500": (500, None), "busy": (429, "server_overloaded")}.get(name, (502, "upstream_failed"))

    async def body(gateway: Gateway) -> None:
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == expected
        assert "secret" not in answer.text and str(fake.port) not in answer.text
        assert len(fake.seen) == 2

    through(body, fake, retries={"max_attempts": 2}, **BOUNDS)


def test_how_long_a_busy_upstream_is_busy_is_told() -> None:
    fake = FakeUpstream()
    fake.answer = told(429, b'{"error": {"code": "rate_limit_exceeded"}}', JSON_TYPE + "retry-after: 17\r\n")

    async def body(gateway: Gateway) -> None:
        answer = await gateway.chat()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "17")
        for _ in range(10):
            await gateway.chat()
        assert gateway.upstream("one").breaker.state == "closed"  # it lives

    through(body, fake, retries={"max_attempts": 1})


CUTS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    "killed": hand_made(end="reset"),
    "closes": hand_made(end="close"),
    "half_an_event": hand_made("e\r\ndata: {\"choice\r\n", end="reset"),
    "half_a_chunk": hand_made("20\r\ndata: {\"choi", end="close"),
    "ends_in_good_order_without_done": hand_made("0\r\n\r\n", end="close"),
    "stalls": hand_made(end="silence"),
    "stalls_in_an_event": hand_made("6\r\ndata: \r\n", end="silence"),
    "garbage": hand_made("zz\r\nnothing that HTTP knows", end="silence"),
    "endless_event": hand_made("11170\r\n" + "y" * 70_000 + "\r\n", end="silence"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CUTS))
def test_a_stream_that_has_begun_ends_with_an_error_event(name: str) -> None:
    """Whole events, then the error as one more, and no [DONE]: what a client cannot take for the end."""
    fake = FakeUpstream()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(EVENTS)
        for text in ("a", "b"):
            await exchange.chunk(delta(text))
        await asyncio.sleep(0.05)
        await CUTS[name](exchange)

    fake.answer = answer

    async def body(gateway: Gateway) -> None:
        events = await gateway.events()
        assert joined(events) == "ab"
        assert json.loads(events[-1])["error"]["code"] == "upstream_failed"
        assert len(events) == 3 and len(fake.seen) == 1
        assert gateway.upstream("one").counts["failed"] == 1

    through(body, fake, **BOUNDS)


@pytest.mark.parametrize("begun", [True, False], ids=["mid_stream", "before_the_answer"])
@pytest.mark.parametrize("manner", ["reset", "close"])
def test_a_client_that_leaves_frees_the_upstream(begun: bool, manner: str) -> None:
    fake = FakeUpstream()

    async def answer(exchange: Exchange) -> None:
        if begun:
            await exchange.send(EVENTS)
            await exchange.chunk(delta("a"))
        await exchange.gone.wait()

    fake.answer = answer

    async def body(gateway: Gateway) -> None:
        raw = json.dumps({**ASK, "stream": begun}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        if begun:
            assert b"200 OK" in await reader.read(200)
        assert await soon(lambda: fake.num_running == 1)
        assert gateway.upstream("one").outstanding == 1
        if manner == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort() if manner == "reset" else writer.close()
        assert await soon(lambda: fake.num_running == 0, 2.0)
        assert fake.seen[0].gone.is_set()
        assert await soon(gateway.is_idle)
        assert gateway.upstream("one").breaker.state == "closed"

    through(body, fake)


def test_a_client_that_does_not_read_is_given_up() -> None:
    fake = FakeUpstream()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(EVENTS)
        while not exchange.gone.is_set():
            await exchange.chunk(delta("a" * 1000))

    fake.answer = answer

    async def body(gateway: Gateway) -> None:
        raw = json.dumps({**ASK, "stream": True}).encode()
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.connect(("127.0.0.1", gateway.port))
        made.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        assert await soon(lambda: fake.num_running == 1)
        assert await soon(lambda: fake.num_running == 0, 10.0)
        assert await soon(gateway.is_idle)
        made.close()

    through(body, fake, server={"write_timeout_s": 0.4})


def test_a_slow_upstream_is_slow_and_not_failed() -> None:
    async def body(gateway: Gateway) -> None:
        events = await gateway.events(max_tokens=8)
        assert joined(events) == words(8) and events[-1] == "[DONE]"
        assert gateway.state.dispatch.counts["retry"] == 0

    through(body, FakeUpstream(step_s=0.1), timeouts={"first_event_s": 0.3, "between_events_s": 0.3})


def test_a_killed_upstream_loses_nothing_that_had_not_begun() -> None:
    one, two = FakeUpstream("one", step_s=0.2), FakeUpstream("two", step_s=0.2)

    async def body(gateway: Gateway) -> None:
        requests = [asyncio.create_task(gateway.chat(max_tokens=2)) for _ in range(12)]
        assert await soon(lambda: one.num_running + two.num_running == 12)
        assert one.num_running > 0
        await one.stop()
        answers = await asyncio.gather(*requests)
        assert {answer.json()["id"] for answer in answers} == {"two"}
        assert await soon(lambda: not gateway.upstream("one").is_up)
        assert (await gateway.chat()).json()["id"] == "two"
        await one.start()
        assert await soon(lambda: gateway.upstream("one").takes_requests)

    through(body, one, two)


def test_requests_wait_while_every_upstream_is_down() -> None:
    fake = FakeUpstream()

    async def body(gateway: Gateway) -> None:
        await fake.stop()
        assert await soon(lambda: not gateway.upstream("one").is_up)
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(5)]
        assert await soon(lambda: gateway.state.router.num_waiting["m"] == 5)
        await fake.start()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        await fake.stop()
        assert await soon(lambda: not gateway.upstream("one").is_up)
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_upstream")
        assert answer.headers["retry-after"] == "5"

    through(body, fake, queue={"wait_s": 0.6})


def test_a_hung_upstream_is_found_by_its_checks_and_its_requests_are_moved() -> None:
    """As a process that is stopped: its sockets stay open, and nothing comes."""
    one, two = FakeUpstream("one"), FakeUpstream("two", step_s=0.01)
    one.answer = hand_made(end="silence")

    async def body(gateway: Gateway) -> None:
        requests = [asyncio.create_task(gateway.chat(stream=bool(number % 2))) for number in range(8)]
        assert await soon(lambda: one.num_running >= 2)
        one.health = hand_made(end="silence")
        answers = await asyncio.gather(*requests)
        assert {answer.status_code for answer in answers} == {200}
        assert not gateway.upstream("one").is_up
        assert await soon(lambda: one.num_running == 0)

    through(body, one, two, routing={"prefix_characters": 0})


def test_tries_beyond_the_first_are_a_bounded_share() -> None:
    """Both fail always: of 100 requests only as many are tried again as the budget has."""

    async def body(gateway: Gateway) -> None:
        for fake in gateway.fakes:
            fake.answer = UNBEGUN["status_500"]
        for _ in range(100):
            assert (await gateway.chat()).status_code == 500
        assert sum(len(fake.seen) for fake in gateway.fakes) == 100 + 5 + 12
        assert gateway.state.dispatch.counts["retry"] == 17
        assert gateway.state.budget.num_refused == 100 - 17
        found = (await gateway.metrics())["safegen_gateway_attempts_refused"].samples
        assert [each.value for each in found] == [83]

    through(
        body,
        retries={"max_attempts": 2, "share": 0.125, "per_second": 0, "reserve": 5},
        circuit={"failures": 1000, "window": 1000},
    )


def test_an_upstream_that_fails_rests_and_comes_back() -> None:
    fake = FakeUpstream()

    async def body(gateway: Gateway) -> None:
        fake.answer = UNBEGUN["status_500"]
        for _ in range(3):
            assert (await gateway.chat()).status_code == 500
        assert gateway.upstream("one").breaker.state == "open"
        fake.answer = fake.well
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert len(fake.seen) == 3  # it rests
        answers = await asyncio.gather(*waiting)
        assert {answer.status_code for answer in answers} == {200} and len(fake.seen) == 7
        assert gateway.upstream("one").breaker.state == "closed"

    through(body, fake, retries={"max_attempts": 1}, circuit={"failures": 3, "open_s": 0.3})


def test_a_full_upstream_makes_requests_wait_and_a_full_line_refuses() -> None:
    fake = FakeUpstream(step_s=0.15)

    async def body(gateway: Gateway) -> None:
        answers = await asyncio.gather(*(gateway.chat(max_tokens=1) for _ in range(7)))
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429] * 2
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "server_overloaded" and int(refused.headers["retry-after"]) >= 1
        assert len(fake.seen) == 5
        fake.answer = hand_made(end="silence")
        held = [asyncio.create_task(gateway.chat()) for _ in range(2)]
        assert await soon(lambda: fake.num_running == 2)
        late = await gateway.chat()
        assert (late.status_code, late.json()["error"]["code"]) == (429, "server_overloaded")
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    through(body, fake, each={"max_concurrent": 2}, queue={"max_waiting": 3, "wait_s": 0.8})


def test_a_client_that_leaves_the_line_takes_no_place() -> None:
    fake = FakeUpstream()
    fake.answer = hand_made(end="silence")

    async def body(gateway: Gateway) -> None:
        held = asyncio.create_task(gateway.chat())
        assert await soon(lambda: fake.num_running == 1)
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(3)]
        assert await soon(lambda: gateway.state.router.num_waiting["m"] == 3)
        waiting[0].cancel()
        assert await soon(lambda: gateway.state.router.num_waiting["m"] == 2)
        fake.answer = fake.well
        held.cancel()
        answers = await asyncio.gather(*waiting[1:])
        assert {answer.status_code for answer in answers} == {200} and len(fake.seen) == 3

    through(body, fake, each={"max_concurrent": 1})


def test_hedges_are_off_by_default() -> None:
    async def body(gateway: Gateway) -> None:
        assert (await gateway.chat(max_tokens=1)).status_code == 200
        assert sum(len(fake.seen) for fake in gateway.fakes) == 1

    through(body, FakeUpstream("one", 0.5), FakeUpstream("two", 0.5))


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
def test_a_hedge_wins_and_the_slow_one_is_cancelled(stream: bool) -> None:
    slow, quick = FakeUpstream("slow", step_s=20), FakeUpstream("quick", step_s=0.01)

    async def body(gateway: Gateway) -> None:
        number = 0
        while not slow.seen:
            number += 1
            answer = await gateway.chat(messages=[{"role": "user", "content": str(number)}], stream=stream)
            assert answer.status_code == 200 and number < 50
        assert ("[DONE]" in answer.text) if stream else answer.json()["id"] == "quick"
        assert await soon(lambda: slow.num_running == 0) and slow.seen[0].gone.is_set()
        counts = gateway.state.dispatch.counts
        assert (counts["hedge"], counts["hedge_won"], counts["retry"]) == (1, 1, 0)
        assert gateway.upstream("slow").counts["cancelled"] == 1
        assert gateway.upstream("slow").breaker.state == "closed"

    through(body, slow, quick, hedge_after_s=0.1)


def test_a_hedge_may_lose_or_fail_and_the_first_is_taken() -> None:
    first, second = FakeUpstream("first", step_s=0.3), FakeUpstream("second", step_s=20)

    async def body(gateway: Gateway) -> None:
        favoured = 0
        for number in range(4):
            second.answer = UNBEGUN["status_500"] if number % 2 else second.well
            before = len(second.seen)
            answer = await gateway.chat(max_tokens=1, messages=[{"role": "user", "content": str(number)}])
            assert answer.status_code == 200 and answer.json()["id"] == "first"
            favoured += len(second.seen) == before + 1
            assert await soon(lambda: second.num_running == 0)
        assert favoured == 4
        counts = gateway.state.dispatch.counts
        assert counts["hedge"] - counts["hedge_won"] >= 1

    through(body, first, second, hedge_after_s=0.05, circuit={"failures": 100, "window": 100})


def test_hedges_take_from_the_budget() -> None:
    async def body(gateway: Gateway) -> None:
        for _ in range(4):
            assert (await gateway.chat(max_tokens=1)).status_code == 200
        assert gateway.state.dispatch.counts["hedge"] == 1
        assert sum(len(fake.seen) for fake in gateway.fakes) == 5

    through(
        body,
        FakeUpstream("one", 0.2),
        FakeUpstream("two", 0.2),
        hedge_after_s=0.05,
        retries={"share": 0, "per_second": 0, "reserve": 1},
    )


def test_the_deadline_is_above_all_tries() -> None:
    async def body(gateway: Gateway) -> None:
        for fake in gateway.fakes:
            fake.answer = hand_made(end="silence")
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert await soon(lambda: not any(fake.num_running for fake in gateway.fakes))

    through(body, server={"request_timeout_s": 0.5})
