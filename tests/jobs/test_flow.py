"""How rows flow: a bounded window, each row on its own, in order where that is asked for, in memory that stays flat."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.drive import Stop
from safegen.errors import Cancelled, EngineClosed
from safegen.guards import Block, Custom
from safegen.jobs.options import JobOptions
from safegen.jobs.plan import PlannedRow
from safegen.jobs.prefix_order import prefix_order
from safegen.jobs.run import run_job
from safegen.llm import LLM
from safegen.types import Choice, JsonSchema
from tests.support.fake_backend import FakeBackend
from tests.support.job_fakes import FakeRuntime
from tests.support.jobs import answers, read_records, write_rows
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_llm, make_runtime

ROOT = Path(__file__).parents[2]
LABELS = Choice(["pos", "neg", "neutral"])


class SlowFirst(FakeBackend):
    """Forwards take a moment, so that rows are in flight together."""

    def forward(self, batch: Any, masks: Any = None) -> Any:
        time.sleep(0.0005)
        return super().forward(batch, masks)


def shuffled_lengths(count: int) -> list[dict[str, Any]]:
    """Rows whose answers end at different times."""
    draws = random.Random(3)
    return [{"text": f"row {number}", "labels": ["x" * draws.randint(1, 40)]} for number in range(count)]


def type_of(columns: Any) -> Choice:
    return Choice(columns["labels"])


def test_ordered_records_are_written_in_the_inputs_order(tmp_path: Path) -> None:
    rows = shuffled_lengths(150)
    with make_llm(SlowFirst(len(TOKEN_BYTES), MAX_CONTEXT)) as llm:
        llm.run_job(rows, tmp_path / "any.jsonl", type_of=type_of, progress="off", temperature=1.0)
        llm.run_job(rows, tmp_path / "out.jsonl", type_of=type_of, ordered=True, progress="off", temperature=1.0)
    unordered = [record["row"] for record in read_records(tmp_path / "any.jsonl")]
    assert unordered != sorted(unordered)
    assert [record["row"] for record in read_records(tmp_path / "out.jsonl")] == list(range(150))
    assert answers(tmp_path / "any.jsonl") == answers(tmp_path / "out.jsonl")


@pytest.mark.parametrize("ordered", [False, True])
def test_reading_stays_within_the_window_of_what_is_written(tmp_path: Path, ordered: bool) -> None:
    num_read, furthest = 0, 0
    output = tmp_path / "out.jsonl"

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal num_read, furthest
        for row in [{"text": "first", "labels": ["y" * 400]}, *shuffled_lengths(200)]:
            num_read += 1
            written = output.read_bytes().count(b"\n") if output.exists() else 0
            furthest = max(furthest, num_read - written)
            yield row

    with make_llm(SlowFirst(len(TOKEN_BYTES), MAX_CONTEXT)) as llm:
        llm.run_job(rows(), output, type_of=type_of, ordered=ordered, window=10, progress="off", max_tokens=500)
    assert len(read_records(output)) == 201
    assert furthest <= (5 * 10 if ordered else 3 * 10)  # a window of them may be on its way to the file


def test_answers_do_not_depend_on_window_order_or_company(tmp_path: Path) -> None:
    rows = shuffled_lengths(60)
    with make_llm() as llm:
        for name, options in (("a", {"window": 1}), ("b", {"window": 64}), ("c", {"ordered": True, "window": 7})):
            llm.run_job(
                rows, tmp_path / f"{name}.jsonl", LABELS, temperature=1.0, seed=4, progress="off", **options
            )  # fmt: skip
        llm.run_job(rows, tmp_path / "d.jsonl", LABELS, temperature=1.0, seed=5, progress="off")
    assert answers(tmp_path / "a.jsonl") == answers(tmp_path / "b.jsonl") == answers(tmp_path / "c.jsonl")
    values = [record["value"] for record in answers(tmp_path / "a.jsonl")]
    assert len(set(values)) == 3
    assert values != [record["value"] for record in answers(tmp_path / "d.jsonl")]


def test_the_type_of_a_job_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safegen.output_type

    compiled = []
    inner = safegen.output_type.compile_type

    def counting(spec: Any, *rest: Any, **more: Any) -> Any:
        compiled.append(spec)
        return inner(spec, *rest, **more)

    monkeypatch.setattr(safegen.output_type, "compile_type", counting)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    own = {"type": "integer", "minimum": 0, "maximum": 9}
    rows = [{"text": f"row {number}", **({"schema": own} if number % 2 else {})} for number in range(30)]
    with make_llm() as llm:
        report = llm.run_job(rows, tmp_path / "out.jsonl", JsonSchema(schema), schema_column="schema", progress="off")
    assert report.statuses == {"ok": 30}
    assert len(compiled) == 2


def broken_rows(path: Path, count: int) -> list[str]:
    """One row in twenty is bad, in four ways, in turn. Returns the statuses that are to come."""
    lines, expected = [], []
    for number in range(count):
        row: dict[str, Any] = {"id": number, "text": f"row {number}"}
        status = "ok"
        kind = number // 20 % 4 if number % 20 == 7 else None
        if kind == 0:
            row["schema"], status = {"type": "object", "properties": {"a": {"type": "nonsense"}}}, "refused"
        elif kind == 1:
            row["text"], status = "long " * 1000, "refused"
        elif kind == 2:
            row["text"], status = f"a forbidden row {number}", "blocked"
        line = json.dumps(row).encode()
        if kind == 3:
            line, status = line.replace(b"row", b"r\xffw"), "refused"
        lines.append(line + b"\n")
        expected.append(status)
    path.write_bytes(b"".join(lines))
    return expected


def no_forbidden(view: Any) -> Any:
    return Block("word") if "forbidden" in view.text else None


def test_one_row_in_twenty_is_broken_and_the_others_are_answered(tmp_path: Path, full: bool) -> None:
    count = 2000 if full else 400
    expected = broken_rows(tmp_path / "in.jsonl", count)
    guard = Custom(no_forbidden, stages=("input",))
    with make_llm() as llm:
        report = llm.run_job(
            tmp_path / "in.jsonl", tmp_path / "out.jsonl", LABELS, schema_column="schema", guards=guard, progress="off"
        )
    records = answers(tmp_path / "out.jsonl")
    assert [record["status"] for record in records] == expected
    assert report.statuses["ok"] == count * 95 // 100
    assert report.exit_code == 3
    bad = [record for record in records if record["status"] != "ok"]
    assert {record["error"]["type"] for record in bad} == {"SchemaError", "RequestError", "GuardBlocked", "RowError"}
    assert all(record["error"]["message"] and record["value"] is None for record in bad)
    assert set(report.errors.values()) == {count // 80}


def test_an_engine_fault_fails_its_rows_alone(tmp_path: Path) -> None:
    faults = []

    class Faulty(FakeBackend):
        def forward(self, batch: Any, masks: Any = None) -> Any:
            if len(self.batches) == 5 and not faults:
                faults.append(True)
                raise RuntimeError("a chip caught fire")
            return super().forward(batch, masks)

    with make_llm(Faulty(len(TOKEN_BYTES), MAX_CONTEXT)) as llm:
        report = llm.run_job([f"row {n}" for n in range(60)], tmp_path / "out.jsonl", LABELS, progress="off")
        assert 0 < report.statuses["error"] < 60
        again = llm.run_job(
            [f"row {n}" for n in range(60)], tmp_path / "out.jsonl", LABELS, retry_failed=True, progress="off"
        )
    assert again.statuses == {"ok": 60}
    assert len(read_records(tmp_path / "out.jsonl")) == 60


def test_a_closed_llm_ends_the_job_and_leaves_its_rows_to_be_done(tmp_path: Path) -> None:
    llm = make_llm(SlowFirst(len(TOKEN_BYTES), MAX_CONTEXT))
    rows = [f"row {number}" for number in range(2000)]
    closing = threading.Timer(0.3, llm.close)
    closing.start()
    with pytest.raises((EngineClosed, Cancelled)):
        llm.run_job(rows, tmp_path / "out.jsonl", LABELS, progress="off")
    closing.join()
    done = read_records(tmp_path / "out.jsonl")
    assert {record["status"] for record in done} <= {"ok"}
    with pytest.raises(EngineClosed):
        llm.run_job(rows, tmp_path / "out.jsonl", LABELS, progress="off")
    with make_llm() as other:
        report = other.run_job(rows[: len(done) + 50], tmp_path / "out.jsonl", LABELS, progress="off")
    assert report.statuses["ok"] >= len(done) + 50


def test_a_job_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    runtime, stop = make_runtime(SlowFirst(len(TOKEN_BYTES), MAX_CONTEXT)), Stop()
    threading.Timer(0.2, stop.request).start()
    with pytest.raises(Cancelled):
        rows = (f"row {number}" for number in range(10**9))
        run_job(runtime, rows, tmp_path / "out.jsonl", LABELS, JobOptions(progress="off"), stop)
    runtime.close()
    assert not (tmp_path / "out.jsonl.lock").exists()


def planned(texts: list[str]) -> list[PlannedRow]:
    return [PlannedRow(number, "", "", text) for number, text in enumerate(texts)]


def test_rows_that_begin_alike_stand_side_by_side() -> None:
    documents = [f"document {number} " + "text " * 100 for number in range(3)]
    rows = planned([documents[number % 3] + f"question {number}" for number in range(12)])
    order = [row.number for row in prefix_order(rows)]
    assert sorted(order) == list(range(12))
    assert [number % 3 for number in order] == [0] * 4 + [1] * 4 + [2] * 4


def test_rows_that_share_nothing_more_keep_their_order() -> None:
    for texts in (["b", "a", "c"], [f"one instruction for all: {n % 7} {n}" for n in range(20)], ["x"], ["", ""]):
        assert [row.number for row in prefix_order(planned(texts))] == list(range(len(texts)))


def test_side_by_side_they_are_found_in_the_prefix_cache(tmp_path: Path) -> None:
    """The cache holds little more than one document, and the input goes round them."""
    documents = [f"document {number} " + "text " * 60 for number in range(4)]
    rows = [{"text": documents[number % 4] + f"question {number}"} for number in range(32)]
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    tokens = 500
    options: dict[str, Any] = {"show_schema": False, "progress": "off", "max_tokens": 16}
    with make_llm(backend, kv_cache_memory=backend.bytes_per_block(16) * tokens // 16, max_num_seqs=1) as llm:
        report = llm.run_job(rows, tmp_path / "out.jsonl", LABELS, window=32, **options)
        apart = llm.run_job(rows, tmp_path / "apart.jsonl", LABELS, window=1, **options)
    assert answers(tmp_path / "out.jsonl") == answers(tmp_path / "apart.jsonl")
    assert report.cache_hit_rate > 0.6
    assert apart.cache_hit_rate < 0.3


def test_memory_does_not_grow_with_the_rows_and_the_overhead_is_small(full: bool) -> None:
    num_rows = 200_000 if full else 20_000
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.job_load", str(num_rows)],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["rows"] == num_rows
    assert found["growth_mib"] < (50 if full else 25)
    if full:
        assert found["us_per_row"] < 150


def test_the_order_of_calls_is_that_of_the_input(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    given = write_rows(tmp_path / "in.jsonl", [{"text": f"{number}"} for number in range(50)])
    LLM.from_runtime(runtime).run_job(given, tmp_path / "out.jsonl", progress="off")
    assert [prompt for prompt, _, _ in runtime.asked] == [str(number) for number in range(50)]
