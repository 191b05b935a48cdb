"""`Tools` and `Think` through the SDK: values, statuses, streams, what the model is told, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

import safegen
from safegen import Choice, DeltaEvent, JsonSchema, Regex, SnapshotEvent, Think, ToolCall, ToolCalls, ToolFormat, Tools
from safegen.engine.config import EngineConfig
from safegen.engine.engine import Engine
from safegen.errors import InvalidOutput, RequestError, SafegenError, SchemaError
from safegen.limits import Limits
from safegen.llm import LLM
from safegen.output_type import compile_type
from safegen.runtime import Runtime
from safegen.think import ThinkStream
from safegen.tools import Tool
from tests.support.sdk_fakes import MAX_CONTEXT, PAD, STOP, TOKEN_BYTES, ByteTokenizer, ScriptedBackend, make_llm


class Weather(BaseModel):
    """Get the weather of a city."""

    city: str = Field(max_length=8)
    days: int = Field(ge=1, le=9, description="how many")

    @field_validator("city")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "Atlantis":
            raise ValueError("sunk")
        return value


@dataclass
class Add:
    a: int
    b: int


def search(query: Annotated[str, Field(max_length=6)], limit: Annotated[int, Field(ge=0, le=5)] = 3) -> str:
    """Search the web."""
    return f"{query}:{limit}"


CLOSE = {
    "type": "function",
    "function": {"name": "close", "description": "Close it.", "parameters": {"properties": {"hard": {"enum": [True]}}}},
}
FORM = ToolFormat("<c>", "</c>", separator=";")
TOOLS = Tools([Weather, Add, search, CLOSE], format=FORM, max_calls=3)


def scripted(text: str) -> LLM:
    return make_llm(ScriptedBackend(text))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm() as made:
        yield made


# --- tools ------------------------------------------------------------------------------------------------------------


def test_calls_are_validated_instances_of_their_tools() -> None:
    text = (
        'Sure. <c>{"name":"Weather","arguments":{"city":"Oslo","days":2}};{"name":"Add","arguments":{"a":1,"b":2}}'
        ';{"name":"search","arguments":{"query":"cats"}}</c>'
    )
    with scripted(text) as llm:
        result = llm.generate("go", TOOLS, max_tokens=300)
    assert result.status == "ok"
    assert result.finish_reason == "stop"
    assert result.text == text
    assert result.value == ToolCalls(
        "Sure. ",
        (
            ToolCall("Weather", Weather(city="Oslo", days=2), '{"city":"Oslo","days":2}'),
            ToolCall("Add", Add(1, 2), '{"a":1,"b":2}'),
            ToolCall("search", {"query": "cats"}, '{"query":"cats"}'),
        ),
    )
    assert search(**result.value.calls[2].arguments) == "cats:3"


def test_an_answer_without_calls_is_text() -> None:
    with scripted("Just words <c") as llm:
        assert llm.generate("go", TOOLS, max_tokens=64).unwrap() == ToolCalls("Just words <c", ())


def test_random_logits_give_valid_calls_only(llm: LLM) -> None:
    tools = Tools([Weather, Add, search, CLOSE], allow_text=False, min_calls=1, max_calls=2)
    names = set()
    for seed in range(12):
        result = llm.generate("go", tools, temperature=1.0, seed=seed, max_tokens=600)
        assert result.status == "ok", result
        assert result.value is not None
        assert result.value.text == ""
        assert 1 <= len(result.value.calls) <= 2
        names |= {call.name for call in result.value.calls}
        assert result.text.startswith('<tool_call>\n{"name":"')
    assert len(names) > 1


def test_an_answer_near_the_limit_is_closed_after_a_whole_call() -> None:
    call = '{"name":"Add","arguments":{"a":1,"b":2}}'
    with scripted(f"<c>{call};{call};{call}</c>") as llm:
        result = llm.generate("go", Tools([Add], format=FORM), max_tokens=2 * len(call))
    assert result.status == "truncated"
    assert result.value == ToolCalls("", (ToolCall("Add", Add(1, 2), '{"a":1,"b":2}'),))


def test_what_a_custom_validator_refuses_is_invalid_and_named() -> None:
    with scripted('<c>{"name":"Weather","arguments":{"city":"Atlantis","days":2}}</c>') as llm:
        result = llm.generate("go", Tools([Weather], format=FORM, max_calls=1), max_tokens=100)
    assert result.status == "invalid"
    assert "'Weather'" in str(result.error)
    assert "sunk" in str(result.error)


def test_stream_shows_calls_as_they_close() -> None:
    text = 'Hm <c>{"name":"Add","arguments":{"a":1,"b":2}};{"name":"close","arguments":{"hard":true}}</c>'
    with scripted(text) as llm, llm.stream("go", TOOLS, max_tokens=200) as events:
        seen = list(events)
    assert "".join(event.text for event in seen if isinstance(event, DeltaEvent)) == text
    add, close = {"name": "Add", "arguments": {"a": 1, "b": 2}}, {"name": "close", "arguments": {"hard": True}}
    snapshots = [event.value for event in seen if isinstance(event, SnapshotEvent)]
    assert snapshots == [{"text": "Hm ", "calls": [add]}, {"text": "Hm ", "calls": [add, close]}]


BAD = {"name": "bad", "parameters": {"type": "object", "properties": {"p": {"$ref": "https://x.test/y"}}}}


def untyped(a, b: int) -> None:  # type: ignore[no-untyped-def]
    """No type for a."""


def positional(*parts: int) -> None:
    """Cannot be called by name."""


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (BAD, "bad"),
        ({"name": "list", "parameters": {"type": "array"}}, "list"),
        ({"name": "yes", "parameters": True}, "yes"),
        ({"name": "broken", "parameters": {"type": "strong"}}, "broken"),
        ({"name": "empty", "parameters": {"type": "object", "minProperties": 2, "maxProperties": 1}}, "empty"),
        (untyped, "untyped"),
        (positional, "positional"),
        (int, "int"),
    ],
)
def test_a_bad_tool_is_refused_by_name_while_the_others_live(llm: LLM, tool: Any, name: str) -> None:
    with pytest.raises(SchemaError, match=f"tool '{name}'") as raised:
        llm.generate("go", Tools([Add, tool, search]))
    assert raised.value.pointer.split("/")[1] == name

    made = llm.compile(Tools([Add, tool, search], on_bad_tool="drop", allow_text=False, max_calls=1))
    refused = [finding for finding in made.findings if finding.handling == "refused"]
    assert [finding.pointer.split("/")[1] for finding in refused] == [name]
    result = llm.generate("go", made, max_tokens=300, temperature=1.0, seed=2)
    assert result.status == "ok"
    assert result.value.calls[0].name in ("Add", "search")
    assert made.shown is not None
    assert f'"name":"{name}"' not in made.shown


def test_check_lists_the_findings_of_every_tool() -> None:
    handling = {finding.pointer.split("/")[1]: finding.handling for finding in safegen.check(Tools([Add, BAD]))}
    assert handling == {"Add": "enforced", "bad": "refused"}
    assert [finding.handling for finding in safegen.check(Tools([BAD]))] == ["refused"]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Tools([]), SchemaError),
        (lambda: Tools("abc"), SchemaError),
        (lambda: Tools({"name": "x"}), SchemaError),
        (lambda: Tools([7]), SchemaError),
        (lambda: Tools([{"description": "no name"}]), SchemaError),
        (lambda: Tools([{"name": "x", "description": 7}]), SchemaError),
        (lambda: Tools([{"name": "x", "parameters": [1]}]), SchemaError),
        (lambda: Tools([Add, Add]), SchemaError),
        (lambda: Tools([Add], format="xml"), RequestError),
        (lambda: Tools([Add], min_calls=3, max_calls=2), RequestError),
        (lambda: Tools([Add], max_calls=0), RequestError),
        (lambda: Tools([Add], min_calls=True), RequestError),
        (lambda: Tools([Add], allow_text=1), RequestError),  # type: ignore[arg-type]
        (lambda: Tools([Add], on_bad_tool="keep"), RequestError),  # type: ignore[arg-type]
        (lambda: Tools([Add], whitespace="some"), RequestError),  # type: ignore[arg-type]
        (lambda: Think(Think(int)), RequestError),
        (lambda: Think(int, max_tokens=-1), RequestError),
        (lambda: Think(int, max_tokens=True), RequestError),
        (lambda: Think(int, end=""), RequestError),
        (lambda: Think(int, start="\ud800"), RequestError),
        (lambda: Think(int, start="<a>", end=">"), RequestError),
        (lambda: Think(Choice(["a"], probabilities=True)), RequestError),
        (lambda: compile_type(Think(compile_type(int))), SchemaError),
        (lambda: compile_type(Tools), SchemaError),
        (lambda: compile_type(Think), SchemaError),
    ],
)
def test_what_cannot_serve_is_a_typed_error(make: Any, error: type[SafegenError]) -> None:
    with pytest.raises(error):
        make()


def test_reading_judges_independently_of_the_machine() -> None:
    read = compile_type(Tools([Add, CLOSE], format=FORM, allow_text=False, max_calls=1)).read
    call = '{"name":"Add","arguments":{"a":1,"b":2}}'
    assert read(f"<c>{call}</c>").calls[0].arguments == Add(1, 2)
    for text in (
        "", "words", f"words<c>{call}</c>", "<c></c>", f"<c>{call}", f"<c>{call};{call}</c>", f"<c>{call}</c> ",
        f"<c>{call[:-1]}</c>", '<c>{"name":"Sub","arguments":{"a":1,"b":2}}</c>', '<c>{"name":7,"arguments":{}}</c>',
        '<c>{"name":"Add","arguments":{"a":1}}</c>', '<c>{"name":"close","arguments":{"hard":false}}</c>',
        '<c>{"arguments":{"a":1,"b":2}}</c>', "<c>" + '{"name":"close","arguments":' + "[" * 100_000,
    ):  # fmt: skip
        with pytest.raises(InvalidOutput):
            read(text)


# --- what the model is told -------------------------------------------------------------------------------------------


class Recorder(ByteTokenizer):
    """Keeps what it is asked to lay out."""

    def __init__(self, template: str | None = "fake", control_tokens: Mapping[str, int] | None = None) -> None:
        self.chat_template = template
        self.control_tokens = control_tokens or {}
        self.seen: list[tuple[Any, Mapping[str, Any]]] = []
        self.suffix = b""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> list[int]:
        self.seen.append((messages, template_arguments))
        return super().encode_chat(messages) + list(self.suffix)


def runtime_with(tokenizer: Recorder, script: Sequence[int]) -> Runtime:
    backend = ScriptedBackend("")
    backend._script = list(script)
    engine = Engine(backend, TOKEN_BYTES, EngineConfig(max_num_seqs=2))
    return Runtime(engine, tokenizer, Limits(), max_context=MAX_CONTEXT, max_num_seqs=2)


def told(template: str | None, spec: Any) -> tuple[str, Mapping[str, Any]]:
    tokenizer = Recorder(template)
    with LLM.from_runtime(runtime_with(tokenizer, [ord("x"), STOP])) as llm:
        llm.generate([{"role": "user", "content": "go"}], spec, max_tokens=4)
    messages, arguments = tokenizer.seen[0]
    return messages[0]["content"] if messages[0]["role"] == "system" else "", arguments


def test_a_template_that_writes_these_calls_is_given_the_tools() -> None:
    system, arguments = told("{% if tools %}... <tool_call> ...{% endif %}", Tools([Weather, CLOSE]))
    assert system == ""
    functions = [tool["function"] for tool in arguments["tools"]]
    assert [function["name"] for function in functions] == ["Weather", "close"]
    assert functions[0]["description"] == "Get the weather of a city."
    assert functions[0]["parameters"]["required"] == ["city", "days"]
    assert {tool["type"] for tool in arguments["tools"]} == {"function"}


@pytest.mark.parametrize("template", [None, "no such thing", "{{ tools }} in another format"])
def test_another_template_leaves_the_tools_to_the_system_prompt(template: str | None) -> None:
    system, arguments = told(template, Tools([Weather, CLOSE]))
    assert arguments == {}
    assert '"name":"Weather"' in system
    assert "Close it." in system
    assert '<tool_call>\n{"name":"<tool>","arguments":{...}}\n</tool_call>' in system


def test_thinking_is_asked_for_beside_the_tools_of_a_template() -> None:
    system, arguments = told("tools <tool_call>", Think(Tools([Add])))
    assert "<think>" in system
    assert "Add" not in system
    assert arguments["tools"][0]["function"]["name"] == "Add"


# --- think ------------------------------------------------------------------------------------------------------------


def test_value_is_the_answer_and_thinking_the_reasoning() -> None:
    text = '<think>Two and two.</think>{"a":2,"b":2}'
    with scripted(text) as llm:
        result = llm.generate("go", Think(Add), max_tokens=200)
        plain = llm.generate("go", Choice(["<think>"]), max_tokens=20)
    assert result.status == "ok"
    assert result.finish_reason == "stop"
    assert (result.value, result.thinking, result.text) == (Add(2, 2), "Two and two.", text)
    assert plain.thinking is None


@pytest.mark.parametrize(
    "inner", [Add, int, Regex("[a-c]{2,4}"), Choice(["yes", "no"]), JsonSchema({"enum": [1, "x"]}), TOOLS, None]
)
def test_the_cap_ends_the_reasoning_and_the_answer_is_of_the_inner_type(llm: LLM, inner: Any) -> None:
    for seed in range(4):
        result = llm.generate("go", Think(inner, max_tokens=10), temperature=1.0, seed=seed, max_tokens=400)
        assert result.status == "ok" or (inner in (None, TOOLS) and result.status == "truncated"), result
        assert result.thinking is not None
        assert len(result.thinking.encode()) <= 10 * max(len(token or b"") for token in TOKEN_BYTES)
        assert result.text.startswith(f"<think>{result.thinking}</think>")
        answer = result.text.removeprefix(f"<think>{result.thinking}</think>")
        assert result.value == compile_type(inner).read(answer)


def test_a_cut_in_the_reasoning_forces_the_shortest_answer(llm: LLM) -> None:
    result = llm.generate("go", Think(Literal["yes", "no"]), max_tokens=60, temperature=1.0, seed=5)
    assert result.status == "truncated"
    assert result.value == "no"
    assert result.text.endswith('</think>"no"')


def test_a_cut_that_leaves_no_room_keeps_the_reasoning() -> None:
    with scripted("<think>abcdefgh") as llm:
        result = llm.generate("go", Think(int), max_tokens=10)
    assert (result.status, result.value, result.thinking) == ("truncated", None, "abc")


def test_snapshots_begin_after_the_reasoning() -> None:
    with scripted('<think>{"a":9}</think>{"a":1,"b":2}') as llm, llm.stream("go", Think(Add), max_tokens=90) as events:
        snapshots = [event.value for event in events if isinstance(event, SnapshotEvent)]
    assert snapshots[-1] == {"a": 1, "b": 2}
    assert {"a": 9} not in snapshots


@pytest.mark.parametrize("start", ["<think>", "", "<long start marker>"])
@pytest.mark.parametrize("text", ["{s}a<b</</think>{{</think>", "</think>x", "{s}</think>", "{s}</think", "{s[0]}ab"])
def test_a_stream_is_split_where_the_whole_text_is(start: str, text: str) -> None:
    think = compile_type(Think(None, start=start)).think
    assert think is not None
    whole = text.format(s=start or "?")
    for size in range(1, len(whole) + 1):
        stream = ThinkStream(think)
        parts = [stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)]
        assert "".join(answer for _, answer in parts) == (think.split(whole)[1] or "")
        assert "".join(reasoning + answer for reasoning, answer in parts) == whole


def test_deltas_say_what_is_reasoning() -> None:
    with scripted("<think>hm</think>42") as llm, llm.stream("go", Think(int), max_tokens=90) as events:
        deltas = [event for event in events if isinstance(event, DeltaEvent)]
    assert "".join(delta.text for delta in deltas if delta.thinking) == "<think>hm</think>"
    assert "".join(delta.text for delta in deltas if not delta.thinking) == "42"


def test_tools_after_reasoning() -> None:
    text = '<think>add</think><c>{"name":"Add","arguments":{"a":1,"b":2}}</c>'
    with scripted(text) as llm:
        result = llm.generate("go", Think(Tools([Add], format=FORM, max_calls=1)), max_tokens=90)
    assert result.unwrap().calls[0].arguments == Add(1, 2)
    assert result.thinking == "add"


def test_a_control_token_is_the_marker_and_its_text_is_shown() -> None:
    tokenizer = Recorder(control_tokens={"</think>": PAD, "<other>": STOP})
    with LLM.from_runtime(runtime_with(tokenizer, [*b"<think>hm", PAD, *b"42", STOP])) as llm:
        result = llm.generate("go", Think(int), max_tokens=40)
        assert (result.value, result.thinking, result.text) == (42, "hm", "<think>hm</think>42")
        assert result.usage.completion_tokens == 12
        assert llm.generate("go", Choice(["a", "b"]), max_tokens=4).status == "ok"


def test_a_start_marker_in_the_prompt_is_not_written_again() -> None:
    tokenizer = Recorder()
    tokenizer.suffix = b"<think>\n"
    with LLM.from_runtime(runtime_with(tokenizer, [*b"hm</think>42", STOP])) as llm:
        result = llm.generate("go", Think(int, max_tokens=2), max_tokens=40)
    assert (result.value, result.thinking, result.text) == (42, "hm", "hm</think>42")


def test_stop_strings_cannot_cut_reasoning(llm: LLM) -> None:
    with pytest.raises(RequestError, match="stop"):
        llm.generate("go", Think(None), stop=["x"])


def test_samples_of_one_request_think_apart(llm: LLM) -> None:
    result = llm.generate("go", Think(int, max_tokens=6), n=3, temperature=1.0, seed=1, max_tokens=200)
    everything = [result, *result.alternatives]
    assert [each.status for each in everything] == ["ok"] * 3
    assert len({each.thinking for each in everything}) == 3


def test_a_tools_type_is_hashable_and_compiled_once(llm: LLM) -> None:
    assert hash(Tools([Weather, CLOSE])) == hash(Tools([Weather, CLOSE]))
    assert llm.compile(Tools([Weather, CLOSE])) is llm.compile(Tools([Weather, CLOSE]))
    assert llm.compile(Think(Tools([CLOSE]))) is llm.compile(Think(Tools([CLOSE])))
    assert Tools([CLOSE]).tools == (Tool("close", "Close it.", None, json.dumps(CLOSE["function"]["parameters"])),)
