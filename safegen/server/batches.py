"""Batches: files of requests, answered by a job each, one after the other, beside the server's other requests.

A batch is a job of `safegen.jobs`: its journal is in the batch's folder, so a server that is killed goes on where it
stopped when it is started again, and every line is answered exactly once. Its output and error files are made of the
journal when all lines are done, or when it is cancelled.

States: validating -> in_progress -> finalizing -> completed; failed (the file is no batch, or the job cannot go on);
cancelling -> cancelled. State is written before it is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from safegen.drive import Stop
from safegen.errors import Cancelled, EngineClosed, JobError, RequestError
from safegen.jobs.lock import OutputLock
from safegen.jobs.options import JobOptions
from safegen.jobs.run import run_job
from safegen.server.auth import ApiKey
from safegen.server.batch_rows import BatchPlanner, Counts, LineError, check_lines, counts_of, output_lines
from safegen.server.errors import ApiError, api_error
from safegen.server.files import Files
from safegen.server.schemas import BatchRequest
from safegen.server.shapes import new_id
from safegen.server.state import ServerState
from safegen.server.stored import Documents, Stored

_log = logging.getLogger("safegen.server")

_OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_WINDOW_S = 24 * 3600
_MAX_OPEN_OF_KEY = 64
_MAX_KEPT_OF_KEY = 10_000


class Batches:
    """An async context manager around the server's life: entering goes on with what was open. Raises RequestError for
    a folder that cannot be used, JobLocked where another server uses it."""

    def __init__(self, state: ServerState, folder: Path) -> None:
        self.files = Files(folder / "files", state.settings.max_stored_bytes)
        self.documents = Documents(folder / "batches", "batch")
        self._state = state
        self._folder = folder / "batches"
        self._lock = OutputLock(folder / "lock")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="safegen-batches")
        self._moving = threading.Lock()
        self._stops: dict[str, Stop] = {}
        self._counts: dict[str, Counts] = {}  # of the batch in work
        self._is_closing = False

    async def __aenter__(self) -> Batches:
        self._lock.__enter__()
        waiting = [stored for stored in self.documents.all() if stored["shown"]["status"] in _OPEN]
        for stored in sorted(waiting, key=lambda each: (each["shown"]["created_at"], each["shown"]["id"])):
            self._queue(stored)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Jobs in work stop; they go on with the next start."""
        self._is_closing = True
        for stop in list(self._stops.values()):
            stop.request()
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._lock.__exit__(kind, error, trace)

    # --- for the routes -----------------------------------------------------------------------------------------------

    def create(self, body: BatchRequest, key: ApiKey) -> Stored:
        """Blocking. Raises ApiError."""
        owner = key.name
        given = self.files.documents.find(body.input_file_id, owner)["shown"]
        if given["purpose"] != "batch":
            raise ApiError(400, "the file is no upload for batches", param="input_file_id", code="invalid_value")
        mine = [each for each in self.documents.all() if each["owner"] == owner]
        if sum(each["shown"]["status"] in _OPEN for each in mine) >= _MAX_OPEN_OF_KEY:
            raise ApiError(400, f"a key has at most {_MAX_OPEN_OF_KEY} batches open", code="batch_limit_exceeded")
        over = sorted(
            (each["shown"]["created_at"], each["shown"]["id"]) for each in mine if each["shown"]["status"] not in _OPEN
        )
        for _, identity in over[: max(0, len(over) - _MAX_KEPT_OF_KEY)]:  # the oldest are forgotten, not their files
            self.documents.remove(identity)
        now = int(time.time())
        times = ("in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expired")
        shown: dict[str, Any] = {
            "id": new_id("batch_"), "object": "batch", "endpoint": body.endpoint, "errors": None,
            "input_file_id": body.input_file_id, "completion_window": body.completion_window, "status": "validating",
            "output_file_id": None, "error_file_id": None, "created_at": now, "expires_at": now + _WINDOW_S,
            **{f"{name}_at": None for name in times},
            "request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": body.metadata,
        }  # fmt: skip
        stored = {"owner": owner, "shown": shown}
        self.documents.write(stored)
        self._queue(stored)
        return stored

    def cancel(self, identity: str, owner: str) -> Stored:
        """Blocking. Raises ApiError 404, and 409 for one that is over."""
        moved = self._move(identity, owner, "cancelling", only_from=("validating", "in_progress", "cancelling"))
        if moved is None:
            raise ApiError(409, "the batch is over, or about to be", code="batch_is_over")
        stop = self._stops.get(identity)
        if stop is not None:
            stop.request()
        return moved

    def shown(self, identity: str, owner: str) -> dict[str, Any]:
        """As clients see it, counts of this moment included. Raises ApiError 404."""
        shown: dict[str, Any] = self.documents.find(identity, owner)["shown"]
        counts = self._counts.get(identity)
        return shown if counts is None else {**shown, "request_counts": {**shown["request_counts"], **counts}}

    # --- the batches' thread ------------------------------------------------------------------------------------------

    def _queue(self, stored: Stored) -> None:
        identity = stored["shown"]["id"]
        self._stops[identity] = Stop()
        with contextlib.suppress(RuntimeError):  # the server is closing: the next start finds it
            self._thread.submit(self._run, identity, stored["owner"])

    def _run(self, identity: str, owner: str) -> None:
        try:
            if not self._is_closing:
                self._to_end(self.documents.find(identity, owner))
        except (Cancelled, EngineClosed):
            if not self._is_closing and not self._state.runtime.is_closed:
                self._finish(identity, owner, "cancelled")
        except (JobError, RequestError, ApiError) as error:
            failure = api_error(error)
            self._fail(identity, owner, [LineError(failure.code or "invalid_batch", failure.message)])
        except Exception as error:
            _log.error("batch %s failed: %s", identity, type(error).__name__)
            self._fail(identity, owner, [LineError("internal_error", "a fault inside the server")])
        finally:
            self._counts.pop(identity, None)
            self._stops.pop(identity, None)

    def _to_end(self, stored: Stored) -> None:
        shown, identity, owner = stored["shown"], stored["shown"]["id"], stored["owner"]
        source = self.files.content(shown["input_file_id"])
        if shown["status"] == "validating" and not self._is_checked(identity, owner, source, shown["endpoint"]):
            return
        if self.documents.find(identity, owner)["shown"]["status"] == "cancelling":
            raise Cancelled("the batch was cancelled")
        settings = self._state.settings
        key = settings.keyring.named(owner)
        if key is None:
            raise ApiError(400, "the API key of the batch is gone", code="invalid_api_key")
        journal = self._journal(identity)
        counts = self._counts[identity] = counts_of(journal)
        planner = BatchPlanner(self._state, shown["endpoint"], self._state.cache_salt(key), counts)
        options = JobOptions(
            format="jsonl", window=settings.batch_window or max(1, self._state.runtime.max_num_seqs // 2),
            max_row_bytes=settings.max_body_bytes, progress="off", planner=planner,
            version=f"batch {shown['endpoint']} {settings.tool_format}",
        )  # fmt: skip
        run_job(self._state.runtime, source, journal, None, options, self._stops[identity])
        self._finish(identity, owner, "completed")

    def _is_checked(self, identity: str, owner: str, source: Path, endpoint: str) -> bool:
        if not source.exists():
            raise ApiError(400, "the input file was deleted", param="input_file_id", code="not_found")
        count, errors = check_lines(source, endpoint, self._state.settings.max_body_bytes)
        if errors:
            self._fail(identity, owner, errors)
            return False
        counts = {"total": count, "completed": 0, "failed": 0}
        self._move(identity, owner, "in_progress", only_from=("validating",), request_counts=counts)
        return True

    def _finish(self, identity: str, owner: str, status: str) -> None:
        """Output and error files of what is done, then the last state. A batch whose last line came before it could be
        cancelled is complete."""
        if status == "completed":
            self._move(identity, owner, "finalizing")
        self._move(identity, owner, status, **self._outputs(identity, owner))
        shutil.rmtree(self._journal(identity).parent, ignore_errors=True)

    def _outputs(self, identity: str, owner: str) -> dict[str, Any]:
        journal = self._journal(identity)
        counts = counts_of(journal)
        total = self.documents.find(identity, owner)["shown"]["request_counts"]["total"]
        made: dict[str, Any] = {"request_counts": {"total": max(total, sum(counts.values())), **counts}}
        if not sum(counts.values()):
            return made
        paths = {"completed": journal.with_name("output.jsonl"), "failed": journal.with_name("errors.jsonl")}
        with paths["completed"].open("wb") as output, paths["failed"].open("wb") as errors:
            for is_answer, line in output_lines(journal):
                (output if is_answer else errors).write(line)
            for file in (output, errors):
                file.flush()
                os.fsync(file.fileno())
        for kind, name in (("completed", "output"), ("failed", "error")):
            if counts[kind]:
                made[f"{name}_file_id"] = self.files.adopt(paths[kind], f"{identity}_{name}.jsonl", owner)["id"]
        return made

    def _fail(self, identity: str, owner: str, errors: list[LineError]) -> None:
        """What is done is given out all the same."""
        listed = {"object": "list", "data": [error.to_dict() for error in errors]}
        self._move(identity, owner, "failed", errors=listed, **self._outputs(identity, owner))

    def _move(
        self, identity: str, owner: str, status: str, *, only_from: tuple[str, ...] | None = None, **changes: Any
    ) -> Stored | None:
        """The batch in its new state; None where it is in a state that this one does not follow."""
        with self._moving:
            stored = self.documents.find(identity, owner)
            if only_from is not None and stored["shown"]["status"] not in only_from:
                return None
            shown = {**stored["shown"], "status": status, **changes}
            if shown.get(f"{status}_at", 0) is None:
                shown[f"{status}_at"] = int(time.time())
            moved = {**stored, "shown": shown}
            self.documents.write(moved)
            return moved

    def _journal(self, identity: str) -> Path:
        folder = self._folder / identity
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / "journal.jsonl"
