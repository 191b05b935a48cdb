"""The SDK over the real engine and the real constraint machine, with a fake model whose logits know nothing of JSON."""

from __future__ import annotations

import gc
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from safegen.errors import (
    Cancelled,
    CapacityError,
    EngineClosed,
    GrammarError,
    QueueFull,
    RequestError,
    SafegenError,
    SchemaError,
)
from safegen.events import DeltaEvent, FinalEvent, SnapshotEvent
from safegen.limits import Limits
from safegen.llm import LLM
from safegen.types import Choice, JsonSchema, Regex
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, ScriptedBackend, make_llm


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Thing(BaseModel):
    name: str = Field(max_length=5)
    size: int = Field(ge=0, le=99)
    colour: Colour
    tags: list[Literal["a", "b"]] = Field(max_length=2)


class Even(BaseModel):
    number: Literal[1, 2, 3, 4]

    @field_validator("number")
    @classmethod
    def must_be_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm() as made:
        yield made


def slow_backend(seconds: float = 0.02) -> FakeBackend:
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.on_forward = lambda batch: time.sleep(seconds)
    return backend


# --- values -----------------------------------------------------------------------------------------------------------


def test_value_has_the_type_that_was_asked_for(llm: LLM) -> None:
    for seed in range(20):
        result = llm.generate("make a thing", Thing, temperature=1.0, seed=seed, max_tokens=200)
        assert result.status == "ok", result
        assert isinstance(result.value, Thing)
        assert Thing.model_validate_json(result.text) == result.value


def test_free_text_is_a_str(llm: LLM) -> None:
    result = llm.generate("hello", max_tokens=10, temperature=1.0, seed=1)
    assert result.value == result.text
    assert result.status in ("ok", "truncated")


def test_script_comes_out_as_it_is() -> None:
    with make_llm(ScriptedBackend('{"name":"x","size":7,"colour":"red","tags":["a"]}')) as scripted:
        value = scripted.generate("go", Thing).unwrap()
    assert value == Thing(name="x", size=7, colour=Colour.RED, tags=["a"])


def test_custom_validator_that_refuses_makes_the_result_invalid() -> None:
    with make_llm(ScriptedBackend('{"number":3}')) as odd, make_llm(ScriptedBackend('{"number":4}')) as even:
        refused, accepted = odd.generate("go", Even), even.generate("go", Even)
    assert (refused.status, refused.value) == ("invalid", None)
    assert "odd" in str(refused.error)
    assert accepted.unwrap().number == 4


def test_compiled_type_is_reused_and_says_what_it_cost(llm: LLM) -> None:
    compiled = llm.compile(Thing)
    assert llm.compile(Thing) is compiled
    assert compiled.compile_ms > 0
    assert isinstance(llm.generate("go", compiled, max_tokens=200).value, Thing)


def test_n_samples_are_alternatives_and_differ_by_draw(llm: LLM) -> None:
    result = llm.generate("go", Regex("[a-z]{8}"), n=3, temperature=1.0, seed=5)
    texts = [result.text, *(other.text for other in result.alternatives)]
    assert len(texts) == 3
    assert len(set(texts)) > 1
    assert all(other.status == "ok" for other in result.alternatives)


def test_stop_string_ends_free_text_and_is_not_part_of_it() -> None:
    with make_llm(ScriptedBackend("one two STOP three")) as scripted:
        result = scripted.generate("go", stop=["STOP"])
    assert (result.text, result.status, result.finish_reason) == ("one two ", "ok", "stop")


def test_answer_near_the_limit_is_closed_and_truncated_with_a_value() -> None:
    with make_llm(ScriptedBackend("[" + "1," * 200 + "1]")) as scripted:
        result = scripted.generate("go", list[int], max_tokens=10)
    assert result.status == "truncated"
    assert result.value == json.loads(result.text)
    assert result.usage.completion_tokens <= 10


def test_limit_below_the_shortest_answer_is_truncated_without_a_value(llm: LLM) -> None:
    result = llm.generate("go", Regex("x{50}"), max_tokens=3)
    assert (result.status, result.value) == ("truncated", None)


def test_schema_is_shown_unless_switched_off(llm: LLM) -> None:
    shown = llm.generate("go", bool).usage.prompt_tokens
    hidden = llm.generate("go", bool, show_schema=False).usage.prompt_tokens
    assert hidden == len("user: go\n")
    assert shown > hidden


def test_user_stop_id_ends_free_text_and_is_no_text() -> None:
    with make_llm(ScriptedBackend("ab!cd")) as scripted:
        result = scripted.generate("go", stop_ids=[ord("!")])
    assert (result.text, result.status) == ("ab", "ok")


def test_user_stop_id_is_known_to_the_constraint() -> None:
    with make_llm(ScriptedBackend("a!b")) as scripted:
        result = scripted.generate("go", Regex("a[!b]*b"), stop_ids=[ord("!")])
    assert result.status == "ok"
    assert "!" not in result.text


# --- errors at the door -----------------------------------------------------------------------------------------------

DOOR: list[tuple[str, tuple[Any, ...], dict[str, Any], type[SafegenError]]] = [
    ("empty prompt", ("",), {}, RequestError),
    ("prompt longer than the context", ("x" * MAX_CONTEXT,), {}, RequestError),
    ("max_tokens=0", ("go",), {"max_tokens": 0}, RequestError),
    ("unknown option", ("go",), {"max_token": 5}, RequestError),
    ("NaN temperature", ("go",), {"temperature": math.nan}, RequestError),
    ("the bare class of a description", ("go", JsonSchema), {}, SchemaError),
    ("schema with an unknown type", ("go", JsonSchema({"type": "text"})), {}, SchemaError),
    ("schema as a bare dict", ("go", {"type": "integer"}), {}, SchemaError),
    ("unsatisfiable schema", ("go", JsonSchema({"type": "integer", "minimum": 5, "maximum": 4})), {}, SchemaError),
    ("false schema", ("go", JsonSchema(False)), {}, SchemaError),
    ("invalid regex", ("go", Regex("(a")), {}, GrammarError),
    ("regex that matches nothing", ("go", Regex("[]")), {}, GrammarError),
    ("a function as type", ("go", lambda: 3), {}, SchemaError),
    ("unknown forward reference", ("go", "Person"), {}, SchemaError),
    ("stop with a type", ("go", int), {"stop": ["x"]}, RequestError),
    ("guards", ("go",), {"guards": [object()]}, RequestError),
    ("speculation", ("go",), {"speculation": "fast"}, RequestError),
    ("cache_salt of the wrong type", ("go",), {"cache_salt": 5}, RequestError),
    ("logit_bias outside the vocabulary", ("go",), {"logit_bias": {10**9: 1.0}}, RequestError),
]


@pytest.mark.parametrize(("arguments", "options", "kind"), [case[1:] for case in DOOR], ids=[case[0] for case in DOOR])
def test_wrong_call_is_a_typed_error_in_generate_and_stream_and_a_refused_row_in_batch(
    llm: LLM, arguments: Any, options: dict[str, Any], kind: type[SafegenError]
) -> None:
    with pytest.raises(kind):
        llm.generate(*arguments, **options)
    with pytest.raises(kind), llm.stream(*arguments, **options):
        pass
    if not options:
        refused, served = llm.batch([tuple(arguments) if len(arguments) == 2 else arguments[0], ("go", bool)])
        assert refused.status == "refused"
        assert isinstance(refused.error, kind)
        assert served.status == "ok"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (Even(number=2), "pass the class: Even"),
        (Point(1), "pass the class: Point"),
        (re.compile("a+"), r"Regex\(pattern.pattern\)"),
    ],
    ids=["a pydantic instance", "a dataclass instance", "a compiled pattern"],
)
def test_value_in_place_of_a_type_is_answered_with_what_to_pass(llm: LLM, given: Any, advice: str) -> None:
    with pytest.raises(SchemaError, match=advice):
        llm.generate("go", given)


def test_group_named_as_in_python_is_answered_with_the_spelling_of_ecma(llm: LLM) -> None:
    with pytest.raises(GrammarError, match=r"\(\?<name>"):
        llm.generate("go", Regex(r"(?P<year>\d{4})"))


@pytest.mark.parametrize("schema", [[1], "[1]", "{", '{"type": "integer", "type": "string"}', 5, "NaN"])
def test_what_cannot_be_a_schema_is_refused_at_construction(schema: Any) -> None:
    with pytest.raises(SchemaError):
        JsonSchema(schema)


@pytest.mark.parametrize("labels", [[], [""], ["a", "a"], "abc", [1]])
def test_labels_that_make_no_choice_are_refused_at_construction(labels: Any) -> None:
    with pytest.raises(GrammarError):
        Choice(labels)


def test_request_that_can_never_fit_the_cache_is_a_capacity_error() -> None:
    with make_llm(kv_cache_memory=8 * 16 * 4) as small:  # four blocks of sixteen tokens
        with pytest.raises(CapacityError) as caught:
            small.generate("x" * 40, max_tokens=40)
        assert not isinstance(caught.value, QueueFull)
        refused, served = small.batch(["x" * 40, "x"], max_tokens=40)
    assert refused.status == "refused"
    assert served.status in ("ok", "truncated")


# --- batch ------------------------------------------------------------------------------------------------------------


def test_batch_keeps_the_order_and_every_failure_in_its_row(llm: LLM) -> None:
    rows = [
        ("go", bool),
        "",
        ("go", JsonSchema({"type": "nonsense"})),
        ("go", Regex("[0-9]{4}")),
        "x" * MAX_CONTEXT,
        [{"role": "user", "content": "go"}],
        7,
        ("go", Choice(["yes", "no"])),
    ]
    results = llm.batch(rows, max_tokens=8, temperature=1.0, seed=3)
    assert [result.status for result in results if result.status == "refused"] == ["refused"] * 4
    assert [results[place].status for place in (1, 2, 4, 6)] == ["refused"] * 4
    assert isinstance(results[0].value, bool)
    assert len(results[3].unwrap()) == 4
    assert results[7].value in ("yes", "no")


def test_rows_in_company_are_as_they_are_alone(llm: LLM) -> None:
    rows: list[Any] = [
        (f"row {number}", spec) for number, spec in enumerate([Thing, None, bool, Regex("[a-f]{5}")] * 8)
    ]
    options: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 60}
    together = [result.text for result in llm.batch(rows, **options)]
    alone = [llm.generate(prompt, spec, **options).text for prompt, spec in rows]
    assert together == alone


def test_batch_waits_for_a_full_queue_where_generate_raises() -> None:
    with make_llm(slow_backend(0.002), max_num_seqs=2, limits=Limits(max_queue=1)) as narrow:
        assert all(result.status == "ok" for result in narrow.batch([("go", Regex("x{3}"))] * 20))
        streams = []
        with pytest.raises(QueueFull):
            for _ in range(20):
                stream = narrow.stream("go", max_tokens=400)
                stream.__enter__()
                streams.append(stream)
        for stream in streams:
            stream.__exit__(None, None, None)


@pytest.mark.parametrize("rows", ["a prompt", 5, None])
def test_batch_of_no_list_is_a_request_error(llm: LLM, rows: Any) -> None:
    with pytest.raises(RequestError):
        llm.batch(rows)


def test_empty_batch_is_empty(llm: LLM) -> None:
    assert llm.batch([]) == []


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spec", [Thing, None, Regex("[€é]{3,9}"), dict[str, int]])
def test_deltas_join_to_the_text_of_the_same_call_without_a_stream(llm: LLM, spec: Any, seed: int) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 50}
    with llm.stream("go", spec, **options) as stream:
        events = list(stream)
    text = "".join(event.text for event in events if isinstance(event, DeltaEvent))
    final = events[-1]
    assert isinstance(final, FinalEvent)
    assert sum(isinstance(event, FinalEvent) for event in events) == 1
    assert text == final.result.text == llm.generate("go", spec, **options).text


def test_last_snapshot_is_the_value() -> None:
    backend = ScriptedBackend('{"a":[1,22],"b":{"c":333}}')
    with make_llm(backend) as scripted, scripted.stream("go", JsonSchema({"type": "object"})) as stream:
        values = [event.value for event in stream if isinstance(event, SnapshotEvent)]
        result = stream.result()
    assert values[-1] == result.value == {"a": [1, 22], "b": {"c": 333}}
    assert {"a": [1]} in values


def test_leaving_a_stream_early_cancels_its_request() -> None:
    with make_llm(slow_backend()) as slow:
        with slow.stream("go", max_tokens=400, temperature=1.0, seed=1) as stream:
            next(stream)
        assert idle_within(slow, 2.0)
        with pytest.raises(StopIteration):
            next(stream)
        with pytest.raises(RequestError):
            stream.result()


def test_abandoned_stream_does_not_leak() -> None:
    with make_llm(slow_backend()) as slow:
        stream = slow.stream("go", max_tokens=400, temperature=1.0, seed=1)
        stream.__enter__()
        next(stream)
        del stream
        gc.collect()
        assert idle_within(slow, 2.0)


def test_stream_outside_a_with_block_is_a_request_error(llm: LLM) -> None:
    with pytest.raises(RequestError, match="with"):
        next(llm.stream("go"))


def test_stream_that_was_never_entered_was_never_submitted(llm: LLM) -> None:
    llm.stream("go", max_tokens=400)
    assert idle_within(llm, 0.0)


def idle_within(llm: LLM, seconds: float) -> bool:
    engine: Any = llm._runtime._engine
    deadline = time.monotonic() + seconds
    while True:
        stats = engine.stats()
        if stats.running == 0 and stats.waiting == 0:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


# --- threads and the end ----------------------------------------------------------------------------------------------


def test_threads_share_one_llm(llm: LLM) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 120}
    expected = {seed: llm.generate("go", Thing, seed=seed, **options).text for seed in range(12)}
    found: dict[int, str] = {}

    def work(seed: int) -> None:
        found[seed] = llm.generate("go", Thing, seed=seed, **options).text

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == expected


def test_closing_ends_what_is_in_flight_as_cancelled() -> None:
    slow = make_llm(slow_backend())
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.extend(slow.batch(["go"] * 30, max_tokens=400, temperature=1.0, seed=1))
    )
    thread.start()
    time.sleep(0.1)
    slow.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(results) == 30
    assert {result.status for result in results} == {"cancelled"}
    assert all(isinstance(result.error, EngineClosed) for result in results)
    with pytest.raises(Cancelled):
        results[0].unwrap()


def test_draining_finishes_what_is_in_flight() -> None:
    slow = make_llm(slow_backend(0.005))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(slow.generate("go", Regex("x{20}"))))
    thread.start()
    time.sleep(0.05)
    slow.close(drain=True)
    thread.join(10)
    assert results[0].status == "ok"


def test_closed_llm_raises_engine_closed() -> None:
    llm = make_llm()
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("go"), lambda: llm.batch(["go"]), lambda: llm.stream("go")):
        with pytest.raises(EngineClosed):
            call()


def test_backend_fault_is_an_error_status_and_the_llm_lives_on() -> None:
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    faults = [RuntimeError("device lost")]

    def fail_once(batch: object) -> None:
        if faults:
            raise faults.pop()

    backend.on_forward = fail_once
    with make_llm(backend) as llm:
        assert llm.generate("go", bool).status == "error"
        assert llm.generate("go", bool).status == "ok"
