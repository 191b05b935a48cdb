"""The engine's thread: one ending for each sequence whatever happens, back-pressure, close."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.engine.backend import ForwardBatch
from safegen.engine.config import EngineConfig
from safegen.engine.engine import Engine
from safegen.engine.request import Event, FinishedEvent, TokensEvent
from safegen.errors import CapacityError, EngineClosed, EngineError, QueueFull, RequestError
from tests.support.engine_driver import TOKEN_BYTES, make_request, naive
from tests.support.fake_backend import FakeBackend

WAIT_S = 20.0


class Collector:
    """Takes a request's events; done once every sequence has its FinishedEvent."""

    def __init__(self, num_sequences: int = 1, then: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.then = then
        self._left = num_sequences
        self._done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, FinishedEvent):
            self._left -= 1
            if self._left == 0:
                self._done.set()
        self.then(event)

    def finished(self) -> list[FinishedEvent]:
        assert self._done.wait(WAIT_S), "no FinishedEvent"
        return [event for event in self.events if isinstance(event, FinishedEvent)]

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events if isinstance(event, TokensEvent) for token in event.token_ids]


class Gate:
    """Holds the backend inside a forward until opened."""

    def __init__(self, backend: FakeBackend) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        backend.on_forward = self.hold

    def hold(self, batch: ForwardBatch) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_S)


def make_engine(backend: FakeBackend | None = None, **settings: Any) -> Engine:
    backend = backend or FakeBackend()
    settings = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
    settings.setdefault("kv_cache_memory", 200 * backend.bytes_per_block(settings["block_size"]))
    return Engine(backend, TOKEN_BYTES, EngineConfig(**settings))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with make_engine() as made:
        yield made


def test_requests_from_many_threads_get_what_the_naive_loop_gives(engine: Engine) -> None:
    requests = [make_request(f"r{i}", [i % 30 + 1, 2, 3], max_tokens=12, temperature=1.0, seed=i) for i in range(40)]
    collectors = [Collector() for _ in requests]

    def submit_every_fourth(first: int) -> None:
        for number in range(first, 40, 4):
            engine.submit(requests[number], collectors[number])

    threads = [threading.Thread(target=submit_every_fourth, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, collector in zip(requests, collectors):
        assert collector.finished()[0].finish_reason in ("stop", "length")
        assert collector.token_ids == naive(one)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.num_blocks)
    assert stats.finished_sequences == 40


def test_timings_and_usage_are_told(engine: Engine) -> None:
    collector = Collector()
    engine.submit(make_request("a", [1, 2, 3], max_tokens=4, stop_ids=()), collector)
    finished = collector.finished()[0]
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 4)
    assert 0 <= finished.timings.queue_ms <= finished.timings.first_token_ms <= finished.timings.total_ms


def test_bad_requests_are_refused_in_the_callers_thread(engine: Engine) -> None:
    with pytest.raises(RequestError, match="empty"):
        engine.submit(make_request("a", []), Collector())
    with pytest.raises(CapacityError, match="can never fit"):
        make_engine(kv_cache_memory=64).submit(make_request("a", [1] * 9, max_tokens=50), Collector())


def test_full_queue_is_refused_and_clears_again() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    with make_engine(backend, max_queue=2, max_num_seqs=1, max_num_batched_tokens=8) as engine:
        collectors = [Collector() for _ in range(4)]
        engine.submit(make_request("r0", [1], max_tokens=2), collectors[0])
        assert gate.entered.wait(WAIT_S)
        for number in (1, 2):
            engine.submit(make_request(f"r{number}", [1], max_tokens=2), collectors[number])
        with pytest.raises(QueueFull, match="max_queue=2"):
            engine.submit(make_request("r3", [1], max_tokens=2), collectors[3])
        assert engine.stats().waiting == 2
        gate.opened.set()
        for collector in collectors[:3]:
            collector.finished()
        engine.submit(make_request("r3", [1], max_tokens=2), collectors[3])
        assert collectors[3].finished()[0].finish_reason in ("stop", "length")


def test_request_id_is_refused_in_flight_and_free_afterwards(engine: Engine) -> None:
    inside: list[Exception] = []
    second = Collector()

    def resubmit(event: Event) -> None:
        try:
            engine.submit(make_request("a", [2], max_tokens=1), second)
        except RequestError as exc:
            inside.append(exc)

    first = Collector(then=resubmit)
    engine.submit(make_request("a", [1], max_tokens=2, stop_ids=()), first)
    first.finished()
    assert len(inside) == 2 and "in flight" in str(inside[0])
    assert second.finished()[0].finish_reason in ("stop", "length")


def test_cancel_ends_a_request_and_the_others_go_on() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    with make_engine(backend) as engine:
        endless, other, queued = Collector(2), Collector(), Collector()
        engine.submit(make_request("endless", [1], n=2, max_tokens=300, stop_ids=()), endless)
        kept = make_request("other", [2], max_tokens=5)
        engine.submit(kept, other)
        assert gate.entered.wait(WAIT_S)
        engine.submit(make_request("queued", [3], max_tokens=5), queued)
        engine.cancel("endless")
        engine.cancel("queued")
        engine.cancel("unknown")
        gate.opened.set()
        assert [event.finish_reason for event in endless.finished()] == ["cancelled"] * 2
        assert [event.finish_reason for event in queued.finished()] == ["cancelled"]
        assert queued.token_ids == [] and endless.token_ids == []
        other.finished()
        assert other.token_ids == naive(kept)


def test_on_event_that_raises_cancels_its_request_alone(engine: Engine) -> None:
    class Gone(BaseException):
        pass

    for error in (ValueError("consumer is gone"), Gone()):

        def explode(event: Event, error: BaseException = error) -> None:
            raise error

        bad, good = Collector(3, then=explode), Collector()
        engine.submit(make_request("bad", [1], n=3, max_tokens=50, stop_ids=()), bad)
        kept = make_request("good", [2], max_tokens=9)
        engine.submit(kept, good)
        finished = bad.finished()
        assert [event.finish_reason for event in finished] == ["cancelled"] * 3
        assert finished[0].error is error or finished[0].error.__cause__ is error  # type: ignore[union-attr]
        assert len(bad.token_ids) == 1, "nothing but the ending is delivered after on_event raised"
        good.finished()
        assert good.token_ids == naive(kept)


def test_backend_failure_is_an_error_event_and_the_engine_survives() -> None:
    backend = FakeBackend()

    def fail_first(batch: ForwardBatch) -> None:
        if batch.step_id == 0:
            raise RuntimeError("kernel exploded")

    backend.on_forward = fail_first
    with make_engine(backend) as engine:
        first, second = Collector(), Collector()
        engine.submit(make_request("a", [1]), first)
        error = first.finished()[0].error
        assert isinstance(error, EngineError) and isinstance(error.__cause__, RuntimeError)
        asked = make_request("b", [1], max_tokens=4)
        engine.submit(asked, second)
        second.finished()
        assert second.token_ids == naive(asked)


def test_engine_fault_answers_everybody_and_the_engine_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    scheduler = engine._loop.core.scheduler
    commit_fault = RuntimeError("bookkeeping is off")
    calls = []

    def computed(span: Any) -> None:
        calls.append(span)
        if len(calls) == 4:
            raise commit_fault
        type(scheduler).computed(scheduler, span)

    monkeypatch.setattr(scheduler, "computed", computed)
    collectors = [Collector() for _ in range(3)]
    with engine:
        for number, collector in enumerate(collectors):
            engine.submit(make_request(f"r{number}", [number + 1], max_tokens=90, stop_ids=()), collector)
        errors = [collector.finished()[0].error for collector in collectors]
        assert all(isinstance(error, EngineError) and error.__cause__ is commit_fault for error in errors)
        again, asked = Collector(), make_request("again", [1], max_tokens=3)
        engine.submit(asked, again)
        again.finished()
        assert again.token_ids == naive(asked)


def test_close_answers_what_is_in_flight_and_refuses_what_comes_after() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    engine = make_engine(backend, max_num_seqs=2)
    collectors = [Collector(request_n) for request_n in (1, 3, 1)]
    for number, n in enumerate((1, 3, 1)):
        engine.submit(make_request(f"r{number}", [1], n=n, max_tokens=200, stop_ids=()), collectors[number])
    assert gate.entered.wait(WAIT_S)
    threading.Timer(0.05, gate.opened.set).start()
    engine.close()
    for collector in collectors:
        for event in collector.finished():
            assert event.finish_reason == "cancelled" and isinstance(event.error, EngineClosed)
    assert sum(len(collector.finished()) for collector in collectors) == 5
    with pytest.raises(EngineClosed):
        engine.submit(make_request("late", [1]), Collector())
    engine.close()
    engine.cancel("r0")
    assert engine.stats().running == 0


def test_close_with_drain_finishes_first() -> None:
    engine = make_engine()
    requests = [make_request(f"r{i}", [i + 1], max_tokens=20) for i in range(12)]
    collectors = [Collector() for _ in requests]
    for one, collector in zip(requests, collectors):
        engine.submit(one, collector)
    engine.close(drain=True)
    assert [collector.token_ids for collector in collectors] == [naive(one) for one in requests]


def test_close_with_drain_cancels_what_outlasts_its_timeout() -> None:
    backend = FakeBackend()
    backend.on_forward = lambda batch: time.sleep(0.02)
    engine = make_engine(backend)
    collector = Collector()
    engine.submit(make_request("a", [1], max_tokens=500, stop_ids=()), collector)
    engine.close(drain=True, timeout_s=0.2)
    assert collector.finished()[0].finish_reason == "cancelled"


def test_close_from_on_event_does_not_wait_for_itself() -> None:
    engine = make_engine()
    collector = Collector(then=lambda event: engine.close())
    engine.submit(make_request("a", [1], max_tokens=50, stop_ids=()), collector)
    assert collector.finished()[0].finish_reason == "cancelled"
    engine.close()


def test_engine_that_nobody_refers_to_stops_its_thread() -> None:
    engine = make_engine()
    collector = Collector()
    engine.submit(make_request("a", [1], max_tokens=400, stop_ids=()), collector)
    thread, gone = engine._thread, weakref.ref(engine)
    del engine
    gc.collect()
    thread.join(WAIT_S)
    assert gone() is None and not thread.is_alive()
    assert len(collector.finished()) == 1


def test_interpreter_exit_ends_requests_in_flight() -> None:
    script = """
import time
from tests.engine.test_engine_thread import make_engine, make_request, FakeBackend
backend = FakeBackend()
backend.on_forward = lambda batch: time.sleep(0.01)
engine = make_engine(backend)

def show(event):
    print(event.__class__.__name__, flush=True)

engine.submit(make_request("a", [1], max_tokens=400, stop_ids=()), show)
time.sleep(0.1)
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "FinishedEvent" and not done.stderr
