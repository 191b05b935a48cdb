"""The driver of a job on Ray: reads rows, hands them out in chunks, and writes each chunk's records once.

`in flight` decides everything: a chunk is in it from being handed out to its records being given to the output. What
comes for another number was answered twice, and is dropped. As many chunks are in flight as keep every worker busy, so
the window bounds memory here as it does in one process.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from safegen.drive import Stop
from safegen.errors import Cancelled, JobWorkerError, RequestError
from safegen.jobs.on_ray.answers import QUEUED_CHUNKS, RUNNING_CHUNKS, Answer, Answers
from safegen.jobs.on_ray.cluster import connected, import_ray
from safegen.jobs.pending import KeyedRow, PendingRows
from safegen.jobs.records import decode
from safegen.jobs.writing import RecordWriter

Numbers = dict[str, int]  # of the rows of a chunk, by their keys
Chunk = tuple[Numbers, bytes]


class RayFlow:
    """One run of a job. package: of `shipment.pack`. window: rows that workers compute at a time; half as many are on
    their way beside them. address: of the cluster, None for one of the job's own."""

    def __init__(
        self,
        package: bytes,
        pending: PendingRows,
        writer: RecordWriter,
        *,
        window: int,
        num_workers: int,
        address: str | None,
    ) -> None:
        self._package = package
        self._pending = pending
        self._writer = writer
        self._num_workers = num_workers
        self._address = address
        self._chunk_rows = max(1, window // (num_workers * RUNNING_CHUNKS))
        self._max_chunks = num_workers * (RUNNING_CHUNKS + QUEUED_CHUNKS)
        self._in_flight: dict[int, Numbers] = {}

    def to_end(self, stop: Stop | None = None) -> None:
        """Raises what ends a job: an output that cannot be written, an input that breaks off, workers that cannot go
        on, and Cancelled."""
        chunk = self._next_chunk()
        if chunk is not None:  # else all is done, and Ray is not needed
            stop = stop or Stop()
            with connected(self._address) as ray:
                inbox: SimpleQueue[Any] = stop.inbox  # which `stop.request` wakes
                with Answers(ray, self._package, self._num_workers, inbox) as answers:
                    self._all(chunk, answers, inbox, stop)
        if self._pending.error is not None:
            raise self._pending.error

    def _all(self, chunk: Chunk | None, answers: Answers, inbox: SimpleQueue[Any], stop: Stop) -> None:
        number = 0
        while chunk is not None or self._in_flight:
            while chunk is not None and self._has_room():
                self._in_flight[number], dumped = chunk
                answers.ask(number, dumped)
                chunk, number = self._next_chunk(), number + 1
            if inbox.empty():
                self._writer.flush()
            came = inbox.get()
            if stop.requested:
                raise Cancelled("the job was cancelled")
            if isinstance(came, Exception):
                raise came
            if isinstance(came, Answer) and came.number in self._in_flight:
                self._take(came)
                answers.written(came.number)

    def _next_chunk(self) -> Chunk | None:
        """None at the end of the input."""
        rows = self._pending.chunk(self._chunk_rows)
        self._writer.expect(keyed.row.number for keyed in rows)
        return ({keyed.key: keyed.row.number for keyed in rows}, _dumped(rows)) if rows else None

    def _has_room(self) -> bool:
        if not self._in_flight:
            return True
        return len(self._in_flight) < self._max_chunks and self._writer.has_room()

    def _take(self, answer: Answer) -> None:
        if answer.failure:
            raise JobWorkerError(
                f"a worker cannot go on: {answer.failure}", hint="every record that came is kept; resume the job"
            )
        numbers = self._in_flight.pop(answer.number)
        for line in answer.records.splitlines():
            record = decode(line)
            if record is None or record["key"] not in numbers:
                raise JobWorkerError(f"a worker has answered what nobody asked: {line!r:.100}")
            self._writer.write(numbers.pop(record["key"]), record)
        if numbers:
            raise JobWorkerError(f"a worker has left {len(numbers)} rows of a chunk without an answer")


def _dumped(chunk: list[KeyedRow]) -> bytes:
    try:
        dumped: bytes = import_ray().cloudpickle.dumps(chunk)
    except Exception as error:  # whatever objects the caller's rows hold
        raise RequestError(
            f"a row of rows {chunk[0].row.number} to {chunk[-1].row.number} cannot go to the workers of Ray: {error}; "
            "give rows of plain data",
            field="input",
        ) from error
    return dumped
