"""From a row to a call: prompts, types and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError, RowError, SchemaError
from safegen.jobs.prompts import Template, make_prompt
from safegen.llm import LLM
from safegen.types import Choice, JsonSchema, Regex
from tests.support.job_fakes import FakeRuntime, fake_llm
from tests.support.jobs import read_records

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def test_a_template_fills_columns_and_keeps_doubled_braces() -> None:
    template = Template('{{"q": {a b}}} {list}')
    assert template.columns == {"a b", "list"}
    assert template.fill({"a b": "x{y}", "list": [1, "é"]}) == '{"q": x{y}} [1, "é"]'


@pytest.mark.parametrize("text", ["{", "{a", "a}", "{}", "{a!r}", "{a:>10}"])
def test_a_malformed_template_is_refused_before_the_job(text: str) -> None:
    with pytest.raises(RequestError, match="prompt"):
        make_prompt(text)


@pytest.mark.parametrize("given", ["no place", [{"role": "user", "content": "none"}], [], 7, ["x"]])
def test_a_prompt_that_no_row_changes_is_refused(given: Any) -> None:
    with pytest.raises(RequestError):
        make_prompt(given)


def test_a_place_never_reaches_into_a_value() -> None:
    with pytest.raises(RowError, match=r"no column 'text\.__class__'"):
        Template("{text.__class__}").fill({"text": "x"})


def test_messages_are_templates_each() -> None:
    made = make_prompt([{"role": "system", "content": "Be {tone}."}, {"role": "user", "content": "{text}"}])
    assert made({"tone": "kind", "text": "Hi"}) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]


def test_without_a_prompt_the_row_has_it() -> None:
    made = make_prompt(None)
    assert made({"prompt": "p", "text": "t"}) == "p"
    assert made({"text": "t"}) == "t"
    assert made({"messages": '[{"role": "user", "content": "m"}]'}) == [{"role": "user", "content": "m"}]
    with pytest.raises(RowError, match="format='openai'"):
        made({"body": {}})


def run(tmp_path: Path, rows: list[Any], spec: Any = None, **options: Any) -> tuple[list[dict[str, Any]], FakeRuntime]:
    runtime = FakeRuntime()
    llm = LLM.from_runtime(runtime)
    llm.run_job(rows, tmp_path / "out.jsonl", spec, **{"progress": "off", **options})
    return sorted(read_records(tmp_path / "out.jsonl"), key=lambda record: record["row"]), runtime


def test_a_function_that_raises_fails_its_row_alone(tmp_path: Path) -> None:
    records, _ = run(tmp_path, [{"n": 1}, {"n": 0}, {"n": 2}], prompt=lambda columns: f"{1 / columns['n']}")
    assert [record["status"] for record in records] == ["ok", "refused", "ok"]
    assert records[1]["error"]["type"] == "RowError"
    assert "ZeroDivisionError" in records[1]["error"]["message"]


def test_a_schema_column_gives_each_row_its_own_type(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "schema": SCHEMA},
        {"text": "b", "schema": '{"type": "integer"}'},
        {"text": "c"},
        {"text": "d", "schema": {"type": "nonsense"}},
        {"text": "e", "schema": "no JSON"},
        {"text": "f", "schema": SCHEMA},
    ]
    records, runtime = run(tmp_path, rows, Regex("[0-9]"), schema_column="schema")
    specs = [spec for _, spec, _ in runtime.asked]
    assert specs[0] == JsonSchema(SCHEMA)
    assert specs[0] is specs[-1]
    assert specs[2].kind == "regex"
    assert [record["status"] for record in records] == ["ok", "ok", "ok", "refused", "refused", "ok"]
    assert records[3]["error"]["type"] == records[4]["error"]["type"] == "SchemaError"
    assert records[3]["error"]["keyword"] == "type"


def test_a_function_gives_each_row_its_own_type(tmp_path: Path) -> None:
    def type_of(columns: Any) -> Any:
        return Choice(columns["labels"]) if "labels" in columns else None

    rows = [{"text": "a", "labels": ["x", "y"]}, {"text": "b"}, {"text": "c", "labels": []}]
    records, runtime = run(tmp_path, rows, type_of=type_of)
    assert [record["status"] for record in records] == ["ok", "ok", "refused"]
    assert runtime.asked[0][1] == Choice(["x", "y"])


def test_a_type_that_cannot_be_served_ends_the_job_before_its_output(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        run(tmp_path, ["a"], JsonSchema({"type": "nonsense"}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"temprature": 1}, {"max_tokens": 0}, {"stop": ["."], "type": int}, {"logprobs": 1}, {"window": 0},
        {"on_change": "maybe"}, {"progress": "loud"}, {"retry_failed": "yes"}, {"prompt": "{", }, {"format": "xml"},
        {"schema_column": "a", "type_of": lambda row: None}, {"guards": 7}, {"version": 3}, {"max_row_bytes": True},
        {"speculation": "fast"}, {"format": "openai", "prompt": "{text}"},
    ],
)  # fmt: skip
def test_a_wrong_option_ends_the_job_before_its_output(tmp_path: Path, options: dict[str, Any]) -> None:
    spec = options.pop("type", None)
    with pytest.raises(RequestError):
        run(tmp_path, ["a"], spec, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_id_is_the_rows_own_or_its_key(tmp_path: Path) -> None:
    records, _ = run(tmp_path, [{"id": 7, "text": "a"}, {"custom_id": "c", "text": "b"}, "c"])
    assert [record["id"] for record in records] == [7, "c", records[2]["key"]]
    named, _ = run(tmp_path / "other", [{"name": ["x"], "text": "a"}], id_column="name")
    assert named[0]["id"] == '["x"]'


def test_a_lone_surrogate_in_a_row_does_not_break_the_output(tmp_path: Path) -> None:
    records, _ = run(tmp_path, [{"id": "\ud800", "text": "a"}, {"text": "b"}])
    assert records[0]["id"] == "\ud800"
    assert len(records) == 2


def test_seeds_come_from_the_jobs_seed_and_the_key(tmp_path: Path) -> None:
    seeds = {}
    for seed in (1, 2):
        _, runtime = run(tmp_path / str(seed), ["a", "b", "a"], seed=seed)
        seeds[seed] = [asked for _, _, asked in runtime.asked]
    assert len({*seeds[1], *seeds[2]}) == 6
    _, again = run(tmp_path / "again", ["b", "a", "a"], seed=1)
    assert sorted(str(asked) for _, _, asked in again.asked) == sorted(map(str, seeds[1]))


BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({**BODY, "tools": [{}]}, "tools"), ({**BODY, "n": 3}, "body.n=3"), ({**BODY, "stream": True}, "stream"),
        ({}, "messages"), (None, "'body'"), ({**BODY, "response_format": {"type": "xml"}}, "xml"),
        ({**BODY, "response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({**BODY, "temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no text"),
        ({**BODY, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "?"}}}}, "(type)"),
    ],
)  # fmt: skip
def test_what_a_batch_file_asks_that_is_not_served_is_refused_by_name(tmp_path: Path, body: Any, said: str) -> None:
    records, _ = run(tmp_path, [{"custom_id": "a", "body": body}, {"custom_id": "b", "body": BODY}], format="openai")
    assert [record["status"] for record in records] == ["refused", "ok"]
    assert said in records[0]["error"]["message"]


def test_a_batch_file_says_prompt_type_and_sampling_of_each_row(tmp_path: Path) -> None:
    asked_for = {
        "model": "gpt-x", "temperature": 0.5, "max_completion_tokens": 9, "seed": 3,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    }  # fmt: skip
    records, runtime = run(tmp_path, [{"custom_id": "a", "body": asked_for}], format="openai")
    assert records[0]["id"] == "a"
    assert runtime.asked == [([{"role": "user", "content": "ab"}], JsonSchema(SCHEMA), 3)]


def test_many_schemas_do_not_pile_up() -> None:
    from safegen.jobs.output_types import RowTypes

    llm = fake_llm()
    types = RowTypes(llm.compile(None), "schema", None)
    for number in range(600):
        types.of({"schema": {"const": number}})
    assert len(types._schemas) == 256
