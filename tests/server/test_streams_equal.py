"""Concatenated stream deltas are the message that is not streamed: over types, n, tools, stop strings and guards."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from safegen.guards import Guards, Never, Refusal
from safegen.runtime import Runtime
from safegen.speculation import Speculation
from tests.server.harness import ASK, InProcess, in_process
from tests.support.drafters import cheating_speculator
from tests.support.guards import Email, Ssn
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
FORMATS: dict[str, dict[str, Any]] = {
    "text": {},
    "stop": {"stop": ["e", "ab"]},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "object": {"response_format": {"type": "json_object"}},
    "regex": {"response_format": {"type": "regex", "pattern": "[a-zé]{3,30}"}},
    "choice": {"response_format": {"type": "choice", "choices": ["yes", "yet", "no"]}},
    "grammar": {"response_format": {"type": "grammar", "grammar": 'start: "a" start "b" | "x"'}},
    "tools": {"tools": [TOOL]},
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "logprobs": {"logprobs": True, "top_logprobs": 1},
}


async def whole(server: InProcess, body: dict[str, Any]) -> list[dict[str, Any]] | str:
    """Choices by index, without what differs from request to request; or the code of the error."""
    answer = await server.post("/v1/chat/completions", body)
    found = answer.json()
    if answer.status_code != 200:
        return str(found["error"]["code"])
    return [plain(each["message"], each["logprobs"], each["finish_reason"]) for each in found["choices"]]


async def streamed(server: InProcess, body: dict[str, Any]) -> list[dict[str, Any]] | str:
    answer = await server.post("/v1/chat/completions", {**body, "stream": True})
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    lines = [line for line in answer.text.split("\n\n") if line]
    documents = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    if "error" in documents[-1]:
        assert lines[-1] != "data: [DONE]"
        return str(documents[-1]["error"]["code"])
    assert lines[-1] == "data: [DONE]"
    by_index: dict[int, list[dict[str, Any]]] = {}
    for document in documents:
        for choice in document["choices"]:
            by_index.setdefault(choice["index"], []).append(choice)
    return [joined(by_index[index]) for index in sorted(by_index)]


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """As any client joins them; written without looking at the server's own fold."""
    message: dict[str, Any] = {"content": None, "refusal": None}
    calls: list[dict[str, Any]] = []
    for delta in (chunk["delta"] for chunk in chunks):
        for name, value in delta.items():
            if name == "tool_calls":
                for part in value:
                    if part["index"] == len(calls):
                        calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                    for field, text in part["function"].items():
                        calls[part["index"]]["function"][field] += text
            elif name == "role":
                assert "role" not in message
                message["role"] = value
            else:
                message[name] = (message[name] or "") + value
    if calls:
        message["tool_calls"] = calls
    told = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"] is not None]
    assert [chunk["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    return plain(message, told[0] if told else None, chunks[-1]["finish_reason"])


def plain(message: dict[str, Any], logprobs: Any, reason: str) -> dict[str, Any]:
    for call in message.get("tool_calls", ()):
        call["id"] = re.sub("[0-9a-f]{32}", "", call["id"])
    return {**message, "logprobs": logprobs, "finish_reason": reason}


def guard_sets() -> dict[str, Any]:
    return {
        "none": (),
        "never": Guards([Never(phrases=["ab", "q"], word=False)]),
        "block": Guards([Email(on_fail="block")]),
        "redact": Guards([Ssn(on_fail="redact")]),
        "refusal": Guards([Ssn(on_fail="block")], on_block=Refusal),
        "retry": Guards([Ssn(on_fail="retry")]),
    }


def check(runtime: Runtime, bodies: list[dict[str, Any]]) -> list[Any]:
    async def main() -> list[Any]:
        found = []
        async with in_process(runtime) as server:
            for body in bodies:
                pair = await asyncio.gather(whole(server, body), streamed(server, body))
                assert pair[0] == pair[1], body
                found.append(pair[0])
        return found

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("guards", ["none", "never", "redact"])
def test_of_random_answers_the_stream_is_the_message(guards: str) -> None:
    bodies = [
        {**ASK, **form, "seed": seed, "n": 1 + seed % 3, "max_tokens": (6, 40, 120)[seed % 3], "temperature": 1.2}
        for form in FORMATS.values()
        for seed in range(3)
    ]
    found = check(make_runtime(guards=guard_sets()[guards]), bodies)
    shown = [choice for answer in found if not isinstance(answer, str) for choice in answer]
    assert len(shown) > len(bodies)
    assert {"stop", "length", "tool_calls"} <= {choice["finish_reason"] for choice in shown}


@pytest.mark.parametrize("guards", sorted(guard_sets()))
@pytest.mark.parametrize("text", ["call 123-45-6789 or write to ab.c@def.org now", "nothing to see", "123-45-6789"])
def test_of_answers_that_guards_act_on_the_stream_is_the_message(guards: str, text: str) -> None:
    runtime = make_runtime(ScriptedBackend(text), guards=guard_sets()[guards])
    (found,) = check(runtime, [{**ASK, "temperature": 0, "max_tokens": 60}])
    has_ssn = "123" in text
    assert not isinstance(found, str)
    (choice,) = found
    if has_ssn and guards in ("redact", "refusal", "retry"):
        assert "123-45" not in (choice["content"] or "")
    expected = {"refusal": "stop", "retry": "content_filter"}.get(guards) if has_ssn else None
    if expected is not None:
        assert choice["finish_reason"] == expected
        assert (choice["refusal"] is not None) == (guards == "refusal")
    if guards == "block" and "@" in text:
        assert "call 123-45-6789 or write to ".startswith(choice["content"])
        assert choice["finish_reason"] == "content_filter"


def test_with_drafts_that_bring_several_tokens_at_once_it_is_the_same() -> None:
    runtime = make_runtime(speculator=cheating_speculator(), speculation=Speculation())
    check(runtime, [{**ASK, **FORMATS[name], "seed": 1, "max_tokens": 80} for name in ("schema", "tools", "grammar")])
