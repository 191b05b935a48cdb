"""When a job's page is written and what it counts: after a resume, a failure, an interrupt, a kill; in flat memory."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import safegen.jobs.report_file
from safegen.errors import JobChanged, JobInputError, JobLocked, JobOutputError, RequestError
from safegen.jobs.details import MAX_REASONS, NUM_EXAMPLES, NUM_SLOWEST, OTHER_REASONS, JobDetails, reason_of
from safegen.jobs.lock import OutputLock
from safegen.llm import LLM
from tests.support.job_fakes import FakeRuntime, fake_llm
from tests.support.report_jobs import SECRET, VariedRuntime, varied_rows


def run(output: Path, rows: Any, **options: Any) -> Any:
    page = output.with_name("report.html")
    options = {"prompt": "{text}", "progress": "off", "report": page, **options}
    return LLM.from_runtime(options.pop("runtime", None) or VariedRuntime()).run_job(rows, output, **options)


def read(output: Path) -> str:
    """The page's text, and its state."""
    markup = output.with_name("report.html").read_text()
    assert markup.endswith("</html>\n")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", markup, flags=re.S))).split())


def statuses(output: Path) -> dict[str, int]:
    found = re.findall(r'data-status="(\w+)">([\d,]+)<', output.with_name("report.html").read_text())
    return {status: int(count.replace(",", "")) for status, count in found}


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_after_a_resume_counts_are_of_the_whole_output_and_times_of_this_run(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    run(output, varied_rows(200), rows_per_part=50)
    report = run(output, varied_rows(260), rows_per_part=50)
    assert statuses(output) == report.statuses and sum(statuses(output).values()) == 260
    text = read(output)
    assert "Rows 60 200 were done before" in text
    assert "GuardBlocked blocked · guard pii · rule email · stage output" in text
    failed = [int(count) for count in re.findall(r'<td class="number">([\d,]+)</td><td class="number">[\d,]+</td></tr>',
              output.with_name("report.html").read_text().split('id="failures"')[1].split("</table>")[0])]  # fmt: skip
    assert sum(failed) == report.num_failed
    assert run(output, varied_rows(260)).rows == 0
    assert statuses(output) == report.statuses
    assert "This run had nothing to do" in read(output)


def test_rows_that_are_answered_anew_are_counted_once(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    before = run(output, varied_rows(100))
    report = run(output, varied_rows(100), retry_failed=True)
    assert report.rows == before.num_failed
    assert statuses(output) == report.statuses == before.statuses


def test_a_job_that_fails_has_a_page_that_says_so_without_quoting_a_row(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from varied_rows(30)
        raise KeyError(SECRET)

    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyError):
        run(output, rows())
    text = read(output)
    assert "Failed with KeyError." in text and "What was written is kept." in text
    assert SECRET not in text and sum(statuses(output).values()) == 30


def test_the_message_of_a_job_error_is_told(tmp_path: Path) -> None:
    given = tmp_path / "in.jsonl.gz"
    import gzip

    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in varied_rows(2000)).encode("utf-8", "surrogatepass"))
    given.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(JobInputError):
        run(tmp_path / "out.jsonl", given)
    assert re.search(r"Failed with JobInputError: .*in\.jsonl\.gz", read(tmp_path / "out.jsonl"))


def test_an_interrupted_job_has_a_page_and_the_next_run_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, answer = tmp_path / "out.jsonl", VariedRuntime._answer

    def interrupted(self: VariedRuntime, text: str, *rest: Any) -> Any:
        if f"{SECRET} 40 " in text:
            raise KeyboardInterrupt
        return answer(self, text, *rest)

    monkeypatch.setattr(VariedRuntime, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(output, varied_rows(80))
    assert "Interrupted (KeyboardInterrupt)." in read(output)
    written = Counter(json.loads(line)["status"] for line in output.read_text().splitlines())
    assert {status: count for status, count in statuses(output).items() if count} == written
    monkeypatch.setattr(VariedRuntime, "_answer", answer)
    report = run(output, varied_rows(80))
    assert "Done (exit code 3)." in read(output) and statuses(output) == report.statuses


def test_while_it_runs_the_page_says_so_and_is_never_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safegen.jobs.report_file, "WRITE_EVERY_S", 0.0)
    output, seen = tmp_path / "out.jsonl", []

    def rows() -> Iterator[dict[str, Any]]:
        for row in varied_rows(60):
            seen.append((read(output), sum(statuses(output).values())))
            yield row

    run(output, rows(), window=4)
    assert all("Running when this page was written" in text for text, _ in seen)
    counts = [count for _, count in seen]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] >= 40
    assert "Done" in read(output)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("report.txt", RequestError, r"named \.html"),
        ("report", RequestError, r"named \.html"),
        ("a\0.html", RequestError, "no path"),
        ("folder.html", JobOutputError, "no file"),
        ("in.jsonl/report.html", JobOutputError, "in.jsonl/report.html"),
        ("/proc/report.html", JobOutputError, "cannot be written"),
    ],
)
def test_a_page_that_cannot_be_written_is_an_error_before_the_job(
    tmp_path: Path, place: str, error: type[Exception], said: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "in.jsonl").write_text('"a"\n')
    runtime = FakeRuntime()
    with pytest.raises(error, match=said):
        LLM.from_runtime(runtime).run_job(
            tmp_path / "in.jsonl", tmp_path / "out.jsonl", report=tmp_path / place, progress="off"
        )
    assert runtime.asked == [] and not (tmp_path / "out.jsonl").exists()
    with pytest.raises(RequestError, match="a path or None"):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", report=7, progress="off")  # type: ignore[arg-type]


def test_a_page_is_no_part_of_a_parquet_output_and_not_the_input(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="put it beside it"):
        fake_llm().run_job(["a"], tmp_path / "out.parquet", report=tmp_path / "out.parquet" / "r.html", progress="off")
    (tmp_path / "in.html").write_text('"a"\n')
    with pytest.raises(RequestError, match="are the same"):
        fake_llm().run_job(
            tmp_path / "in.html", tmp_path / "out.jsonl", format="jsonl", report=tmp_path / "in.html", progress="off"
        )
    assert (tmp_path / "in.html").read_text() == '"a"\n'


def test_a_job_that_is_refused_leaves_the_last_page_alone(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    run(output, varied_rows(10))
    page = output.with_name("report.html").read_text()
    with pytest.raises(JobChanged):
        run(output, varied_rows(10), prompt="Say {text}")
    with OutputLock(tmp_path / "out.jsonl.lock"), pytest.raises(JobLocked):
        run(output, varied_rows(10))
    assert output.with_name("report.html").read_text() == page


def test_a_folder_that_is_not_there_is_made_and_a_link_is_followed(tmp_path: Path) -> None:
    page = tmp_path / "new" / "deep" / "report.html"
    run(tmp_path / "out.jsonl", varied_rows(5), report=page)
    link = tmp_path / "link.html"
    link.symlink_to(page)
    page.write_text("old")
    run(tmp_path / "out.jsonl", varied_rows(5), report=link)
    assert link.is_symlink() and "safegen job" in page.read_text()


def test_a_page_that_can_no_longer_be_written_at_the_end_is_told_and_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "here" / "out.jsonl"

    def rows() -> Iterator[dict[str, Any]]:
        yield from varied_rows(20)
        (tmp_path / "report.html").unlink()
        (tmp_path / "report.html").mkdir()

    with pytest.raises(JobOutputError, match=r"report\.html"):
        run(output, rows(), report=tmp_path / "report.html")
    assert len(output.read_text().splitlines()) == 20


def record(number: int, status: str = "ok", error: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    usage, key = {"prompt_tokens": 5, "completion_tokens": number % 50, "cached_tokens": 0}, f"{number:032x}"
    return {"id": f"r{number}", "row": number, "key": key, "status": status, "error": error, "usage": usage,
            "total_ms": 1.0 + number % 1000, **changes}  # fmt: skip


def test_the_slowest_rows_are_the_slowest_and_of_equals_the_first() -> None:
    details = JobDetails()
    for number in range(3000):
        details.came(record(number), number / 1000)
    slowest = details.slowest()
    assert len(slowest) == NUM_SLOWEST
    assert [(row.total_ms, row.number) for row in slowest[:4]] == [
        (1000.0, 999), (1000.0, 1999), (1000.0, 2999), (999.0, 998),
    ]  # fmt: skip


def test_reasons_are_told_apart_by_what_names_our_own_things_alone() -> None:
    assert reason_of("blocked", {"type": "GuardBlocked", "guard": "pii", "rule": "email", "message": "m"}).parts == (
        ("guard", "pii"), ("rule", "email"),
    )  # fmt: skip
    quoted = {
        "type": "SchemaError",
        "keyword": "my secret",
        "pointer": "/my secret",
        "field": "my secret",
        "path": "$.x",
    }
    assert reason_of("refused", quoted).parts == ()
    assert reason_of("refused", {"type": "SchemaError", "keyword": "minimum"}).parts == (("keyword", "minimum"),)
    assert reason_of("invalid", None).error == "no error is told"


def test_reasons_and_examples_without_end_are_counted_in_bounded_memory() -> None:
    details = JobDetails()
    for number in range(5000):
        details.came(record(number, "error", {"type": f"Error{number}"}, id="x" * 10_000), 0.0)
    reasons = details.by_reason()
    assert len(reasons) == MAX_REASONS + 1
    assert sum(failures.in_output for _, failures in reasons) == 5000
    reason, failures = reasons[0]
    assert reason.error == OTHER_REASONS and failures.in_output == 5000 - MAX_REASONS
    assert all(len(each.examples) <= NUM_EXAMPLES for _, each in reasons)
    assert all(len(example.text) <= 160 for _, each in reasons for example in each.examples)


def test_memory_does_not_grow_with_the_rows(full: bool) -> None:
    details = JobDetails()

    def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            failed = {"type": "RowError"} if number % 20 == 0 else None
            details.came(record(number, "refused" if failed else "ok", failed, id="y" * 300), number / 500)

    add(0, 20_000)
    tracemalloc.start()
    add(20_000, 1_000_000 if full else 60_000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import safegen.llm
    from safegen.cli import OK, USER_MISTAKE, main

    monkeypatch.setattr(safegen.llm, "LLM", lambda *arguments, **options: LLM.from_runtime(FakeRuntime()))
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('"a"\n"b"\n')
    assert main(["job", "in.jsonl", "out.jsonl", "--report", "report.html"]) == OK
    assert "page: report.html" in capsys.readouterr().err
    assert "The output holds 2 rows, all ok." in read(tmp_path / "out.jsonl")
    assert main(["job", "in.jsonl", "out.jsonl", "--report", "report.pdf"]) == USER_MISTAKE
    assert "named .html" in capsys.readouterr().err
