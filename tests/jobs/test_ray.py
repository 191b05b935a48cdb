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
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from safegen.drive import Stop
from safegen.engine.request import SamplingParams
from safegen.errors import Cancelled, JobInputError, JobWorkerError, RequestError
from safegen.guards import PII, Classifier, Custom, Guards, GuardView, MaxLength, Never, Secrets
from safegen.jobs.on_ray.cluster import cpus_each
from safegen.jobs.on_ray.shipment import pack, unpack
from safegen.jobs.options import JobOptions
from safegen.jobs.recipe import Recipe
from safegen.jobs.run import run_job
from safegen.jobs.writing import RecordWriter
from safegen.llm import LLM
from safegen.loading import LoadOptions, reloader
from safegen.runtime import CallOptions
from safegen.speculation import Speculation
from safegen.types import Choice, Regex
from tests.jobs.test_flow import broken_rows, no_forbidden
from tests.support.job_fakes import FakeRuntime, fake_llm
from tests.support.job_worker import OPTIONS, PROMPT
from tests.support.jobs import answers, read_records, write_rows
from tests.support.sdk_fakes import make_runtime

ROOT = Path(__file__).parents[2]
ON_RAY: dict[str, Any] = {"engine": "ray", "num_workers": 2, "progress": "off"}
LABELS = Choice(["pos", "neg", "neutral"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray that is initialised already: jobs use it and leave it running."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    assert ray.is_initialized()
    ray.shutdown()


def in_time(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def num_records(output: Path) -> int:
    return output.read_bytes().count(b"\n") if output.exists() else 0


def told(folder: str, columns: Any) -> str:
    """The prompt of a row, as soon as two workers have one: each leaves its number in the folder."""
    Path(folder, str(os.getpid())).touch()
    in_time(lambda: len(os.listdir(folder)) > 1)
    return PROMPT.format_map(columns)


def killed_in_the_middle(pids: Path, output: Path) -> threading.Thread:
    """Begun: kills one of two workers as soon as some rows are written."""

    def kill() -> None:
        in_time(lambda: num_records(output) > 0)
        os.kill(min(map(int, os.listdir(pids))), signal.SIGKILL)

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
    killer = killed_in_the_middle(pids, output)
    report = llm.run_job(rows, output, Regex("[0-9]{2} [a-z]{1,9}"), **options, **ON_RAY)
    killer.join()
    assert report.statuses == {"ok": 64}
    assert len(os.listdir(pids)) == 3
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


def test_the_feed_gives_the_same_stream_again_and_forgets_what_is_written() -> None:
    from safegen.jobs.on_ray.feed import WRITTEN, Feed

    async def story() -> list[Any]:
        feed = Feed()
        first = asyncio.create_task(feed.take(0))
        await feed.put(1, b"one")
        await feed.put(0, b"zero")
        seen: list[Any] = [await first, await feed.take(1), await feed.take(1)]
        await feed.written(1)
        await feed.put(2, b"two")
        seen += [await feed.take(0), await feed.take(1)]
        await feed.written(0)
        await feed.written(2)
        assert not feed._chunks
        assert not feed._written
        await feed.end()
        seen += [await feed.take(2), await feed.take(3)]
        stopped = asyncio.create_task(feed.stopped())
        await feed.stop()
        await stopped
        return [*seen, await feed.take(2)]

    assert asyncio.run(story()) == [b"zero", b"one", b"one", b"zero", WRITTEN, WRITTEN, None, None]


def test_a_missing_ray_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"pip install 'safegen\[ray\]'"):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **ON_RAY)
    assert not list(tmp_path.iterdir())


def test_ray_is_not_imported_by_a_local_job(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.support.job_fakes import fake_llm; "
        f"fake_llm().run_job(['a'], {str(tmp_path / 'out.jsonl')!r}, progress='off'); "
        "assert not {'ray', 'safegen.jobs.on_ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_job_that_is_done_does_not_need_a_cluster(tmp_path: Path) -> None:
    fake_llm().run_job(["a", "b"], tmp_path / "out.jsonl", progress="off")
    report = fake_llm().run_job(["a", "b"], tmp_path / "out.jsonl", **ON_RAY, ray_address="nowhere:1")
    assert (report.rows, report.skipped) == (0, 2)


def hold(kind: str) -> dict[str, Any]:
    """Options that hold what cannot be sent."""
    lock = threading.Lock()

    def prompt(columns: Any) -> str:
        with lock:
            return str(columns)

    def find(view: Any) -> None:
        prompt(view)

    return {
        "prompt": {"prompt": prompt},
        "type_of": {"type_of": prompt},
        "guards": {"guards": Custom(find)},
        "audit": {"guards": Guards([Custom(no_forbidden)], audit=lambda records: None)},
        "compiled": {"type": fake_llm().compile(LABELS)},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("prompt", "prompt cannot go to the workers of Ray: cannot pickle '_thread.lock'"),
        ("type_of", "type_of cannot go"),
        ("guards", "guards cannot go"),
        ("audit", "guards with audit="),
        ("compiled", "pass what it was compiled from"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **hold(kind), **ON_RAY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "spark"}, "engine='spark'"),
        ({"engine": "ray"}, "needs num_workers"),
        ({"engine": "ray", "num_workers": 0}, "num_workers=0"),
        ({"num_workers": 2}, "engine='ray' alone"),
        ({"ray_address": "auto"}, "engine='ray' alone"),
        ({"engine": "ray", "num_workers": 2, "prompt": "no place"}, "names no column"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **options)
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    class Held(dict[str, str]):
        lock: Any = None

    held = Held(text="b")
    held.lock = threading.Lock()
    rows = [{"text": "a"}, held]
    with pytest.raises(RequestError, match="rows 0 to 1 cannot go to the workers of Ray"):
        fake_llm().run_job(rows, tmp_path / "out.jsonl", **ON_RAY)


def test_a_client_of_ray_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RequestError, match="run the job on a machine of the cluster"):
        fake_llm().run_job(["a"], tmp_path / "out.jsonl", **ON_RAY, ray_address="ray://head:10001")


def test_built_in_guards_go_to_workers_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    listed = [Never(phrases=["forbidden"], regexes=["a+b"]), PII(types=["EMAIL"]), Secrets(), MaxLength(characters=9)]
    guards = Guards([*listed, Classifier(path=str(tmp_path))], audit_key=b"sixteen bytes or more")
    runtime = FakeRuntime()
    call = CallOptions(guards=guards)
    recipe = Recipe(LABELS, "{text}", None, None, None, SamplingParams(), call, 0, is_openai=False)
    arrived = unpack(pack(runtime, recipe)).recipe.call.guards
    assert arrived.to_dict() == guards.to_dict()
    assert arrived.config == guards.config
    assert arrived.digests == guards.digests
    text = GuardView("mail a@b.example, forbidden")
    assert [guard.find(text) for guard in arrived.guards[:4]] == [guard.find(text) for guard in guards.guards[:4]]


def test_an_llm_that_cannot_be_loaded_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"LLM\.without_weights"):
        LLM.from_runtime(make_runtime()).run_job(["a"], tmp_path / "out.jsonl", **ON_RAY)


def test_cores_are_shared_so_that_every_worker_finds_a_place() -> None:
    assert [cpus_each([8], count) for count in (1, 2, 3, 8)] == [8, 4, 2, 1]
    assert cpus_each([8, 8], 3) == 4  # five would leave the third without a place
    assert cpus_each([16, 2], 3) == 5
    with pytest.raises(RequestError, match="num_workers=9"):
        cpus_each([8], 9)


def test_an_llm_without_weights_knows_what_a_loaded_one_knows() -> None:
    outline, loaded = LLM.without_weights(max_num_seqs=3), LLM(max_num_seqs=3)
    first, second = outline._runtime, loaded._runtime
    for name in ("fingerprint", "max_context", "max_num_seqs", "token_bytes"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.count_tokens("How long is this?") == second.count_tokens("How long is this?")
    assert outline.stats().running == outline.stats().kv_blocks == 0
    assert outline.compile(LABELS).labels == ("pos", "neg", "neutral")
    loaded.close()
    outline.close()


def test_a_model_is_named_by_its_whole_path_to_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(model: Any, **options: Any) -> Any:
        return reloader(LoadOptions(model, **options)).args[0]  # type: ignore[attr-defined]

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAFEGEN_MODEL", raising=False)
    (tmp_path / "a.gguf").touch()
    assert named("a.gguf").model == named(Path("a.gguf")).model == str(tmp_path / "a.gguf")
    assert named("org/name").model == "org/name"
    assert named(None).model is None
    speculation = Speculation(draft_model="a.gguf")
    assert named("org/name", speculation=speculation).speculation.draft_model == str(tmp_path / "a.gguf")
    monkeypatch.setenv("SAFEGEN_MODEL", "a.gguf")
    assert named(None).model == str(tmp_path / "a.gguf")
