"""Jobs on Ray: two workers of this machine answer the rows, and whoever of them dies, every row is there once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from safegen.drive import Stop
from safegen.errors import Cancelled, JobInputError, JobWorkerError, RequestError
from safegen.guards import Custom
from safegen.jobs.options import JobOptions
from safegen.jobs.run import run_job
from safegen.jobs.writing import RecordWriter
from safegen.llm import LLM
from safegen.types import Choice, Regex
from tests.jobs.test_flow import broken_rows, no_forbidden
from tests.support.job_fakes import FakeRuntime, fake_llm
from tests.support.job_worker import OPTIONS, PROMPT
from tests.support.jobs import answers, read_records, write_rows
from tests.support.ray_local import in_time, local_ray
from tests.support.sdk_fakes import make_runtime

ROOT = Path(__file__).parents[2]
ON_RAY: dict[str, Any] = {"engine": "ray", "num_workers": 2, "progress": "off"}
LABELS = Choice(["pos", "neg", "neutral"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray that is initialised already: jobs use it and leave it running."""
    with local_ray(num_cpus=2):
        yield


def num_records(output: Path) -> int:
    return output.read_bytes().count(b"\n") if output.exists() else 0


def told(folder: str, columns: Any) -> str:
    """The prompt of a row, as soon as two workers have one: each leaves its number in the folder."""
    Path(folder, str(os.getpid())).touch()
    in_time(lambda: len(os.listdir(folder)) > 1)
    return PROMPT.format_map(columns)


def killed_in_the_middle(pids: Path, output: Path, written: list[int] | None = None) -> threading.Thread:
    """Begun: kills one of two workers as soon as some rows are written. written: is told how many there were."""

    def kill() -> None:
        in_time(lambda: num_records(output) > 0)
        os.kill(min(map(int, os.listdir(pids))), signal.SIGKILL)
        if written is not None:
            written.append(num_records(output))

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def started(command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def processes_at(folder: str) -> dict[int, str]:
    """Processes of this machine that have a file of the folder open, and their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just gone
            if any(os.readlink(link).startswith(folder) for link in (process / "fd").iterdir()):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def have_gone(folder: str) -> bool:
    """All but two helpers of Ray, which try for a minute to tell the dead of its death."""
    return all("Agent" in command for command in processes_at(folder).values())


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Where a Ray of a test's own keeps its files; a short path, because sockets lie there."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder
        for process in processes_at(folder):
            os.kill(process, signal.SIGKILL)


def test_a_killed_worker_leaves_every_row_once_and_as_a_local_job_writes_it(cluster: None, tmp_path: Path) -> None:
    pids, output, local = tmp_path / "pids", tmp_path / "out.jsonl", tmp_path / "local.jsonl"
    pids.mkdir()
    given = write_rows(tmp_path / "in.jsonl", [{"text": f"number {number % 1197}"} for number in range(1200)])
    options: dict[str, Any] = {"prompt": partial(told, str(pids)), **OPTIONS}
    killer = killed_in_the_middle(pids, output)
    report = fake_llm(delay_s=0.01).run_job(given, output, **options, **ON_RAY)
    killer.join()
    assert len(os.listdir(pids)) == 3, "the dead worker was replaced"
    assert (report.rows, report.statuses) == (1200, {"ok": 1200})
    assert len({record["key"] for record in read_records(output)}) == 1200
    fake_llm().run_job(given, local, progress="off", **options)
    assert sorted(output.read_bytes().splitlines()) == sorted(local.read_bytes().splitlines())
    assert Path(f"{output}.job.json").read_bytes() == Path(f"{local}.job.json").read_bytes()
    again = fake_llm().run_job(given, output, progress="off", **options)
    assert (again.rows, again.skipped) == (0, 1200), "a local job takes it for its own"


def test_the_default_model_answers_on_two_workers_as_in_one_process_though_one_is_killed(
    cluster: None, tmp_path: Path
) -> None:
    pids, output, local = tmp_path / "pids", tmp_path / "out.jsonl", tmp_path / "local.jsonl"
    pids.mkdir()
    rows = [{"text": f"number {number}"} for number in range(64)]
    options: dict[str, Any] = {"prompt": partial(told, str(pids)), **OPTIONS}
    llm = LLM.without_weights(max_num_seqs=4)
    with pytest.raises(RequestError, match="without weights"):
        llm.generate("Hi")
    written: list[int] = []
    killer = killed_in_the_middle(pids, output, written)
    report = llm.run_job(rows, output, Regex("[0-9]{2} [a-z]{1,9}"), **options, **ON_RAY)
    killer.join()
    assert report.statuses == {"ok": 64}
    assert 0 < written[0] < 64, "the kill came too late"  # the other worker may be done before a third has loaded
    with LLM(max_num_seqs=4) as whole:
        whole.run_job(rows, local, Regex("[0-9]{2} [a-z]{1,9}"), progress="off", **options)
    assert answers(output) == answers(local)


def test_a_killed_driver_takes_ray_along_and_the_job_resumes_elsewhere(
    cluster: None, tmp_path: Path, ray_folder: str
) -> None:
    given = write_rows(tmp_path / "in.jsonl", [{"text": f"number {number % 1997}"} for number in range(2000)])
    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    driver = started(["tests.support.job_worker", "ray", str(given), str(output)], RAY_TMPDIR=ray_folder)
    in_time(lambda: num_records(output) > 100 or driver.poll() is not None)
    assert len(processes_at(ray_folder)) > 3
    driver.kill()
    driver.communicate()
    written = num_records(output)
    assert 100 < written < 2000, "the kill came too late"
    report = fake_llm(delay_s=0.001).run_job(given, output, prompt=PROMPT, **OPTIONS, **ON_RAY)
    assert (report.rows, report.skipped, report.statuses) == (2000 - written, written, {"ok": 2000})
    fake_llm().run_job(given, whole, prompt=PROMPT, progress="off", **OPTIONS)
    assert answers(output) == answers(whole)
    in_time(lambda: have_gone(ray_folder), 20)


def test_the_command_starts_a_ray_of_its_own_and_leaves_no_process(tmp_path: Path, ray_folder: str) -> None:
    given = write_rows(tmp_path / "in.jsonl", [{"text": f"number {number}"} for number in range(6)] + [{"none": 1}])
    output = tmp_path / "out.jsonl"
    command = started(
        ["safegen.cli", "job", str(given), str(output), "--regex", "[0-9]{2}", "--engine", "ray", "--num-workers", "1",
         "--json", "--progress", "off"],
        RAY_TMPDIR=ray_folder,
    )  # fmt: skip
    said, complained = command.communicate(timeout=120)
    assert command.returncode == 3, complained
    assert json.loads(said)["statuses"] == {"ok": 6, "refused": 1}
    assert len(complained.splitlines()) <= 1, complained  # Ray tells that it will say nothing
    in_time(lambda: not processes_at(ray_folder), 20)


def bad_row_runtime() -> Any:
    runtime = make_runtime()
    runtime.reload = bad_row_runtime
    return runtime


def test_bad_rows_are_typed_errors_and_ordered_records_come_in_order(cluster: None, tmp_path: Path) -> None:
    expected = broken_rows(tmp_path / "in.jsonl", 160)
    options: dict[str, Any] = {"schema_column": "schema", "guards": Custom(no_forbidden, stages=("input",))}
    output, local = tmp_path / "out.jsonl", tmp_path / "local.jsonl"
    llm = LLM.from_runtime(bad_row_runtime())
    report = llm.run_job(tmp_path / "in.jsonl", output, LABELS, ordered=True, **options, **ON_RAY)
    llm.run_job(tmp_path / "in.jsonl", local, LABELS, progress="off", **options)
    records = read_records(output)
    assert [record["row"] for record in records] == list(range(160))
    assert [record["status"] for record in records] == expected
    assert report.exit_code == 3
    kept = ("row", "key", "status", "value", "error")
    seen = [[{name: each[name] for name in kept} for each in answers(path)] for path in (output, local)]
    assert seen[0] == seen[1]
    bad = {record["error"]["type"] for record in records if record["error"]}
    assert bad == {"SchemaError", "RequestError", "GuardBlocked", "RowError"}


def test_reading_stays_within_the_window_and_an_input_that_breaks_off_is_told_last(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, written, furthest = tmp_path / "out.jsonl", 0, 0
    write = RecordWriter.write

    def counted(self: RecordWriter, *arguments: Any) -> None:
        nonlocal written
        written += 1
        write(self, *arguments)

    def rows() -> Iterator[str]:
        nonlocal furthest
        for number in range(300):
            furthest = max(furthest, number + 1 - written)
            yield f"row {number}"
        raise JobInputError("the pipe broke")

    monkeypatch.setattr(RecordWriter, "write", counted)
    with pytest.raises(JobInputError, match="the pipe broke"):
        fake_llm().run_job(rows(), output, window=16, **ON_RAY)
    assert num_records(output) == 300
    assert 16 < furthest <= 16 + 8 + 2  # the window, half as many on their way, and a chunk


def test_a_job_on_ray_can_be_stopped_and_goes_on(cluster: None, tmp_path: Path) -> None:
    rows, output, stop = [f"row {number}" for number in range(400)], tmp_path / "out.jsonl", Stop()
    runtime = FakeRuntime(delay_s=0.05)
    watcher = threading.Thread(target=lambda: (in_time(lambda: num_records(output) > 10), stop.request()))
    watcher.start()
    with pytest.raises(Cancelled):
        run_job(runtime, rows, output, None, JobOptions(**ON_RAY), stop)
    watcher.join()
    done = num_records(output)
    assert 10 < done < 400
    report = fake_llm().run_job(rows, output, progress="off")
    assert (report.rows, report.skipped) == (400 - done, done)


def test_workers_with_another_model_end_the_job_with_what_is_wrong(cluster: None, tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.reload = partial(FakeRuntime, fingerprint="another")
    with pytest.raises(JobWorkerError, match="not those of the driver"):
        LLM.from_runtime(runtime).run_job(["a", "b"], tmp_path / "out.jsonl", **ON_RAY)
    assert fake_llm().run_job(["a", "b"], tmp_path / "out.jsonl", progress="off").statuses == {"ok": 2}


def test_rows_that_kill_every_worker_end_the_job(cluster: None) -> None:
    import ray

    from safegen.jobs.on_ray.feed import CHUNK, NUMBER, Feed
    from safegen.jobs.on_ray.worker import FAILURE, RECORDS, Worker

    feed = ray.remote(Feed).options(num_cpus=0).remote()
    worker = Worker(b"no shipment", feed, 1)
    batch = {NUMBER: [7], CHUNK: [b"a chunk"]}
    assert "UnpicklingError" in asyncio.run(worker(batch))[FAILURE][0]
    worker._failure = ""
    worker._answerer = type("Echo", (), {"answer": staticmethod(lambda chunk, stop: chunk)})()
    found = [asyncio.run(worker(batch)) for _ in range(5)]
    assert [each[RECORDS][0] for each in found] == [b"a chunk"] * 4 + [b""]
    assert "4 workers have died over the same rows" in found[4][FAILURE][0]
    ray.kill(feed)
