"""A job in an event loop: awaited beside other calls, and stopped by cancelling its task."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safegen.async_llm import AsyncLLM
from safegen.errors import JobOutputError
from safegen.llm import LLM
from safegen.types import Choice
from tests.support.fake_backend import FakeBackend
from tests.support.job_fakes import FakeRuntime
from tests.support.jobs import answers, read_records
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_runtime

LABELS = Choice(["pos", "neg", "neutral"])
ROWS = [f"row {number}" for number in range(400)]
OPTIONS: dict[str, Any] = {"progress": "off", "temperature": 1.0, "seed": 3}


class Slow(FakeBackend):
    def forward(self, batch: Any, masks: Any = None) -> Any:
        time.sleep(0.01)
        return super().forward(batch, masks)


def slow_engine() -> Any:
    return make_runtime(Slow(len(TOKEN_BYTES), MAX_CONTEXT))


def test_a_job_is_awaited_while_other_calls_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncLLM.from_runtime(slow_engine()) as llm:
            job = asyncio.create_task(llm.run_job(ROWS[:60], tmp_path / "out.jsonl", LABELS, **OPTIONS))
            beside = await llm.generate("a question", LABELS)
            assert not job.done()
            assert beside.status == "ok"
            assert (await job).statuses == {"ok": 60}

    asyncio.run(asyncio.wait_for(main(), 60))
    LLM.from_runtime(make_runtime()).run_job(ROWS[:60], tmp_path / "plain.jsonl", LABELS, **OPTIONS)
    assert answers(tmp_path / "out.jsonl") == answers(tmp_path / "plain.jsonl")


def slow_fake() -> Any:
    return FakeRuntime(delay_s=0.005)


@pytest.mark.parametrize("make", [slow_engine, slow_fake])
def test_a_cancelled_job_lets_go_at_once_and_is_resumed_to_the_same_answers(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"

    async def main() -> None:
        async with AsyncLLM.from_runtime(make()) as llm:
            job = asyncio.create_task(llm.run_job(ROWS, output, LABELS, window=8, **OPTIONS))
            while not output.exists():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.3)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(job, 5)
            assert not Path(f"{output}.lock").exists()
            done = len(read_records(output))
            assert 0 < done < 400
            report = await llm.run_job(ROWS, output, LABELS, **OPTIONS)
            assert (report.rows, report.skipped) == (400 - done, done)
            await llm.run_job(ROWS, whole, LABELS, **OPTIONS)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert answers(output) == answers(whole)
    assert len(read_records(output)) == 400


def test_what_ends_a_job_is_raised_where_it_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("somebody's notes\n")

    async def main() -> None:
        async with AsyncLLM.from_runtime(FakeRuntime()) as llm:
            with pytest.raises(JobOutputError, match="no job wrote it"):
                await llm.run_job(ROWS, tmp_path / "out.jsonl", **OPTIONS)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_its_arguments_are_those_of_the_plain_one() -> None:
    assert inspect.signature(AsyncLLM.run_job) == inspect.signature(LLM.run_job)
