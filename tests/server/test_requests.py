"""What is wrong with a request is a 400 that names the parameter, in OpenAI's error shape; and nothing is a 500."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.harness import ASK, InProcess, served, slow_runtime
from tests.support.sdk_fakes import make_runtime

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"functions": []}, "functions", "unknown_parameter"),
    ({"guards": []}, "guards", "unknown_parameter"),
    ({"cache_salt": "x"}, "cache_salt", "unknown_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_value"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood", "unknown_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages", "invalid_value"),
    ({"model": ""}, "model", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"seed": 2**64}, "seed", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": "x", "response_format": {"type": "json_object"}}, "stop", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a", "invalid_value"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"stream_options": {}}, "stream_options", "invalid_value"),
    ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
    ({"tools": []}, "tools", "invalid_value"),
    ({"tools": [TOOL, TOOL]}, "tools", "invalid_json_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "invalid_value"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type", "invalid_value"),
    ({"response_format": {"type": "yaml"}}, "response_format", "invalid_value"),
    ({"response_format": form({"type": 5})}, "response_format", "invalid_json_schema"),
    ({"response_format": form({"type": "string", "format": "no-such"})}, "response_format", "invalid_json_schema"),
    ({"response_format": form({"not": {}})}, "response_format", "invalid_json_schema"),
    ({"response_format": {"type": "regex", "pattern": "("}}, "response_format", "invalid_grammar"),
    ({"response_format": {"type": "grammar", "grammar": "start: x"}}, "response_format", "invalid_grammar"),
    ({"response_format": {"type": "choice", "choices": ["a", "a"]}}, "response_format", "invalid_grammar"),
    ({"store": True}, "store", "invalid_value"),
    ({"modalities": ["audio"]}, "modalities[0]", "invalid_value"),
]  # fmt: skip


def test_what_is_wrong_is_named_streamed_or_not() -> None:
    async def body(server: InProcess) -> None:
        for change, param, code in WRONG:
            for stream in ({}, {"stream": True}):
                if stream and "stream_options" in change:
                    continue
                answer = await server.post("/v1/chat/completions", {**ASK, **change, **stream})
                found = answer.json()["error"]
                assert answer.status_code == 400, (change, found)
                assert (found["param"], found["code"]) == (param, code), (change, found)
                assert found["type"] == "invalid_request_error" and found["message"]
                assert set(answer.json()) == {"error"} and set(found) == {"message", "type", "param", "code"}

    served(body)


def test_schema_errors_say_where_in_the_schema() -> None:
    async def body(server: InProcess) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
        answer = await server.post("/v1/chat/completions", {**ASK, "response_format": form(schema)})
        assert "#/properties/a" in answer.json()["error"]["message"]
        tool = {"type": "function", "function": {"name": "fetch", "parameters": schema}}
        answer = await server.post("/v1/chat/completions", {**ASK, "tools": [tool]})
        assert "fetch" in answer.json()["error"]["message"] and answer.json()["error"]["param"] == "tools"

    served(body)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"model": "m", "model": "m"}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"seed": 1' + b"0" * 5000 + b"}", "invalid_json"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        (b'{"model": "\\ud800", "messages": []}', "invalid_value"),
        (b'{"model": "m"}', "missing_required_parameter"),
    ],
)
def test_bodies_that_are_no_strict_json_are_refused(raw: bytes, code: str) -> None:
    async def body(server: InProcess) -> None:
        answer = await server.http.post("/v1/chat/completions", content=raw)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)

    served(body)


def test_bodies_are_bounded_declared_or_not() -> None:
    async def body(server: InProcess) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 1000

        for content in (b" " * 10_001, pieces()):
            answer = await server.http.post("/v1/chat/completions", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        answer = await server.post("/v1/chat/completions", {**ASK, "max_tokens": 1})
        assert answer.status_code == 200

    served(body, max_body_bytes=10_000)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def body(server: InProcess) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(30)

        answer = await server.http.post("/v1/chat/completions", content=pieces())
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout")

    served(body, body_timeout_s=0.2)


def test_a_deadline_ends_the_request_and_gives_its_blocks_back() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "max_tokens": 500, "min_tokens": 400, "deadline_s": 0.3}
        answer = await server.post("/v1/chat/completions", asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        answer = await server.post("/v1/chat/completions", {**asked, "stream": True})
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
        assert answer.status_code == 200 and events[-1]["error"]["code"] == "deadline_exceeded"

    served(body, slow_runtime(0.02))


def test_prompts_that_do_not_fit_say_so() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "messages": [{"role": "user", "content": "x" * 4000}]}
        answer = await server.post("/v1/chat/completions", asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")

    served(body)


def test_request_ids_are_echoed_and_made() -> None:
    async def body(server: InProcess) -> None:
        answer = await server.http.get("/health", headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        for strange in ("a b", "x" * 65, "é".encode()):
            answer = await server.http.get("/nothing", headers={"x-request-id": strange})
            assert answer.status_code == 404
            assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["x-content-type-options"] == "nosniff"

    served(body)


def test_the_log_holds_ids_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    secret = "walrus"

    async def body(server: InProcess) -> None:
        asked = {**ASK, "messages": [{"role": "user", "content": secret}], "max_tokens": 3, "user": secret}
        await server.post(f"/v1/chat/completions?x={secret}", asked, headers={"x-request-id": "id-7"})
        await server.post("/v1/chat/completions", {**asked, "stop": [secret], "response_format": form({secret: 1})})
        await server.post(f"/{secret}", {secret: secret})

    with caplog.at_level(logging.DEBUG):
        served(body)
    written = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("safegen"))
    assert "request id-7 POST /v1/chat/completions 200 key=anonymous" in written
    assert secret not in written


def test_nothing_of_the_documentation_loads_from_elsewhere_and_cors_is_off() -> None:
    async def body(server: InProcess) -> None:
        for path in ("/docs", "/redoc"):
            assert (await server.http.get(path)).status_code == 404
        asked = await server.http.options(
            "/v1/models", headers={"origin": "https://page", "access-control-request-method": "GET"}
        )
        assert asked.status_code == 405 and "access-control-allow-origin" not in asked.headers

    served(body)


def test_cors_is_for_the_origins_that_are_named() -> None:
    async def body(server: InProcess) -> None:
        for origin, allowed in (("https://page", "https://page"), ("https://other", None)):
            answer = await server.http.get("/v1/models", headers={"origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed

    served(body, cors_origins=("https://page",))


def test_metrics_count_requests_by_route() -> None:
    async def body(server: InProcess) -> None:
        await server.post("/v1/chat/completions", {**ASK, "max_tokens": 1})
        await server.http.get("/somewhere/else")
        text = (await server.http.get("/metrics")).text
        assert 'safegen_http_requests_total{model="m",route="/v1/chat/completions",code="200"} 1' in text
        assert 'route="none",code="404"} 1' in text
        assert "safegen_http_sequences_pending" in text and text.endswith("# EOF\n")

    served(body)


def test_a_closed_model_is_not_ready() -> None:
    runtime = make_runtime()

    async def body(server: InProcess) -> None:
        assert (await server.http.get("/ready")).status_code == 200
        await asyncio.to_thread(runtime.close)
        assert (await server.http.get("/ready")).status_code == 503
        assert (await server.http.get("/health")).status_code == 200
        answer = await server.post("/v1/chat/completions", ASK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")

    served(body, runtime)


def test_one_wrong_prompt_of_several_ends_all_of_them() -> None:
    async def body(server: InProcess) -> None:
        for prompts in (["go", "  ", "on"], ["go", "x" * 5000]):
            asked = {"model": "m", "prompt": prompts, "max_tokens": 400, "min_tokens": 400}
            for stream in (False, True):
                answer = await server.post("/v1/completions", {**asked, "stream": stream})
                if stream and answer.status_code == 200:  # another one had begun
                    assert '"param": "prompt"' in answer.text and "[DONE]" not in answer.text
                else:
                    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")

    served(body, slow_runtime(0.005))
