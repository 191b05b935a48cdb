"""`safegen job`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import safegen.llm
from safegen.cli import OK, USER_MISTAKE, main
from safegen.jobs.report import ROWS_FAILED
from safegen.llm import LLM
from tests.jobs.test_flow import broken_rows
from tests.support.job_fakes import FakeRuntime
from tests.support.jobs import read_records, write_rows


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    """The model of every command in this test; the working folder is empty."""
    runtime = FakeRuntime()

    def loaded(*arguments: Any, **options: Any) -> LLM:
        return LLM.from_runtime(FakeRuntime() if runtime._closed else runtime)

    monkeypatch.setattr(safegen.llm, "LLM", loaded)
    monkeypatch.chdir(tmp_path)
    return runtime


def test_all_rows_ok_is_exit_code_0_and_rows_that_failed_3(
    fake: FakeRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(Path("in.jsonl"), ["a", "b"])
    assert main(["job", "in.jsonl", "out.jsonl"]) == OK
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "rows of this run  2 (0 were done before)" in shown.err
    write_rows(Path("in.jsonl"), ["a", "b", "@blocked", {"none": 1}])
    assert main(["job", "in.jsonl", "out.jsonl", "--json"]) == ROWS_FAILED
    shown = capsys.readouterr()
    assert "blocked           1" in shown.err
    assert "GuardBlocked" in shown.err
    report = json.loads(shown.out)
    assert (report["statuses"], report["skipped"], report["exit_code"]) == (
        {"ok": 2, "blocked": 1, "refused": 1}, 2, 3,
    )  # fmt: skip
    assert main(["job", "in.jsonl", "out.jsonl"]) == ROWS_FAILED  # nothing was to be done, and they are not ok still


def test_two_thousand_rows_of_which_one_in_twenty_is_broken(
    fake: FakeRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = broken_rows(Path("in.jsonl"), 2000)
    text = Path("in.jsonl").read_bytes().replace(b"forbidden", b"@blocked").replace(b"long long", b"@long long")
    Path("in.jsonl").write_bytes(text)
    assert main(["job", "in.jsonl", "out.jsonl", "--schema-column", "schema", "--ordered"]) == ROWS_FAILED
    records = read_records(Path("out.jsonl"))
    assert [record["status"] for record in records] == expected
    assert expected.count("ok") == 1900
    shown = capsys.readouterr().err
    for line in ("ok                1,900", "blocked           25", "refused           75", "RowError", "SchemaError"):
        assert line in shown


def test_options_reach_the_job(fake: FakeRuntime) -> None:
    Path("in.csv").write_text("name,n\nMaria,3\n")
    Path("template.txt").write_text("Greet {name}.")
    Path("guards.json").write_text('[{"type": "MaxLength", "characters": 100}]')
    code = main(
        ["job", "in.csv", "out.jsonl", "--prompt-file", "template.txt", "--system", "You know {n} words.", "--regex",
         "[a-z]+", "--id-column", "name", "--seed", "3", "--max-tokens", "7", "--guards", "guards.json",
         "--version-name", "2", "--progress", "off"]
    )  # fmt: skip
    assert code == OK
    ((prompt, spec, _),) = fake.asked
    assert [message["content"] for message in prompt] == ["You know 3 words.", "Greet Maria."]
    assert spec.kind == "regex"
    assert read_records(Path("out.jsonl"))[0]["id"] == "Maria"
    description = json.loads(Path("out.jsonl.job.json").read_text())["configs"][0]["description"]
    assert (description["seed"], description["params"]["max_tokens"], description["version"]) == (3, 7, "2")
    assert description["guards"] is not None


def test_openai_batch_files_are_read(fake: FakeRuntime) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": "any"}
    write_rows(Path("in.jsonl"), [{"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": body}])
    assert main(["job", "in.jsonl", "out.jsonl", "--format", "openai"]) == OK
    assert read_records(Path("out.jsonl"))[0]["id"] == "a-1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl", "out.jsonl"], "nowhere.jsonl"),
        (["in.jsonl", "out.txt"], ".jsonl (one file)"),
        (["in.txt", "out.jsonl"], "format of"),
        (["in.jsonl", "in.jsonl"], "are the same"),
        (["in.jsonl", "out.jsonl", "--prompt", "no place"], "names no column"),
        (["in.jsonl", "out.jsonl", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (["in.jsonl", "out.jsonl", "--system", "x"], "--system needs --prompt"),
        (["in.jsonl", "out.jsonl", "--prompt", "{a}", "--prompt-file", "b"], "not allowed"),
        (["in.jsonl", "out.jsonl", "--window", "0"], "window=0"),
        (["in.jsonl", "out.jsonl", "--guards", "nowhere.yaml"], "nowhere.yaml"),
        (["in.jsonl", "other/notes.jsonl"], "no job wrote it"),
        (["in.jsonl"], "output"),
    ],
)
def test_a_mistake_is_exit_code_2_with_a_message_and_no_traceback(
    fake: FakeRuntime, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(Path("in.jsonl"), ["a"])
    write_rows(Path("other/notes.jsonl"), [1])
    assert main(["job", *arguments]) == USER_MISTAKE
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert not Path("out.jsonl").exists()


def test_a_changed_job_is_exit_code_2_until_it_is_told(fake: FakeRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(Path("in.jsonl"), ["a", "b"])
    assert main(["job", "in.jsonl", "out.jsonl"]) == OK
    changed = ["job", "in.jsonl", "out.jsonl", "--prompt", "Say {text}"]
    assert main(changed) == USER_MISTAKE
    assert "JobChanged" in capsys.readouterr().err
    assert main([*changed, "--on-change", "keep"]) == OK
    assert main(["job", "in.jsonl", "out.jsonl", "--no-resume"]) == USER_MISTAKE


def test_an_interrupt_is_exit_code_130_and_the_job_goes_on_later(
    fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(Path("in.jsonl"), [f"row {number}" for number in range(50)])
    answer = FakeRuntime._answer

    def interrupted(self: FakeRuntime, text: str, *rest: Any) -> Any:
        if text == "row 20":
            raise KeyboardInterrupt
        return answer(self, text, *rest)

    monkeypatch.setattr(FakeRuntime, "_answer", interrupted)
    assert main(["job", "in.jsonl", "out.jsonl"]) == 130
    assert len(read_records(Path("out.jsonl"))) == 20
    monkeypatch.setattr(FakeRuntime, "_answer", answer)
    assert main(["job", "in.jsonl", "out.jsonl"]) == OK
    assert len(read_records(Path("out.jsonl"))) == 50
