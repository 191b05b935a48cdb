"""The playground's page and endpoints: what they tell, and that they tell and allow no more than the others do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from typing import Any

import pytest

from safegen.cli import _parser
from safegen.errors import RequestError
from safegen.guards import Guards
from safegen.server.auth import ApiKey, key_digest
from safegen.server.command import _settings
from safegen.server.playground.explain import MAX_TEXT_CHARACTERS
from safegen.server.playground.page import page
from tests.server.clients import begun, settled
from tests.server.harness import ASK, KEY, InProcess, live, served, settings, slow_runtime, wait_for_blocks
from tests.support.guards import Ssn
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

RUN, EXPLAIN, CHAT = "/playground/run", "/playground/explain", "/v1/chat/completions"
SSN = "123-45-6789"
ASK_GREEDY = {**ASK, "temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "send", "parameters": PERSON}}


def typed(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def of_type(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == name]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_holds_all_it_needs_and_its_policy_allows_nothing_else() -> None:
    markup, policy = page().body.decode(), page().headers["content-security-policy"]
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        inside = re.findall(f"<{tag}>(.*?)</{tag}>", markup, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    for rule in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'",
                 "base-uri 'none'", "require-trusted-types-for 'script'"):  # fmt: skip
        assert rule in policy
    assert "unsafe" not in policy and "http:" not in policy and "https:" not in policy
    urls = set(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", markup))
    assert all(url.startswith(("#", "data:image/svg+xml,")) for url in urls)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "localStorage", "cookie"):
        assert forbidden not in markup
    assert not re.search(r"<[^>]+\son\w+=", markup), "handlers in markup would be against the policy"


def test_the_page_takes_no_key_and_can_be_left_out() -> None:
    async def shown(server: InProcess) -> None:
        answer = await server.http.get("/")
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "<title>safegen playground</title>" in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await server.http.post("/")).status_code == 405
        assert "/playground/run" not in (await server.http.get("/openapi.json")).text

    async def left_out(server: InProcess) -> None:
        assert (await server.http.get("/")).status_code == 404
        for path in (RUN, EXPLAIN):
            assert (await server.post(path, ASK)).status_code == 404

    for given, expected in ((["serve"], True), (["serve", "--no-playground"], False)):
        assert _settings(_parser().parse_args(given)).playground is expected
    served(shown, keys=(ApiKey("one", key_digest(KEY)),))
    served(left_out, playground=False)
    with pytest.raises(RequestError, match="playground"):
        settings(playground="no")


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_tells_the_type_then_every_token_then_what_came_of_it() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, **typed(PERSON), "seed": 3, "max_tokens": 80}
        answer = await server.post(RUN, asked)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.text)
        first, *deltas, final = events
        assert (first["type"], first["kind"]) == ("type", "json") and first["compile_ms"] > 0
        assert {finding["handling"] for finding in first["findings"]} == {"enforced"}
        assert {delta["type"] for delta in deltas} == {"delta"}
        for delta in deltas:
            assert sum(span[0] for span in delta["spans"]) == len(delta["text"])
        origins = {span[1] for delta in deltas for span in delta["spans"]}
        assert origins == {"forced", "sampled"}
        text = "".join(delta["text"] for delta in deltas)
        plain = (await server.post(CHAT, asked)).json()["choices"][0]
        assert text == plain["message"]["content"] == final["message"]["content"]
        assert (final["type"], final["status"], final["finish_reason"]) == ("final", "ok", plain["finish_reason"])
        assert final["error"] is None and final["usage"]["completion_tokens"] > 0
        assert 0 < final["timings"]["first_token_ms"] <= final["timings"]["total_ms"] <= final["at_ms"]
        assert [event["at_ms"] for event in (*deltas, final)] == sorted(event["at_ms"] for event in (*deltas, final))

    served(body)


def test_tool_calls_and_cut_answers_are_told_as_such() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "seed": 1, "max_tokens": 400, "tools": [TOOL], "tool_choice": "required"}
        final = events_of((await server.post(RUN, asked)).text)[-1]
        calls = final["message"]["tool_calls"]
        assert final["status"] == "ok" and {call["function"]["name"] for call in calls} == {"send"}
        assert all(set(json.loads(call["function"]["arguments"])) == {"name", "age"} for call in calls)
        final = events_of((await server.post(RUN, {**ASK, "max_tokens": 5, "min_tokens": 5})).text)[-1]
        assert (final["status"], final["finish_reason"]) == ("truncated", "length")
        assert "max_tokens" in final["error"]

    served(body)


@pytest.mark.parametrize(
    ("change", "param", "place"),
    [
        (typed({"type": "object", "properties": {"a": {"type": "strin"}}}), "response_format",
         {"pointer": "/properties/a", "keyword": "type"}),
        (typed({"properties": {"b": {"type": "integer", "minimum": 9, "maximum": 2}}, "required": ["b"],
                "type": "object"}), "response_format", {"pointer": "/properties/b"}),
        ({"response_format": {"type": "grammar", "grammar": 'start: "x" other'}}, "response_format",
         {"line": 1}),
        ({"response_format": {"type": "regex", "pattern": "(a"}}, "response_format", {"line": 1}),
        ({"tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "nothing"}}}]}, "tools",
         {"pointer": "/t", "keyword": "type"}),
        ({"n": 2}, "n", None),
        ({"guards": []}, "guards", None),
        ({"model": "other"}, "model", None),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_its_place(change: Any, param: str, place: Any) -> None:
    async def body(server: InProcess) -> None:
        for path, more in ((RUN, {}), (EXPLAIN, {"text": "x"})):
            if path == EXPLAIN and "n" in change:
                continue
            answer = await server.post(path, {**ASK, **change, **more})
            error = answer.json()["error"]
            assert answer.status_code in (400, 404) and error["param"] == param
            assert ("place" in error) == (place is not None)
            assert {name: error["place"][name] for name in place or ()} == (place or {})
        assert server.app.state.server.admission.num_pending == 0

    served(body)


def test_keys_and_their_limits_hold() -> None:
    async def body(server: InProcess) -> None:
        bearer = {"authorization": f"Bearer {KEY}"}
        for path, more in ((RUN, {"max_tokens": 1}), (EXPLAIN, {"text": "x"})):
            assert (await server.post(path, {**ASK, **more})).status_code == 401
            assert (await server.post(path, {**ASK, **more}, headers=bearer)).status_code == 200
        refused = await server.post(EXPLAIN, {**ASK, "text": "x"}, headers=bearer)
        assert refused.status_code == 429 and "retry-after" in refused.headers

    served(body, keys=(ApiKey("one", key_digest(KEY), requests_per_minute=12),))


def test_garbage_is_refused_and_costs_nothing() -> None:
    async def body(server: InProcess) -> None:
        for path in (RUN, EXPLAIN):
            for raw in (b"", b"{", b"[]", b'{"model":"m","model":"m"}', b"\xff", b"NaN", b'{"model":1}'):
                assert (await server.http.post(path, content=raw)).status_code == 400
            assert (await server.http.post(path, content=b" " * (2 << 20))).status_code == 413
        assert (await server.post(EXPLAIN, ASK)).json()["error"]["param"] == "text"
        assert server.app.state.server.admission.num_pending == 0

    served(body)


def test_a_prompt_that_is_too_long_is_an_error_in_the_stream() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "messages": [{"role": "user", "content": "x" * 3000}]}
        lines = (await server.post(RUN, asked)).text.split("\n\n")
        assert json.loads(lines[0].removeprefix("data: "))["type"] == "type"
        error = json.loads(lines[1].removeprefix("data: "))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "[DONE]" not in "".join(lines)

    served(body)


def test_a_client_that_leaves_cancels_its_run() -> None:
    with live(slow_runtime(0.005)) as server:
        made = begun(server, {**ASK, "max_tokens": 1500, "min_tokens": 1500}, path=RUN)
        deadline = time.monotonic() + 10
        while server.runtime.engine_stats().running == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        made.close()
        assert settled(server) and wait_for_blocks(server.runtime)


# --- guards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_fail", ["redact", "block", "retry"])
def test_a_run_tells_what_a_guard_did_and_nothing_of_what_it_found(on_fail: Any) -> None:
    guards = Guards([Ssn(on_fail=on_fail)])
    seen = []

    async def body(server: InProcess) -> None:
        text = re.sub(r'"(at_ms|milliseconds|\w+_ms)":[0-9.e-]+', r'"\1":0', (await server.post(RUN, ASK_GREEDY)).text)
        events = events_of(text)
        shown = "".join(delta["text"] for delta in of_type(events, "delta"))
        assert "123" not in text and "6789" not in text and ("[SSN]" in shown) == (on_fail == "redact")
        acted = [event for event in of_type(events, "guard") if event["action"] != "allow"]
        assert acted and {(each["guard"], each["action"], each["rule"]) for each in acted} == {("ssn", on_fail, "ssn")}
        assert not {"start", "end", "digest", "score"} & set(acted[0])
        final = events[-1]
        assert final["status"] == ("ok" if on_fail == "redact" else "blocked") and final["message"]["content"] == shown
        if on_fail == "block":
            assert shown == "it is " and "ssn" in final["error"]
        seen.append(text)

    for hidden in (SSN, "987-65-4321"):
        served(body, make_runtime(ScriptedBackend(f"it is {hidden} of hers"), guards=guards))
    assert seen[0] == seen[1], "the events depend on what is hidden"


def test_a_guard_that_only_watches_is_not_given_away() -> None:
    told = []

    async def body(server: InProcess) -> None:
        text = (await server.post(RUN, ASK_GREEDY)).text
        told.append([{**event, "milliseconds": 0} for event in of_type(events_of(text), "guard")])

    for script in (f"it is {SSN} of hers, {SSN}", "it is nothing of hers"):
        served(body, make_runtime(ScriptedBackend(script), guards=Guards([Ssn(on_fail="log")])))
    assert told[0] == told[1] and {event["action"] for event in told[0]} == {"allow"}


def test_a_prompt_that_a_guard_stops_is_an_answer_that_says_so() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "messages": [{"role": "user", "content": f"mine is {SSN}"}]}
        text = (await server.post(RUN, asked)).text
        events = events_of(text)
        assert events[-1]["status"] == "blocked" and SSN not in text
        assert [event["stage"] for event in of_type(events, "guard")] == ["input"]

    served(body, make_runtime(guards=Guards([Ssn(on_fail="block", stages=["input"])])))


def test_a_fault_inside_ends_the_run_with_an_error_that_says_nothing() -> None:
    def sink(records: Any) -> None:
        raise OSError("disk full of walrus")

    async def body(server: InProcess) -> None:
        text = (await server.post(RUN, {**ASK, "max_tokens": 3})).text
        final = events_of(text)[-1]
        assert (final["status"], final["error"]) == ("error", "a fault inside the server")
        assert "walrus" not in text

    served(body, make_runtime(guards=Guards([Ssn()], audit=sink)))


# --- explanations -----------------------------------------------------------------------------------------------------


def test_an_explanation_says_where_and_why() -> None:
    async def body(server: InProcess) -> None:
        async def explained(text: str, **change: Any) -> dict[str, Any]:
            answer = await server.post(EXPLAIN, {**ASK, **typed(PERSON), "text": text, **change})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        assert (await explained('{"name":"x","age":3}'))["accepted"]
        text = '{"name":"€😀","age":340}'
        found = await explained(text)
        assert not found["accepted"] and found["places"] == [{"pointer": "/properties/age", "keyword": "maximum"}]
        assert found["byte"] == text.encode().index(b"340") + 2
        before = text.encode("utf-16-le")[: 2 * found["character"]].decode("utf-16-le")
        assert before == '{"name":"€😀","age":34'
        assert found["expected"] and found["reason"]
        early = await explained('{"name":"x"')
        assert early["byte"] == early["character"] == len('{"name":"x"')
        choice = {"response_format": {"type": "choice", "choices": ["yes", "no"]}}
        assert (await explained("maybe", **choice))["byte"] == 0
        assert (await explained("anything", response_format={"type": "text"}))["accepted"]

    served(body)


def test_an_explanation_is_bounded_and_costs_no_sequence() -> None:
    async def body(server: InProcess) -> None:
        long = {**ASK, "text": "x" * (MAX_TEXT_CHARACTERS + 1)}
        assert (await server.post(EXPLAIN, long)).json()["error"]["param"] == "text"
        schema = typed({"type": "array", "items": {"type": "string", "pattern": "^(a|b|ab)*$"}})
        text = json.dumps(["ab" * 40] * 190, separators=(",", ":"))
        started = time.perf_counter()
        answer = await server.post(EXPLAIN, {**ASK, **schema, "text": text[:MAX_TEXT_CHARACTERS]})
        assert answer.status_code == 200 and time.perf_counter() - started < 10
        assert server.runtime.engine_stats().steps == 0

    served(body)
