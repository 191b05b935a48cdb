"""The official client through a gateway before two safegen servers, over sockets: it gets what a server gives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

from safegen.gateway.app import create_gateway
from safegen.gateway.config import read_config
from safegen.gateway.state import GatewayState
from safegen.server.serving import listen, make_server, serve
from tests.server.harness import ASK, Live, live
from tests.support.sdk_fakes import make_runtime


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=130)


class Weather(BaseModel):
    """Look up the weather."""

    city: Literal["ab", "cd"]


@contextlib.contextmanager
def gateway_before(*servers: Live) -> Iterator[tuple[OpenAI, GatewayState]]:
    """In a thread of its own, as the servers are."""
    upstreams = [{"name": f"s{number}", "url": each.url, "models": ["m"]} for number, each in enumerate(servers)]
    config = {"upstreams": upstreams, "health": {"interval_s": 0.1}}
    app = create_gateway(read_config(config), environment={})
    server, listening = make_server(app, app.state.server.settings), listen("127.0.0.1", 0, 30)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(serve(server, listening)))
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        with OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, timeout=60) as client:
            yield client, app.state.server
    finally:
        server.drain()
        thread.join(30)
        assert not thread.is_alive()


def test_chat_streams_types_tools_and_errors() -> None:
    asked: dict[str, Any] = {**ASK, "max_tokens": 40, "seed": 3}
    with live(make_runtime()) as one, live(make_runtime()) as two, gateway_before(one, two) as (client, _):
        direct = one.openai().chat.completions.create(**asked)
        answer = client.chat.completions.create(**asked)
        assert answer.choices == direct.choices and answer.usage == direct.usage
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer.choices[0].message.content and chunks[-1].usage is not None

        parsed = client.chat.completions.parse(**{**asked, "max_tokens": 60}, response_format=Person)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        tool = pydantic_function_tool(Weather)
        called = client.chat.completions.parse(
            **{**asked, "max_tokens": 200}, tools=[tool], tool_choice="required", parallel_tool_calls=False
        )
        [call] = called.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Weather)
        plain = client.completions.create(model="m", prompt="go", max_tokens=5)
        assert plain.object == "text_completion"
        assert [model.id for model in client.models.list()] == ["m"]

        with pytest.raises(openai.BadRequestError) as unknown:
            client.chat.completions.create(**asked, extra_body={"temperatur": 1})
        assert unknown.value.code == "unknown_parameter" and unknown.value.param == "temperatur"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**asked, "model": "other"})


def test_a_server_that_drains_is_left_and_the_other_answers() -> None:
    asked: dict[str, Any] = {**ASK, "max_tokens": 5, "seed": 3}
    with live(make_runtime()) as one, live(make_runtime()) as two, gateway_before(one, two) as (client, state):
        for draining in (one, two):
            draining.app.state.server.admission.is_draining = True
            for number in range(8):
                asked["messages"] = [{"role": "user", "content": str(number)}]
                assert client.chat.completions.create(**asked).choices[0].finish_reason
            draining.app.state.server.admission.is_draining = False
            deadline = time.monotonic() + 10
            while not all(upstream.is_well for upstream in state.upstreams):
                assert time.monotonic() < deadline
                time.sleep(0.02)
