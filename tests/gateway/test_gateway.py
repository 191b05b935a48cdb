"""What a client sees of a gateway whose upstreams are well, and what upstreams see of a client."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx2
import pytest

from safegen.server.auth import ApiKey, key_digest
from tests.gateway.fake_upstream import EVENTS, Exchange, FakeUpstream, delta, words
from tests.gateway.harness import ASK, CHAT, Gateway, data_of, joined, soon, through

SECRET, OTHER = "a-key-of-the-gateway", "another-key-of-it-too"
UPSTREAM_KEY = "sk-of-the-upstream"
KEYS = (ApiKey("one", key_digest(SECRET), max_concurrent=1), ApiKey("two", key_digest(OTHER)))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_documents_and_streams_are_those_of_the_upstream() -> None:
    async def body(gateway: Gateway) -> None:
        answer = await gateway.chat(max_tokens=5)
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        assert answer.json()["choices"][0]["message"]["content"] == words(5)
        events = await gateway.events(max_tokens=5)
        assert joined(events) == words(5) and events[-1] == "[DONE]"

    through(body)


def test_the_body_goes_on_byte_for_byte() -> None:
    raw = '{ "model" : "m","messages":[{"role":"user","content":"\\u00e9é"}], "x": 1e400, "y":0.10 }'.encode()

    async def body(gateway: Gateway) -> None:
        answer = await gateway.http.post(CHAT, content=raw)
        assert answer.status_code == 200
        assert gateway.fakes[0].seen[0].raw == raw

    through(body, FakeUpstream())


def test_endpoints_are_those_below_the_base_url() -> None:
    async def body(gateway: Gateway) -> None:
        for path in ("/chat/completions", "/completions", "/embeddings"):
            answer = await gateway.http.post(f"/v1{path}", json={"model": "m", "prompt": "x", "input": "x"})
            assert answer.status_code == 200
            assert gateway.fakes[0].seen[-1].path == f"/v1{path}"
        for path in ("/files", "/batches", "/responses", "/chat/completions/", ""):
            assert (await gateway.http.post(f"/v1{path}", json=ASK)).status_code == 404
        assert len(gateway.fakes[0].seen) == 3

    through(body, FakeUpstream())


def test_events_go_on_one_by_one_as_they_come() -> None:
    async def body(gateway: Gateway) -> None:
        asked: dict[str, Any] = {**ASK, "stream": True}
        sent = asyncio.Queue[bytes]()

        async def answer(exchange: Exchange) -> None:
            await exchange.send(EVENTS)
            while piece := await sent.get():
                await exchange.chunk(piece)
            await exchange.send("0\r\n\r\n")

        gateway.fakes[0].answer = answer
        async with asyncio.timeout(10):
            sent.put_nowait(delta("a"))  # before it nothing comes back, after it all
            async with gateway.http.stream("POST", CHAT, json=asked) as response:
                pieces = response.aiter_raw()
                assert await anext(pieces) == delta("a")
                for letter in "bcd":
                    sent.put_nowait(delta(letter))
                    assert await anext(pieces) == delta(letter)
                sent.put_nowait(b"data: [DONE]\n\n")
                assert await anext(pieces) == b"data: [DONE]\n\n"
                sent.put_nowait(b"")
                assert await anext(pieces, None) is None

    through(body, FakeUpstream())


def test_requests_go_by_model_name() -> None:
    one, two, both = FakeUpstream("one"), FakeUpstream("two"), FakeUpstream("both")

    async def body(gateway: Gateway) -> None:
        assert (await gateway.chat(model="a")).status_code == 200
        assert (await gateway.chat(model="b")).status_code == 200
        assert len(one.seen) + len(both.seen) == 1 or len(both.seen) == 2
        for number in range(30):
            await gateway.chat(model="a", messages=[{"role": "user", "content": str(number)}])
        assert {exchange.body["model"] for exchange in one.seen} == {"a"}
        assert {exchange.body["model"] for exchange in two.seen} <= {"b"}
        assert len(both.seen) > 3 and len(one.seen) > 3
        answer = await gateway.chat(model="c")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        listed = (await gateway.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["a", "b"]
        assert (await gateway.http.get("/v1/models/b")).json()["id"] == "b"
        assert (await gateway.http.get("/v1/models/c")).status_code == 404

    through(body, one, two, both, models={"one": ["a"], "two": ["b"], "both": ["a", "b"]})


def test_what_the_upstream_hears_is_the_gateways_own() -> None:
    """The client's key, cookies and other headers stay here; its request id goes on."""

    async def body(gateway: Gateway) -> None:
        fake = gateway.fakes[0]
        sent = {**bearer("of-the-client"), "x-request-id": "mine-1", "cookie": "a=b", "x-forwarded-host": "evil",
                "traceparent": "00-1", "x-other": "no"}  # fmt: skip
        answer = await gateway.chat(headers=sent)
        assert answer.headers["x-request-id"] == "mine-1"
        heard = fake.seen[0].headers
        assert heard["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert heard["x-request-id"] == "mine-1" and heard["traceparent"] == "00-1"
        assert heard["host"] == f"127.0.0.1:{fake.port}"
        assert {"cookie", "x-forwarded-host", "x-other"}.isdisjoint(heard)
        assert heard["user-agent"].startswith("safegen-gateway/")
        made = await gateway.chat()
        assert fake.seen[1].headers["x-request-id"] == made.headers["x-request-id"]

    given: dict[str, Any] = {"each": {"key_env": "UP"}, "forward_headers": ["Traceparent"]}
    through(body, FakeUpstream(), environment={"UP": UPSTREAM_KEY}, **given)


def test_the_clients_key_goes_on_only_where_the_configuration_says() -> None:
    async def told(gateway: Gateway) -> None:
        assert (await gateway.chat(headers=bearer("of-the-client"))).status_code == 200
        assert gateway.fakes[0].seen[0].headers["authorization"] == "Bearer of-the-client"
        await gateway.chat()
        assert "authorization" not in gateway.fakes[0].seen[1].headers

    async def untold(gateway: Gateway) -> None:
        await gateway.chat(headers=bearer("of-the-client"))
        assert "authorization" not in gateway.fakes[0].seen[0].headers

    through(told, FakeUpstream(), each={"forward_authorization": True})
    through(untold, FakeUpstream())


def test_an_upstreams_cookies_and_headers_stay_behind() -> None:
    async def body(gateway: Gateway) -> None:
        async def answer(exchange: Exchange) -> None:
            await exchange.json({"id": "x"}, headers="set-cookie: a=b\r\nserver: secret\r\nx-internal: 1\r\n")

        gateway.fakes[0].answer = answer
        for _ in range(2):
            heard = (await gateway.chat()).headers
            assert {"set-cookie", "server", "x-internal"}.isdisjoint(heard)
        assert "cookie" not in gateway.fakes[0].seen[1].headers

    through(body, FakeUpstream())


def test_nothing_in_a_request_chooses_a_url() -> None:
    """A target that listens, and that no request leads to."""
    trap, one = FakeUpstream("trap"), FakeUpstream("one")
    touched = 0

    async def body(gateway: Gateway) -> None:
        nonlocal touched
        await trap.start()
        url, host = f"http://127.0.0.1:{trap.port}", f"127.0.0.1:{trap.port}"
        raw = json.dumps(ASK).encode()
        heads = [
            f"POST {url}{CHAT} HTTP/1.1\r\nhost: {host}",
            f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\nx-forwarded-host: {host}\r\nforwarded: host={host}",
            f"POST {CHAT}?url={url}&base_url={url} HTTP/1.1\r\nhost: x\r\nx-upstream: {url}\r\nx-base-url: {url}",
            f"POST {CHAT}/../../@{host}/ HTTP/1.1\r\nhost: x",
            f"POST /v1/@{host}/chat/completions HTTP/1.1\r\nhost: x",
            f"POST //{host}{CHAT} HTTP/1.1\r\nhost: x",
            f"CONNECT {host} HTTP/1.1\r\nhost: {host}",
        ]
        for head in heads:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(f"{head}\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode() + raw)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        for model in (url, f"{url}/v1", f"@{host}", f"m@{host}", "../m", "m\r\nhost: x", "//" + host):
            assert (await gateway.chat(model=model)).status_code == 404
        for given in ({"base_url": url}, {"upstream": url}, {"url": url}):
            assert (await gateway.chat(**given)).status_code == 200
        touched = trap.num_checks + len(trap.seen)
        await trap.stop()
        assert {exchange.headers["host"] for exchange in one.seen} == {f"127.0.0.1:{one.port}"}
        assert {exchange.path for exchange in one.seen} == {CHAT}

    through(body, one)
    assert touched == 0 and trap.seen == []


def test_redirects_are_not_followed() -> None:
    trap, one, two = FakeUpstream("trap"), FakeUpstream("one"), FakeUpstream("two")

    async def body(gateway: Gateway) -> None:
        await trap.start()

        async def answer(exchange: Exchange) -> None:
            await exchange.json({}, 307, f"location: {trap.url}/chat/completions\r\n")

        one.answer = two.answer = answer
        answered = await gateway.chat()
        assert (answered.status_code, answered.json()["error"]["code"]) == (502, "upstream_failed")
        assert str(trap.port) not in answered.text and "location" not in answered.headers
        await trap.stop()
        assert trap.seen == [] and trap.num_checks == 0

    through(body, one, two)


def test_keys_limits_and_bodies_are_judged_at_the_door() -> None:
    async def body(gateway: Gateway) -> None:
        for path in ("/v1/models", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 401
        assert (await gateway.chat()).json()["error"]["code"] == "invalid_api_key"
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.chat(headers=bearer(SECRET))).status_code == 200
        large = await gateway.chat(headers=bearer(SECRET), x="y" * 5000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        gateway.fakes[0].step_s = 0.1
        answers = await asyncio.gather(*(gateway.chat(headers=bearer(SECRET)) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429]
        assert len(gateway.fakes[0].seen) == 2

    through(body, FakeUpstream(), keys=KEYS, server={"max_body_bytes": 4096})


def test_bodies_that_two_might_read_differently_are_refused() -> None:
    bodies = {
        b"": "invalid_json",
        b"[]": "invalid_json",
        b'{"model":"m","model":"m"}': "invalid_json",
        b'{"model":"m","x":NaN}': "invalid_json",
        b'{"messages":[]}': "missing_required_parameter",
        b'{"model":7}': "invalid_value",
        b'{"model":"m","stream":"yes"}': "invalid_value",
    }

    async def body(gateway: Gateway) -> None:
        for raw, code in bodies.items():
            answer = await gateway.http.post(CHAT, content=raw)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
        assert gateway.fakes[0].seen == []

    through(body, FakeUpstream())


def test_what_the_client_did_wrong_is_its_answer_and_nobodys_failure() -> None:
    error = {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}

    async def body(gateway: Gateway) -> None:
        async def answer(exchange: Exchange) -> None:
            await exchange.json(error, status)

        for fake in gateway.fakes:
            fake.answer = answer
        statuses = [400, 404, 409, 422, 501] * 3
        for status in statuses:
            answered = await gateway.chat()
            assert (answered.status_code, answered.json()) == (status, error)
        assert sum(len(fake.seen) for fake in gateway.fakes) == len(statuses)
        assert {upstream.breaker.state for upstream in gateway.state.upstreams} == {"closed"}

    through(body)


def test_a_deadline_that_the_client_set_is_nobodys_failure() -> None:
    error = {"error": {"message": "late", "type": "timeout_error", "param": None, "code": "deadline_exceeded"}}

    async def body(gateway: Gateway) -> None:
        async def answer(exchange: Exchange) -> None:
            await exchange.json(error, 504)

        gateway.fakes[0].answer = answer
        for _ in range(8):
            assert (await gateway.chat()).json() == error
        assert len(gateway.fakes[0].seen) == 8 and gateway.upstream("one").breaker.state == "closed"

    through(body, FakeUpstream())


def test_ready_metrics_and_counts() -> None:
    async def body(gateway: Gateway) -> None:
        assert (await gateway.http.get("/ready")).status_code == 200
        await gateway.chat()
        await gateway.events()
        found = await gateway.metrics()
        attempts = {
            (each.labels["upstream"], each.labels["outcome"]): each.value
            for each in found["safegen_gateway_attempts"].samples
        }
        assert sum(attempts[name, "ok"] for name in ("one", "two")) == 2
        assert {each.labels["upstream"]: each.value for each in found["safegen_gateway_upstream_up"].samples} == {
            "one": 1, "two": 1,
        }  # fmt: skip
        closed = [each for each in found["safegen_gateway_upstream_circuit"].samples if each.value == 1]
        assert {each.labels["state"] for each in closed} == {"closed"} and len(closed) == 2
        codes = {each.labels["code"] for each in found["safegen_http_requests"].samples}
        assert codes == {"200"}
        for fake in gateway.fakes:
            await fake.stop()
        assert await soon(lambda: not any(upstream.is_up for upstream in gateway.state.upstreams))
        unready = await gateway.http.get("/ready")
        assert (unready.status_code, unready.json()["error"]["code"]) == (503, "no_upstream")
        assert (await gateway.http.get("/health")).status_code == 200

    through(body)


@pytest.mark.parametrize(
    ("health", "there", "asked"),
    [
        ("auto", "/health", {"/ready", "/health"}),
        ("auto", "/v1/models", {"/ready", "/health", "/v1/models"}),
        ("/alive", "/alive", {"/alive"}),
    ],
)
def test_the_check_that_an_upstream_has_is_found(health: str, there: str, asked: set[str]) -> None:
    fake, paths = FakeUpstream(), list[str]()

    async def only(exchange: Exchange) -> None:
        paths.append(exchange.path)
        await exchange.json({}, 200 if exchange.path == there else 404)

    fake.health = only

    async def body(gateway: Gateway) -> None:
        assert gateway.upstream("one").is_up and set(paths) == asked
        first = len(paths)
        assert await soon(lambda: len(paths) >= first + 2)
        assert set(paths[first:]) == {there}  # remembered
        fake.health = fake.ready
        assert (await gateway.chat()).status_code == 200

    through(body, fake, each={"health": health})


def test_an_upstream_without_checks_is_told_by_its_requests() -> None:
    fake = FakeUpstream()

    async def body(gateway: Gateway) -> None:
        assert (await gateway.chat()).status_code == 200
        assert fake.num_checks == 0
        await fake.stop()
        assert (await gateway.chat()).status_code in (502, 503)
        await fake.start()
        assert await soon(lambda: gateway.upstream("one").breaker.allows())
        assert (await gateway.chat()).status_code == 200

    through(body, fake, each={"health": "none"}, retries={"max_attempts": 2}, circuit={"failures": 2})


def test_upstreams_that_are_gone_without_a_word_are_noticed_by_the_kernel() -> None:
    async def body(gateway: Gateway) -> None:
        request = httpx2.Request("GET", f"{gateway.fakes[0].url}/models")
        response = await gateway.upstream("one").transport.handle_async_request(request)
        made: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        await response.aread()

    through(body, FakeUpstream())


def test_error_events_and_comments_of_an_upstream_go_on_as_they_are() -> None:
    """An error after the first event is the upstream's own end of the stream; comments before it are left out."""

    async def body(gateway: Gateway) -> None:
        async def answer(exchange: Exchange) -> None:
            await exchange.send(EVENTS)
            await exchange.chunk(b": waiting\n\n")
            await exchange.chunk(delta("a"))
            await exchange.chunk(b'data: {"error": {"message": "x", "type": "server_error", "code": "y"}}\n\n')
            await exchange.send("0\r\n\r\n")

        gateway.fakes[0].answer = answer
        events = await gateway.events()
        assert joined(events) == "a" and len(events) == 2
        assert json.loads(events[1])["error"]["message"] == "x"
        assert gateway.upstream("one").breaker.state == "closed"

    through(body, FakeUpstream())


def test_data_of_is_strict() -> None:
    assert data_of("data: a\n\ndata: b\n\n") == ["a", "b"]
    with pytest.raises(AssertionError):
        data_of("data: a\n\ndata: b")
