"""A worker: an actor of Ray Data that holds a model and answers chunks of rows.

Several chunks are in it at a time, each waited for by a thread of its own, so that the engine always has rows at hand
while one chunk's last rows end. A worker never raises for a row, nor for what it cannot load: a failure is an answer,
which ends the job at the driver with its words. When the driver stops, workers drop what they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from safegen.drive import Stop, drive_each
from safegen.errors import EngineClosed, EngineError, ModelLoadError
from safegen.jobs.on_ray.cluster import import_ray
from safegen.jobs.on_ray.feed import CHUNK, NUMBER, WRITTEN
from safegen.jobs.on_ray.shipment import Shipment, unpack
from safegen.jobs.pending import KeyedRow
from safegen.jobs.plan import PlannedRow, Planner
from safegen.jobs.prefix_order import prefix_order
from safegen.jobs.records import encode, record_of
from safegen.result import Result
from safegen.runtime import Runtime, Work

RECORDS, FAILURE = "records", "failure"
_MAX_TRIES = 4  # of a chunk whose worker dies


class Worker:
    """The callable class of `map_batches`. package: of `shipment.pack`. feed: the actor, which knows how often a chunk
    was begun. num_chunks: at a time."""

    def __init__(self, package: bytes, feed: Any, num_chunks: int) -> None:
        self._feed = feed
        self._threads = ThreadPoolExecutor(num_chunks)
        self._stops: set[Stop] = set()  # one for each chunk that is being answered
        self._is_stopped = False
        threading.Thread(target=self._watch, name="safegen-ray-stop", daemon=True).start()
        self._failure = ""
        try:
            self._answerer = Answerer.of(unpack(package))
        except Exception as error:  # told to the driver, by the first chunk
            self._failure = f"{type(error).__name__}: {error}"

    async def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """batch: one chunk and its number, in columns."""
        number, chunk = int(batch[NUMBER][0]), bytes(batch[CHUNK][0])
        records, failure = b"", self._failure
        if not failure and chunk != WRITTEN and not self._is_stopped:
            loop = asyncio.get_running_loop()
            try:
                records = await loop.run_in_executor(self._threads, self._answer, number, chunk)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        return {NUMBER: [number], RECORDS: [records], FAILURE: [failure]}

    def _answer(self, number: int, chunk: bytes) -> bytes:
        if import_ray().get(self._feed.begun.remote(number)) > _MAX_TRIES:
            raise EngineError(f"{_MAX_TRIES} workers have died over the same rows")
        stop = Stop()
        self._stops.add(stop)
        if self._is_stopped:
            stop.request()
        try:
            return self._answerer.answer(chunk, stop)
        finally:
            self._stops.discard(stop)

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # the feed is gone, and the driver with it
            import_ray().get(self._feed.stopped.remote())
        self._is_stopped = True
        for stop in tuple(self._stops):
            stop.request()


class Answerer:
    """A model with the recipe of a job. Used by several threads."""

    def __init__(self, runtime: Runtime, planner: Planner) -> None:
        self._runtime = runtime
        self._planner = planner
        self._planning = threading.Lock()  # the caller's functions, and the planner, are for one thread at a time

    @classmethod
    def of(cls, shipment: Shipment) -> Answerer:
        """Loads the model. Raises what loading raises, and ModelLoadError for another model than the driver's."""
        _share_cores()
        runtime = shipment.reload()
        if runtime.fingerprint != shipment.fingerprint:
            raise ModelLoadError(
                "the model's files on this machine are not those of the driver",
                hint="have the same files under the same path on every machine",
            )
        return cls(runtime, shipment.recipe.planner(runtime))

    def answer(self, chunk: bytes, stop: Stop) -> bytes:
        """The records of the rows of a chunk, as lines. Raises Cancelled or EngineClosed if that comes between."""
        keyed: Sequence[KeyedRow] = import_ray().cloudpickle.loads(chunk)
        with self._planning:
            rows = prefix_order([self._planner.plan(each.row, each.key) for each in keyed])
        lines = _Lines(rows)
        drive_each(self._runtime, lines.works(self._runtime), lines, window=len(rows), stop=stop)
        return b"".join(lines.encoded)


class _Lines:
    """The sink of a chunk."""

    def __init__(self, rows: Sequence[PlannedRow]) -> None:
        self._rows = rows
        self.encoded: list[bytes] = []

    def works(self, runtime: Runtime) -> Iterator[Work]:
        return (planned.work(runtime) for planned in self._rows)

    def take(self, number: int, result: Result[Any]) -> None:
        if result.status == "cancelled":
            raise EngineClosed("the worker's engine was closed")
        self.encoded.append(encode(record_of(self._rows[number], result)))

    def has_room(self) -> bool:
        return True

    def idle(self) -> None:
        """There is nothing to do between rows."""


def _share_cores() -> None:
    """Compute with this worker's share of the machine's cores: what Ray has given it of the CPUs that Ray knows."""
    from safegen.engine.threads import num_threads, set_num_threads

    context = import_ray().get_runtime_context()
    own_cpus = context.get_assigned_resources().get("CPU", 1.0)
    nodes = {node["NodeID"]: node["Resources"].get("CPU", own_cpus) for node in import_ray().nodes()}
    machine_cpus = max(nodes.get(context.get_node_id(), own_cpus), own_cpus, 1.0)
    set_num_threads(max(1, int(min(num_threads(), machine_cpus) * own_cpus // machine_cpus)))
