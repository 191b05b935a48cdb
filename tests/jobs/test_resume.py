"""A job that is run again: rows that are done stay done, under the configuration that they were done with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import JobChanged, JobInputError, JobOutputError, RequestError
from safegen.guards import Custom
from safegen.jobs.report import DONE, ROWS_FAILED
from safegen.llm import LLM
from safegen.tools import Tools
from safegen.types import Choice, Grammar, JsonSchema, Regex, Think
from tests.support.job_fakes import FakeRuntime
from tests.support.jobs import answers, read_records, write_rows

ROWS = [{"text": f"text {number}"} for number in range(30)]


def job(folder: Path, rows: Any = None, spec: Any = None, *, model: str = "fake", **options: Any) -> Any:
    runtime = FakeRuntime(fingerprint=model)
    rows = ROWS if rows is None else rows
    report = LLM.from_runtime(runtime).run_job(rows, folder / "out.jsonl", spec, **{"progress": "off", **options})
    return report, runtime


def test_a_job_that_is_done_asks_nothing_again(tmp_path: Path) -> None:
    report, runtime = job(tmp_path)
    assert (report.rows, report.skipped, report.statuses, report.exit_code) == (30, 0, {"ok": 30}, DONE)
    before = (tmp_path / "out.jsonl").read_bytes()
    report, runtime = job(tmp_path)
    assert (report.rows, report.skipped, report.statuses, runtime.asked) == (0, 30, {"ok": 30}, [])
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_equal_rows_stay_rows_with_keys_and_seeds_of_their_own(tmp_path: Path) -> None:
    rows = ["same", "other", "same", "same"]
    _, runtime = job(tmp_path, rows)
    records = read_records(tmp_path / "out.jsonl")
    assert len({record["key"] for record in records}) == 4
    assert len({seed for _, _, seed in runtime.asked}) == 4
    report, runtime = job(tmp_path, [*rows, "same"])
    assert (report.rows, report.skipped) == (1, 4)
    assert [prompt for prompt, _, _ in runtime.asked] == ["same"]


def test_rows_that_were_moved_or_added_are_told_from_new_ones(tmp_path: Path) -> None:
    job(tmp_path)
    report, runtime = job(tmp_path, [{"text": "new"}, *reversed(ROWS)])
    assert (report.rows, report.skipped) == (1, 30)
    assert [prompt for prompt, _, _ in runtime.asked] == ["new"]


def test_the_same_rows_in_another_format_are_the_same_rows(tmp_path: Path) -> None:
    job(tmp_path)
    path = tmp_path / "in.csv"
    path.write_text("text\n" + "".join(f"{row['text']}\n" for row in ROWS))
    assert job(tmp_path, path)[0].skipped == 30


def _shout(columns: Any) -> str:
    return str(columns["text"]).upper()


CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "type": (Regex("[a-z]"), {}),
    "prompt": (None, {"prompt": "Say {text}"}),
    "params": (None, {"temperature": 0.5}),
    "seed": (None, {"seed": 1}),
    "model": (None, {"model": "another"}),
    "version": (None, {"version": "2"}),
    "show_schema": (None, {"show_schema": False}),
    "guards": (None, {"guards": [Custom(lambda view: None)]}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_configuration_is_refused_and_named(tmp_path: Path, name: str) -> None:
    job(tmp_path)
    before = (tmp_path / "out.jsonl").read_bytes()
    spec, options = CHANGES[name]
    with pytest.raises(JobChanged, match=f"another {name}") as caught:
        job(tmp_path, None, spec, **options)
    assert "on_change" in str(caught.value)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_types_that_differ_in_what_they_allow_are_different(tmp_path: Path) -> None:
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    tool = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}
    specs: list[Any] = [
        JsonSchema(text), JsonSchema(text, whitespace="flexible"), JsonSchema(text, property_order="any"),
        Choice(["a", "b"]), Choice(["b", "a"]), Regex("a"), Regex("b"), int, list[int], None,
        Grammar('start: "a"'), Grammar('start: "a"', tree=True), Think(Regex("a")), Think(Regex("a"), max_tokens=9),
        Think(JsonSchema(text)), Think(JsonSchema(text, whitespace="flexible")), Tools([tool]),
        Tools([{**tool, "parameters": {"type": "object"}}]), Tools([tool], min_calls=1),
        Tools([tool], format="mistral"),
    ]  # fmt: skip
    for number, spec in enumerate(specs):
        job(tmp_path / str(number), ["x"], spec)
    headers = [json.loads(path.read_text()) for path in tmp_path.glob("*/out.jsonl.job.json")]
    assert len({header["configs"][0]["digest"] for header in headers}) == len(specs)


def test_a_prompt_function_is_known_by_its_source(tmp_path: Path) -> None:
    job(tmp_path, prompt=_shout)
    assert job(tmp_path, prompt=_shout)[0].skipped == 30
    with pytest.raises(JobChanged, match="another prompt"):
        job(tmp_path, prompt=lambda columns: str(columns["text"]).lower())


def test_a_lambda_is_known_by_its_code_wherever_it_stands(tmp_path: Path) -> None:
    job(tmp_path, prompt=lambda columns: f"Say {columns['text']}")
    again = job(tmp_path, prompt=lambda columns: f"Say {columns['text']}", ordered=True)
    assert again[0].skipped == 30
    with pytest.raises(JobChanged, match="another prompt"):
        job(tmp_path, prompt=lambda columns: f"Sing {columns['text']}")


def test_keep_answers_only_the_rest_with_the_new_configuration(tmp_path: Path) -> None:
    job(tmp_path, ROWS[:20])
    report, runtime = job(tmp_path, prompt="Say {text}", on_change="keep")
    assert (report.rows, report.skipped) == (10, 20)
    assert {prompt for prompt, _, _ in runtime.asked} == {f"Say text {number}" for number in range(20, 30)}
    assert job(tmp_path, prompt="Say {text}")[0].skipped == 30  # both are known now
    assert job(tmp_path)[0].skipped == 30
    assert len(read_records(tmp_path / "out.jsonl")) == 30


def test_restart_begins_anew(tmp_path: Path) -> None:
    job(tmp_path)
    report, _ = job(tmp_path, prompt="Say {text}", on_change="restart")
    assert (report.rows, report.skipped) == (30, 0)
    assert job(tmp_path, prompt="Say {text}", on_change="restart")[0].skipped == 30
    with pytest.raises(JobChanged):
        job(tmp_path)


def test_only_failed_rows_are_retried_and_stand_once(tmp_path: Path) -> None:
    rows = ["good", "@error", "also good", {"nothing": 1}, "@blocked"]
    report, _ = job(tmp_path, rows)
    assert report.exit_code == ROWS_FAILED
    assert report.statuses == {"ok": 2, "error": 1, "refused": 1, "blocked": 1}
    assert report.errors == {"EngineError": 1, "RowError": 1, "GuardBlocked": 1}
    assert job(tmp_path, rows)[1].asked == []
    report, runtime = job(tmp_path, rows, retry_failed=True)
    assert [prompt for prompt, _, _ in runtime.asked] == ["@error", "@blocked"]
    assert (report.rows, report.skipped) == (3, 2)
    records = read_records(tmp_path / "out.jsonl")
    assert sorted(record["row"] for record in records) == [0, 1, 2, 3, 4]
    fixed, _ = job(tmp_path, rows, retry_failed=True, on_change="keep", prompt=lambda columns: "mended")
    assert fixed.statuses == {"ok": 5}
    assert len(read_records(tmp_path / "out.jsonl")) == 5


def test_resume_off_refuses_an_output_that_exists(tmp_path: Path) -> None:
    job(tmp_path, resume=False)
    with pytest.raises(JobOutputError, match="resume=False"):
        job(tmp_path, resume=False)


def test_an_input_that_breaks_off_keeps_its_rows_and_goes_on_when_mended(tmp_path: Path) -> None:
    def breaking() -> Iterator[Any]:
        yield from ROWS[:25]
        raise JobInputError("the pipe broke")

    with pytest.raises(JobInputError, match="the pipe broke"):
        job(tmp_path, breaking())
    assert len(read_records(tmp_path / "out.jsonl")) == 25
    assert job(tmp_path)[0].skipped == 25


def test_a_callers_own_exception_comes_through(tmp_path: Path) -> None:
    def breaking() -> Iterator[Any]:
        yield ROWS[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        job(tmp_path, breaking())
    assert len(read_records(tmp_path / "out.jsonl")) == 1


def test_a_resumed_job_answers_as_one_that_ran_through(tmp_path: Path) -> None:
    job(tmp_path / "whole", seed=5)
    for end in (7, 8, 21, 30):
        job(tmp_path / "resumed", ROWS[:end], seed=5)
    assert answers(tmp_path / "resumed" / "out.jsonl") == answers(tmp_path / "whole" / "out.jsonl")


def test_a_broken_row_that_is_mended_is_a_new_row(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": \xff}\n')
    assert job(tmp_path, path)[0].statuses == {"ok": 1, "refused": 1}
    write_rows(path, [{"text": "a"}, {"text": "b"}])
    report, _ = job(tmp_path, path, retry_failed=True)
    assert (report.statuses, report.skipped) == ({"ok": 2}, 1)


@pytest.mark.parametrize(
    "output", [7, "out", "out.txt", "out.jsonl.gz", "in.jsonl"]
)  # fmt: skip
def test_an_output_that_cannot_be_one_is_refused(tmp_path: Path, output: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", ROWS)
    with pytest.raises(RequestError, match="output"):
        LLM.from_runtime(FakeRuntime()).run_job("in.jsonl", output, progress="off")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99, "configs": []}', '{"format": 1, "configs": [{}]}'])
def test_a_header_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    job(tmp_path)
    (tmp_path / "out.jsonl.job.json").write_text(text)
    with pytest.raises(JobOutputError, match=r"job\.json"):
        job(tmp_path)
