"""Guards that the server is started with hold for every request; nothing in a request takes them away."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from safegen.guards import Guards, Never, Refusal
from tests.server.harness import ASK, InProcess, served
from tests.support.guards import Ssn
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

CHAT = "/v1/chat/completions"
SSN = "123-45-6789"


async def raw_stream(server: InProcess, body: dict[str, Any]) -> str:
    return (await server.post(CHAT, {**ASK, "temperature": 0, "stream": True, **body})).text


@pytest.mark.parametrize("name", ["guards", "guard", "on_fail", "cache_salt", "speculation", "deadline", "show_schema"])
def test_no_parameter_reaches_what_the_server_was_started_with(name: str) -> None:
    async def body(server: InProcess) -> None:
        for value in (None, [], False, {}):
            answer = await server.post(CHAT, {**ASK, name: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)

    served(body)


def test_a_stream_never_holds_what_is_blocked_or_redacted() -> None:
    for guards in (
        Guards([Ssn(on_fail="redact")]),
        Guards([Ssn(on_fail="block")]),
        Guards([Ssn(on_fail="block")], on_block=Refusal),
        Guards([Ssn(on_fail="retry")]),
    ):

        async def body(server: InProcess, guards: Guards = guards) -> None:
            for change in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}):
                text = await raw_stream(server, change)
                shown = "".join(
                    choice["delta"].get("content") or ""
                    for line in text.split("\n\n")
                    if line and line != "data: [DONE]"
                    for choice in json.loads(line.removeprefix("data: "))["choices"]
                )
                assert "123" not in shown
                assert ("ssn" in shown) == (guards.guards[0].on_fail != "retry")  # which shows nothing before its end
                assert '"token":"1"' not in text

        served(
            body, make_runtime(ScriptedBackend(f"the ssn that you have asked me for is {SSN} of hers"), guards=guards)
        )


def test_arguments_of_tools_are_redacted_and_stay_valid() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "send",
            "parameters": {
                "type": "object", "properties": {"to": {"type": "string", "maxLength": 40}}, "required": ["to"],
                "additionalProperties": False,
            },
        },
    }  # fmt: skip
    script = f'<tool_call>\n{{"name":"send","arguments":{{"to":"{SSN} ok"}}}}\n</tool_call>'.replace("\n", "")

    async def body(server: InProcess) -> None:
        answer = await server.post(
            CHAT, {**ASK, "tools": [tool], "tool_choice": "required", "seed": 1, "max_tokens": 150}
        )
        for call in answer.json()["choices"][0]["message"]["tool_calls"]:
            assert SSN not in call["function"]["arguments"]
            if answer.json()["choices"][0]["finish_reason"] == "tool_calls":
                assert set(json.loads(call["function"]["arguments"])) == {"to"}

    served(body, make_runtime(ScriptedBackend(script), guards=Guards([Ssn(on_fail="redact")])))


def test_a_prompt_that_a_guard_stops_is_refused_before_the_first_byte() -> None:
    asked = {**ASK, "messages": [{"role": "user", "content": f"mine is {SSN}"}]}
    guards = Guards([Ssn(on_fail="block", stages=["input"])])

    async def body(server: InProcess) -> None:
        for stream in (False, True):
            answer = await server.post(CHAT, {**asked, "stream": stream})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "content_filter", "messages")
            assert SSN not in answer.text
        answer = await server.post("/v1/completions", {"model": "m", "prompt": f"it is {SSN}"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")

    served(body, make_runtime(guards=guards))


def test_with_refusals_a_stopped_prompt_is_answered_with_one() -> None:
    asked = {**ASK, "messages": [{"role": "user", "content": f"mine is {SSN}"}]}
    guards = Guards([Ssn(on_fail="block", stages=["input"])], on_block=Refusal)

    async def body(server: InProcess) -> None:
        answer = await server.openai.chat.completions.create(**asked)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content is None
        assert "ssn" in (answer.choices[0].message.refusal or "") and SSN not in (
            answer.choices[0].message.refusal or ""
        )

    served(body, make_runtime(guards=guards))


def test_guards_come_from_yaml_and_write_an_audit_without_text(tmp_path: Path) -> None:
    path, audit = tmp_path / "guards.yaml", tmp_path / "audit.jsonl"
    path.write_text(
        f"audit: {audit}\nguards:\n  - type: Never\n    phrases: [walrus]\n  - type: PII\n    types: [EMAIL]\n"
        "    on_fail: redact\n"
    )
    guards = Guards.from_yaml(path, audit_key=b"0123456789abcdef")

    async def body(server: InProcess) -> None:
        answer = await server.post(CHAT, {**ASK, "temperature": 0})
        shown = answer.json()["choices"][0]["message"]["content"]
        assert "ann@example.com" not in shown and "walrus" not in shown
        await raw_stream(server, {})

    served(body, make_runtime(ScriptedBackend("write to ann@example.com or the walrus"), guards=guards))
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len({record["request_id"] for record in records}) == 2
    assert {"redact"} <= {record["action"] for record in records}
    assert "ann@" not in audit.read_text() and "walrus" not in audit.read_text()


def test_an_audit_that_cannot_be_kept_fails_the_request() -> None:
    def sink(records: Any) -> None:
        raise OSError("disk full of walrus")

    async def body(server: InProcess) -> None:
        answer = await server.post(CHAT, ASK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "walrus" not in answer.text

    served(body, make_runtime(guards=Guards([Never(phrases=["x"])], audit=sink)))


def test_a_type_under_bans_is_compiled_once_and_on_the_compiling_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from safegen import output_type

    threads: list[str] = []
    compile_type = output_type.compile_type

    def counted(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compile_type(*arguments, **options)

    monkeypatch.setattr(output_type, "compile_type", counted)

    async def body(server: InProcess) -> None:
        form = {"type": "regex", "pattern": "[a-z]{3}"}
        for stream in (False, True):
            answer = await server.post(CHAT, {**ASK, "response_format": form, "stream": stream})
            assert answer.status_code == 200

    for guards in ((), Guards([Never(phrases=["abc"])])):
        threads.clear()
        served(body, make_runtime(guards=guards))
        assert len(threads) == 1 and threads[0].startswith("safegen-compile")
