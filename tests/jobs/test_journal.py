"""What a crash, a full disk or a second process can do to an output: cost nothing that was written."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import JobLocked, JobOutputError
from safegen.jobs.journal import Journal
from safegen.jobs.lock import OutputLock
from tests.support.job_fakes import fake_llm
from tests.support.jobs import answers, read_records, write_rows

ROWS = [{"id": f"r{number}", "text": f"text {number} é"} for number in range(40)]


def run(folder: Path, **options: Any) -> Path:
    given, output = folder / "in.jsonl", folder / "out.jsonl"
    if not given.exists():
        write_rows(given, ROWS)
    fake_llm().run_job(given, output, progress="off", **options)
    return output


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job that nothing has disturbed."""
    return run(tmp_path_factory.mktemp("whole"))


def test_a_line_torn_at_any_byte_is_repaired(tmp_path: Path, whole: Path) -> None:
    content = whole.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    output = run(tmp_path)
    for end in range(last, len(content)):
        output.write_bytes(content[:end])
        before = list(Journal(output).records())
        assert len(before) == 39
        assert output.read_bytes() == content[:last]
    run(tmp_path)
    assert answers(output) == answers(whole)


def test_a_torn_first_line_and_zeros_of_a_file_system_are_repaired(tmp_path: Path, whole: Path) -> None:
    output = run(tmp_path)
    content = whole.read_bytes()
    for left in (b"", b"{", content[:50], b"\0" * 700, content[:5000] + b"\0" * 4096):
        output.write_bytes(left)
        run(tmp_path)
        assert answers(output) == answers(whole)
        assert len(output.read_bytes().splitlines()) == 40


@pytest.mark.parametrize("foreign", [b"my notes\n", b"my notes", b'{"a": 1}\n{"b": 2}\n'])
def test_a_file_of_something_else_is_never_touched(tmp_path: Path, foreign: bytes) -> None:
    output = tmp_path / "out.jsonl"
    output.write_bytes(foreign)
    with pytest.raises(JobOutputError, match="no job wrote it"):
        run(tmp_path)
    assert output.read_bytes() == foreign
    run(tmp_path / "other")
    (tmp_path / "out.jsonl.job.json").write_bytes((tmp_path / "other" / "out.jsonl.job.json").read_bytes())
    with pytest.raises(JobOutputError, match="no record of a job"):  # beside a header it is still not ours
        run(tmp_path)
    assert output.read_bytes() == foreign


def test_a_broken_line_between_records_is_told_and_left(tmp_path: Path) -> None:
    output = run(tmp_path)
    lines = output.read_bytes().splitlines(keepends=True)
    lines[7] = b"oops\n"
    output.write_bytes(b"".join(lines))
    with pytest.raises(JobOutputError, match="line 8"):
        run(tmp_path)
    assert output.read_bytes() == b"".join(lines)


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """What a full disk looks like to a process: writes are cut short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_a_clear_error_that_loses_nothing_written(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", [{"text": f"text {number}"} for number in range(1000)])
    output = tmp_path / "out.jsonl"
    for limit in (100_000, 150_000):
        with file_size_limit(limit), pytest.raises(JobOutputError, match="disk is full") as caught:
            fake_llm().run_job(rows, output, progress="off")
        assert "run the same job again" in str(caught.value)
        assert output.read_bytes().endswith(b"\n")
        assert limit - 1000 < output.stat().st_size <= limit
        assert len(read_records(output)) == len({record["key"] for record in read_records(output)})
    report = fake_llm().run_job(rows, output, progress="off")
    assert report.skipped > 300
    assert sorted(record["row"] for record in read_records(output)) == list(range(1000))


def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", ROWS)
    with file_size_limit(100), pytest.raises(JobOutputError, match="disk is full"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_read_only_output_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    output = run(tmp_path)
    before = output.read_bytes()
    opened = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(output)):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(JobOutputError, match="cannot be written") as caught:
        run(tmp_path)
    assert "permissions" in str(caught.value)
    assert output.read_bytes() == before


def test_an_output_below_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobOutputError, match="cannot be written"):
        fake_llm().run_job(["a"], tmp_path / "file" / "out.jsonl", progress="off")


def test_a_failed_fsync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = Journal(tmp_path / "out.jsonl")
    journal.open()
    journal.append({"id": "a"})
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(JobOutputError, match="Input/output error"):
        journal.flush(sync=True)
    journal.close()


@pytest.mark.parametrize("written_share", [0.0, 0.4, 1.0])
def test_an_interrupt_in_the_middle_of_a_write_doubles_and_tears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_share: float
) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    journal.open()
    records = [{"id": number, "key": f"{number:032x}", "status": "ok"} for number in range(20)]
    for record in records:
        journal.append(record)
    write = os.write

    def interrupted(handle: int, content: bytes) -> int:
        write(handle, content[: int(len(content) * written_share)])
        monkeypatch.setattr(os, "write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.flush()
    journal.close()
    assert read_records(tmp_path / "out.jsonl") == records


def test_a_second_job_on_an_output_is_refused(tmp_path: Path) -> None:
    output = run(tmp_path)
    with OutputLock(tmp_path / "out.jsonl.lock"), pytest.raises(JobLocked, match=f"process {os.getpid()}"):
        run(tmp_path)
    run(tmp_path)
    assert not (tmp_path / "out.jsonl.lock").exists()
    assert len(read_records(output)) == 40


def test_a_lock_file_that_was_left_behind_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.lock").write_text("99999")
    run(tmp_path)


def test_a_lock_on_a_removed_file_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the owner before may have removed the file."""
    path, removed = tmp_path / "lock", []
    is_current = OutputLock._is_current

    def removing(self: OutputLock, handle: int) -> bool:
        if not removed:
            path.unlink()
            removed.append(True)
        return is_current(self, handle)

    monkeypatch.setattr(OutputLock, "_is_current", removing)
    with OutputLock(path), pytest.raises(JobLocked), OutputLock(path):
        pass
    assert removed
