"""The official openai client, asynchronous in process and synchronous over a socket, against the server."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel, Field

from tests.server.harness import ASK, InProcess, live, served
from tests.support.sdk_fakes import ScriptedBackend, make_runtime


class Order(BaseModel):
    item: Literal["tea", "coffee"]
    count: int = Field(ge=1, le=20)


class Weather(BaseModel):
    """Look the weather up."""

    city: Literal["Lisbon", "Porto"]


def test_chat_answers_with_text_usage_and_reason() -> None:
    async def body(server: InProcess) -> None:
        answer = await server.openai.chat.completions.create(**ASK, temperature=0)
        assert answer.choices[0].message.content == "hello there"
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.model, answer.object) == ("m", "chat.completion")
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 11, 20)
        cut = await server.openai.chat.completions.create(**ASK, temperature=0, max_completion_tokens=5)
        assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("hello", "length")

    served(body, make_runtime(ScriptedBackend("hello there")))


def test_stream_gives_chunks_and_usage_last() -> None:
    async def body(server: InProcess) -> None:
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        chunks = [chunk async for chunk in await server.openai.chat.completions.create(**ASK, **options)]
        *shown, usage = chunks
        assert "".join(chunk.choices[0].delta.content or "" for chunk in shown) == "hello there"
        assert shown[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in shown] == [None] * (len(shown) - 1) + ["stop"]
        assert usage.choices == [] and usage.usage is not None and usage.usage.completion_tokens == 11
        assert len({chunk.id for chunk in chunks}) == 1

    served(body, make_runtime(ScriptedBackend("hello there")))


def test_parse_gives_instances_of_pydantic_models() -> None:
    async def body(server: InProcess) -> None:
        for seed in range(4):
            answer = await server.openai.chat.completions.parse(**ASK, response_format=Order, seed=seed)
            assert isinstance(answer.choices[0].message.parsed, Order)

    served(body)


def test_stream_helper_parses_as_it_reads() -> None:
    async def body(server: InProcess) -> None:
        async with server.openai.chat.completions.stream(**ASK, response_format=Order, seed=3) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Order)
        assert "content.delta" in kinds and "content.done" in kinds

    served(body)


def test_tools_are_called_with_arguments_of_their_type() -> None:
    async def body(server: InProcess) -> None:
        for choice in ("required", {"type": "function", "function": {"name": "Weather"}}):
            answer = await server.openai.chat.completions.parse(
                **ASK, tools=[pydantic_function_tool(Weather)], tool_choice=choice, parallel_tool_calls=False, seed=1
            )
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == "tool_calls"
            assert message.content is None and message.tool_calls is not None and len(message.tool_calls) == 1
            assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather)

    served(body)


def test_stream_helper_follows_the_arguments_of_calls() -> None:
    async def body(server: InProcess) -> None:
        options: dict[str, Any] = {"tools": [pydantic_function_tool(Weather)], "tool_choice": "required", "seed": 1}
        async with server.openai.chat.completions.stream(**ASK, **options, parallel_tool_calls=False) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert calls is not None and isinstance(calls[0].function.parsed_arguments, Weather)
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds

    served(body)


def test_tool_choice_auto_and_none_answer_with_text() -> None:
    async def body(server: InProcess) -> None:
        for choice in ("auto", "none"):
            answer = await server.openai.chat.completions.create(
                **ASK, tools=[pydantic_function_tool(Weather)], tool_choice=choice, temperature=0
            )
            assert answer.choices[0].message.content == "it is warm"
            assert answer.choices[0].message.tool_calls is None
            assert answer.choices[0].finish_reason == "stop"

    served(body, make_runtime(ScriptedBackend("it is warm")))


def test_a_conversation_with_tool_calls_goes_on() -> None:
    async def body(server: InProcess) -> None:
        first = await server.openai.chat.completions.create(
            **ASK, tools=[pydantic_function_tool(Weather)], tool_choice="required", parallel_tool_calls=False, seed=1
        )
        said = first.choices[0].message
        assert said.tool_calls is not None
        messages: list[Any] = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "go "}, {"type": "text", "text": "on"}]},
            said.model_dump(),
            {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "21 degrees"},
        ]
        answer = await server.openai.chat.completions.create(
            model="m", messages=messages, tools=[pydantic_function_tool(Weather)], tool_choice="none", max_tokens=3
        )
        told = bytes(prompts[-1])
        assert b"system: be brief\nuser: go on\nassistant: <tool_call>\n" in told
        assert b'"arguments":' + said.tool_calls[0].function.arguments.encode() in told
        assert told.endswith(b"tool: 21 degrees\n")
        assert answer.choices[0].finish_reason == "length"

    prompts: list[list[int]] = []
    runtime = make_runtime()
    encode_chat = runtime._tokenizer.encode_chat

    def recorded(messages: Any, **arguments: Any) -> list[int]:
        ids = encode_chat(messages, **arguments)
        prompts.append(ids)
        return ids

    runtime._tokenizer.encode_chat = recorded  # type: ignore[method-assign]
    served(body, runtime)


def test_extensions_hold_answers_to_regex_grammar_and_choice() -> None:
    async def body(server: InProcess) -> None:
        for form, check in (
            ({"type": "regex", "pattern": "[a-c]{4}"}, lambda text: len(text) == 4 and set(text) <= set("abc")),
            ({"type": "choice", "choices": ["red", "blue"]}, lambda text: text in ("red", "blue")),
            ({"type": "grammar", "grammar": 'start: "x" ~ 3 "y"'}, lambda text: text == "xxxy"),
            ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict)),
        ):
            answer = await server.openai.chat.completions.create(
                **ASK,
                response_format=form,
                seed=1,
                max_tokens=200,  # type: ignore[arg-type]
            )
            assert check(answer.choices[0].message.content or ""), form

    served(body)


def test_samples_seeds_and_logprobs_come_as_asked() -> None:
    async def body(server: InProcess) -> None:
        options: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
        first = await server.openai.chat.completions.create(**ASK, **options)
        again = await server.openai.chat.completions.create(**ASK, **options)
        texts = [choice.message.content for choice in first.choices]
        assert len(set(texts)) == 3
        assert texts == [choice.message.content for choice in again.choices]
        logprobs = first.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 8
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in logprobs.content)
        spelled = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
        assert spelled.decode(errors="replace").startswith((texts[0] or "")[:4])

    served(body)


def test_bias_and_stop_are_kept_to() -> None:
    async def body(server: InProcess) -> None:
        banned = await server.openai.chat.completions.create(
            **ASK, response_format={"type": "choice", "choices": ["x", "y"]}, logit_bias={str(ord("x")): -100}, seed=1
        )  # type: ignore[call-overload]
        assert banned.choices[0].message.content == "y"
        stopped = await server.openai.chat.completions.create(**ASK, temperature=0, stop=["lo"])
        assert stopped.choices[0].message.content == "hel"

    served(body, make_runtime(ScriptedBackend("hello there")))


def test_plain_completions_go_on_from_the_text_itself() -> None:
    async def body(server: InProcess) -> None:
        answer = await server.openai.completions.create(model="m", prompt=["a\n", "bcd\n"], temperature=0, logprobs=1)
        assert [choice.text for choice in answer.choices] == ["hello there"] * 2
        assert answer.usage is not None and answer.usage.prompt_tokens == len("a\n") + len("bcd\n")
        options: dict[str, Any] = {"model": "m", "prompt": ["a\n", "b\n"], "temperature": 0, "stream": True}
        texts = {0: "", 1: ""}
        async for chunk in await server.openai.completions.create(**options):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == {0: "hello there", 1: "hello there"}

    served(body, make_runtime(ScriptedBackend("hello there")))


def test_models_are_listed_by_name() -> None:
    async def body(server: InProcess) -> None:
        assert [model.id async for model in await server.openai.models.list()] == ["m", "org/alias"]
        assert (await server.openai.models.retrieve("org/alias")).owned_by == "safegen"
        with pytest.raises(openai.NotFoundError) as refused:
            await server.openai.chat.completions.create(**{**ASK, "model": "gpt"})
        assert refused.value.code == "model_not_found" and refused.value.param == "model"

    served(body, model_names=("m", "org/alias"))


def test_the_plain_client_over_a_socket() -> None:
    with live(make_runtime(ScriptedBackend("hello there"))) as server, server.openai() as client:
        answer = client.chat.completions.create(**ASK, temperature=0)
        assert answer.choices[0].message.content == "hello there"
        assert answer._request_id is not None and answer._request_id.startswith("req_")
        chunks = list(client.chat.completions.create(**ASK, temperature=0, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"
        parsed = client.chat.completions.parse(**ASK, response_format=Order, seed=1)
        assert isinstance(parsed.choices[0].message.parsed, Order)
        with client.chat.completions.stream(**ASK, response_format=Order, seed=1) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**ASK, extra_body={"temprature": 1})
        assert (refused.value.param, refused.value.code) == ("temprature", "unknown_parameter")
