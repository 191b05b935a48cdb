"""Parquet in and out: part files that are there complete or not at all. Needs pyarrow."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from safegen.errors import JobInputError, JobOutputError, RequestError
from safegen.llm import LLM
from tests.jobs.test_journal import file_size_limit
from tests.support.job_fakes import FakeRuntime
from tests.support.jobs import answers

ROWS = [{"id": f"r{number}", "text": f"text {number}"} for number in range(57)]


def job(output: Path, rows: Any = ROWS, **options: Any) -> Any:
    return LLM.from_runtime(FakeRuntime()).run_job(
        rows, output, **{"progress": "off", "rows_per_part": 20, "prompt": "Say {text}", **options}
    )


def table_of(output: Path) -> list[dict[str, Any]]:
    """As any dataset reader takes it."""
    rows: list[dict[str, Any]] = parquet.read_table(output).to_pylist()
    return sorted(rows, key=lambda row: row["row"])


def parts(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir() if not path.name.startswith("_"))


def test_parts_together_say_what_a_jsonl_output_says(tmp_path: Path) -> None:
    rows = [*ROWS, {"id": 7, "nothing": 1}, {"id": "b", "text": "@blocked"}]
    report = job(tmp_path / "out.parquet", rows)
    job(tmp_path / "out.jsonl", rows)
    assert report.statuses == {"ok": 57, "refused": 1, "blocked": 1}
    assert parts(tmp_path / "out.parquet") == [f"part-0000{number}.parquet" for number in range(3)]
    assert not (tmp_path / "out.parquet" / "_lock").exists()
    found = table_of(tmp_path / "out.parquet")
    for row, record in zip(found, answers(tmp_path / "out.jsonl"), strict=True):
        assert [row[name] for name in ("row", "key", "status")] == [record[name] for name in ("row", "key", "status")]
        assert (None if row["value"] is None else json.loads(row["value"])) == record["value"]
        assert (None if row["error"] is None else json.loads(row["error"])) == record["error"]
        assert row["id"] in (record["id"], json.dumps(record["id"]))
    assert found[0]["prompt_tokens"] == len("Say text 0")


def test_rows_in_parts_and_in_the_journal_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safegen.jobs.parts import PartFiles

    output = tmp_path / "out.parquet"
    monkeypatch.setattr(PartFiles, "finish", lambda self: None)  # as if killed before its end
    job(output, ROWS[:30])
    monkeypatch.undo()
    assert parts(output) == ["part-00000.parquet"]
    report = job(output)
    assert (report.skipped, report.rows) == (30, 27)
    assert [row["row"] for row in table_of(output)] == list(range(57))
    assert job(output).skipped == 57
    job(tmp_path / "whole.parquet")
    assert [row["value"] for row in table_of(output)] == [row["value"] for row in table_of(tmp_path / "whole.parquet")]


def test_a_crash_between_a_part_and_the_emptying_of_the_journal_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safegen.jobs.journal import Journal

    output = tmp_path / "out.parquet"
    monkeypatch.setattr(Journal, "clear", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job(output)
    monkeypatch.undo()
    assert parts(output) == ["part-00000.parquet"]
    assert (output / "_journal.jsonl").read_bytes().count(b"\n") == 20
    assert job(output).skipped == 20
    assert [row["row"] for row in table_of(output)] == list(range(57))


def test_a_part_that_was_not_finished_is_no_part(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    job(output, ROWS[:20])
    (output / ".part-00007.parquet.tmp").write_bytes(b"PAR1 half")
    job(output)
    assert [row["row"] for row in table_of(output)] == list(range(57))
    (tmp_path / "new.parquet").mkdir()
    (tmp_path / "new.parquet" / "._job.json.tmp").write_text("{")  # killed in the very beginning
    job(tmp_path / "new.parquet")
    assert len(table_of(tmp_path / "new.parquet")) == 57


def test_failed_rows_are_taken_out_of_their_parts_and_retried(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    rows = [{"text": "@error" if number % 10 == 3 else f"text {number}"} for number in range(50)]
    assert job(output, rows).statuses == {"ok": 45, "error": 5}
    fixed = job(output, rows, retry_failed=True, on_change="keep", prompt=lambda columns: "mended")
    assert (fixed.statuses, fixed.rows, fixed.skipped) == ({"ok": 50}, 5, 45)
    assert [row["row"] for row in table_of(output)] == list(range(50))


def test_a_full_disk_loses_no_part_and_no_record(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    rows = [{"text": f"text {number}"} for number in range(400)]
    with file_size_limit(9000), pytest.raises(JobOutputError, match="disk is full"):
        job(output, rows, rows_per_part=100)
    assert not list(output.glob("*.tmp"))
    job(output, rows, rows_per_part=100)
    assert [row["row"] for row in table_of(output)] == list(range(400))


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").mkdir()
    (tmp_path / "out.parquet" / "notes.txt").write_text("mine")
    with pytest.raises(JobOutputError, match="no job wrote it"):
        job(tmp_path / "out.parquet")
    (tmp_path / "file.parquet").write_text("")
    with pytest.raises(RequestError, match="folder of part files"):
        job(tmp_path / "file.parquet")


@pytest.mark.parametrize("as_folder", [False, True])
def test_parquet_files_are_rows(tmp_path: Path, as_folder: bool) -> None:
    given = tmp_path / "in.parquet"
    table = pyarrow.Table.from_pylist(
        [{"text": f"text {number}", "n": number, "when": datetime(2024, 5, 1), "tags": ["a"]} for number in range(600)]
    )
    if as_folder:
        given.mkdir()
        parquet.write_table(table.slice(0, 250), given / "part-0.parquet")
        parquet.write_table(table.slice(250), given / "part-1.parquet")
        (given / "_journal.jsonl").write_text("no data")
    else:
        parquet.write_table(table, given)
    runtime = FakeRuntime()
    options = {"prompt": "{text} {n} {when} {tags}", "progress": "off"}
    given = given.rename(tmp_path / "in") if as_folder else given
    report = LLM.from_runtime(runtime).run_job(given, tmp_path / "out.jsonl", **options)
    assert report.statuses == {"ok": 600}
    assert runtime.asked[599][0] == 'text 599 599 "2024-05-01T00:00:00" ["a"]'


def test_a_file_that_is_no_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"nonsense")
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobInputError, match="as Parquet"):
        job(tmp_path / "out.jsonl", tmp_path / "in.parquet")
    with pytest.raises(JobInputError, match="holds no"):
        job(tmp_path / "out.jsonl", tmp_path / "empty", format="parquet")
