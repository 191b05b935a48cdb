"""Interrupts, forks and closing at any moment: nothing hangs, nothing leaks, and what goes on is unharmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import EngineClosed
from safegen.llm import LLM
from safegen.types import Regex
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_llm

ROOT = Path(__file__).parents[1]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def slow_llm(seconds: float, **settings: Any) -> LLM:
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.on_forward = lambda batch: time.sleep(seconds)
    return make_llm(backend, **settings)


@pytest.fixture
def timer_interrupts() -> Iterator[Callable[[float], None]]:
    """A function that has KeyboardInterrupt raised in the main thread after some seconds."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def assert_idle(llm: LLM) -> None:
    engine: Any = llm._runtime._engine
    deadline = time.monotonic() + 10
    while (stats := engine.stats()).running or stats.waiting:
        assert time.monotonic() < deadline, stats
        time.sleep(0.005)
    assert stats.free_blocks == stats.num_blocks


CALLS: list[Callable[[LLM], Any]] = [
    lambda llm: llm.generate("go", max_tokens=1500),
    lambda llm: llm.batch(["go"] * 40, max_tokens=1500),
    lambda llm: list(llm.stream("go", max_tokens=1500).__enter__()),
]


@pytest.mark.parametrize("call", CALLS, ids=["generate", "batch", "stream"])
def test_interrupt_comes_through_at_once_and_cancels_the_request(
    call: Callable[[LLM], Any], timer_interrupts: Callable[[float], None]
) -> None:
    with slow_llm(0.02) as llm:
        started = time.monotonic()
        timer_interrupts(0.2)
        with pytest.raises(KeyboardInterrupt):
            call(llm)
        assert time.monotonic() - started < 2.0
        assert_idle(llm)
        assert llm.generate("go", bool).status == "ok"


def test_interrupts_at_any_moment_leave_the_llm_whole(
    timer_interrupts: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python drops what is raised in a destructor or in a callback of the garbage collector, but says so.
    dropped: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))
    with slow_llm(0.001) as llm:
        num_interrupted = 0
        for number in range(60):
            try:
                timer_interrupts(0.0005 + 0.0007 * (number % 30))
                llm.batch([("go", bool), "x", ("go", Regex("[a-f]{9}"))] * 8, max_tokens=20)
                time.sleep(0.05)
            except KeyboardInterrupt:
                num_interrupted += 1
        assert num_interrupted + dropped.count(KeyboardInterrupt) == 60
        assert_idle(llm)
        assert llm.generate("go", bool).status == "ok"


def in_child(work: Callable[[], object]) -> str:
    """What a forked child came to: the name of what it raised, "done", or "hung"."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            outcome = "done"
        except BaseException as error:
            outcome = type(error).__name__
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    watch = threading.Timer(20, os.kill, (child, signal.SIGKILL))
    watch.start()
    os.waitpid(child, 0)
    watch.cancel()
    with os.fdopen(reader) as pipe:
        return pipe.read() or "hung"


@needs_fork
@pytest.mark.filterwarnings("ignore:This process")
def test_forked_child_is_told_that_the_engine_is_not_there() -> None:
    with slow_llm(0.001) as llm:
        with llm.stream("go", max_tokens=400) as stream:
            assert in_child(lambda: llm.generate("go", bool)) == "EngineClosed"
            assert in_child(lambda: llm.batch(["go"])[0].unwrap()) == "Cancelled"
            assert in_child(lambda: list(stream)) == "EngineClosed"
            assert in_child(lambda: stream.__exit__(None, None, None)) == "done"
            assert in_child(llm.close) == "done"
            assert in_child(lambda: make_llm().generate("go", bool).unwrap()) == "done"
        assert llm.generate("go", bool).status == "ok"


REAL_FORK = """
import os, safegen
with safegen.LLM(kv_cache_memory=50_000_000) as llm:
    assert llm.generate("hi", bool, max_tokens=8).status == "ok"
    if (child := os.fork()) == 0:
        with safegen.LLM(kv_cache_memory=50_000_000) as own:
            os._exit(own.generate("How are you? " * 20, bool, max_tokens=8).status != "ok")
    assert os.waitpid(child, 0)[1] == 0
    assert llm.generate("hi", bool, max_tokens=8).status == "ok"
"""


@needs_fork
def test_child_of_a_process_with_a_real_model_can_load_its_own() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", REAL_FORK], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ended.returncode == 0, ended.stderr


def test_closing_from_many_threads_ends_every_open_stream_once() -> None:
    llm = slow_llm(0.01)
    statuses: list[str] = []

    def read() -> None:
        with llm.stream("go", max_tokens=1500) as events:
            statuses.append(events.result().status)

    readers = [threading.Thread(target=read) for _ in range(6)]
    closers = [threading.Thread(target=llm.close) for _ in range(6)]
    for thread in readers:
        thread.start()
    time.sleep(0.2)
    for thread in closers:
        thread.start()
    for thread in (*closers, *readers):
        thread.join(10)
        assert not thread.is_alive()
    assert statuses == ["cancelled"] * 6
    with pytest.raises(EngineClosed):
        llm.generate("go")
    with pytest.raises(EngineClosed):
        llm.stream("go")
