"""The Ray Data pipeline of a job, seen from the driver: chunks go in by number, answers come out in any order.

A thread of its own waits for Ray and puts what comes into an inbox; the driver's thread reads and writes.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from safegen.errors import JobWorkerError
from safegen.jobs.on_ray.cluster import cpus_each, machines
from safegen.jobs.on_ray.feed import NUMBER, Feed, FeedSource
from safegen.jobs.on_ray.worker import FAILURE, RECORDS, Worker

RUNNING_CHUNKS = 4  # at a time in a worker
QUEUED_CHUNKS = 2  # on their way to a worker, beside those
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """records: of all rows of a chunk, as lines. failure: why there are none, else ""."""

    number: int
    records: bytes
    failure: str


class Answers:
    """A context manager. inbox: takes an Answer for each chunk (more than once, if Ray computes it anew), or the
    exception that has ended the pipeline. Used by one thread."""

    def __init__(self, ray: Any, package: bytes, num_workers: int, inbox: SimpleQueue[Any]) -> None:
        self._ray = ray
        self._inbox = inbox
        cpus = cpus_each(machines(ray), num_workers)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._feed = ray.remote(Feed).options(num_cpus=0, scheduling_strategy=here).remote()
        self._dataset = _dataset(ray, self._feed, package, num_workers, cpus)
        self._thread = threading.Thread(target=self._watch, name="safegen-ray-answers", daemon=True)

    def ask(self, number: int, chunk: bytes) -> None:
        self._feed.put.remote(number, chunk)

    def written(self, number: int) -> None:
        self._feed.written.remote(number)

    def _watch(self) -> None:
        try:
            for batch in self._dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():
                    self._inbox.put(Answer(row[NUMBER], row[RECORDS], row[FAILURE]))
        except Exception as error:
            self._inbox.put(_worker_error(error))
        else:
            self._inbox.put(JobWorkerError("the workers have ended before the job", hint="run the same job again"))

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the stream, in the middle of it where that is due: then workers drop what they have. Ray Data takes them
        down when the stream is at its end."""
        (self._feed.end if kind is None else self._feed.stop).remote()
        self._thread.join(_PATIENCE_S)
        self._ray.kill(self._feed)


def _dataset(ray: Any, feed: Any, package: bytes, num_workers: int, cpus: int) -> Any:
    """Ray restarts a worker that dies, and gives what it had to a living one. The two steps ask for different CPUs, so
    Ray does not make one of them, which would put all rows into one worker."""
    pool = ray.data.ActorPoolStrategy(
        size=num_workers,
        max_tasks_in_flight_per_actor=RUNNING_CHUNKS + QUEUED_CHUNKS,
        max_concurrent_calls_per_actor=RUNNING_CHUNKS,
    )
    with _own_context(ray):
        chunks = ray.data.read_datasource(FeedSource(feed), override_num_blocks=1, num_cpus=0)
        return chunks.map_batches(
            Worker,
            fn_constructor_args=(package, feed, RUNNING_CHUNKS),
            batch_size=1,
            batch_format="numpy",
            compute=pool,
            num_cpus=cpus,
        )


@contextlib.contextmanager
def _own_context(ray: Any) -> Iterator[None]:
    """Settings of the datasets made inside: a block leaves its task as soon as it is there, and nothing
    is shown."""
    context = copy.deepcopy(ray.data.DataContext.get_current())
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    with ray.data.DataContext.current(context):
        yield


def _worker_error(error: Exception) -> JobWorkerError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
    return JobWorkerError(
        f"Ray cannot go on: {reason:.500}", hint="every record that came is kept; run the same job again"
    )
