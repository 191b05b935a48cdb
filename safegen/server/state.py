"""What the routes of one server share: its settings, the way to the model, who may come in, what is counted."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from safegen.observe.openmetrics import metrics_text
from safegen.runtime import Runtime
from safegen.server.admission import Lease
from safegen.server.answers import Answers
from safegen.server.completions import Answer, Spelling
from safegen.server.door import Door
from safegen.server.errors import ApiError, unavailable
from safegen.server.replies import Work
from safegen.server.settings import ServerSettings
from safegen.server.shapes import LogprobShapes, fingerprint_of
from safegen.server.translate import Call


class ServerState(Door):
    """One a server; used by its event loop's thread."""

    def __init__(self, runtime: Runtime, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.runtime = runtime
        self.answers = Answers(runtime, settings.compile_threads)
        self.logprobs = LogprobShapes(runtime.token_bytes)
        self.fingerprint = fingerprint_of(runtime.fingerprint)
        self.labels = {"model": settings.model_names[0]}  # of its metrics

    def unready(self) -> ApiError | None:
        return unavailable() if self.runtime.is_closed else None

    def metrics_text(self) -> str:
        families = self.meter.families(self.admission)
        return metrics_text(self.runtime.engine_stats(), self.runtime.meter, self.labels, families)

    async def answering(
        self, request: Request, make_call: Callable[[bytes, str | None], Call], spelling: Spelling
    ) -> Response:
        """The answer to a completion of either kind. make_call: of the body and a cache salt. Raises ApiError."""

        def work(raw: bytes, cache_salt: str | None, lease: Lease) -> tuple[Work, float]:
            call = make_call(raw, cache_salt)
            return self.answer(call, lease, spelling).send, call.deadline_s

        return await self.admitted(request, work)

    def answer(self, call: Call, lease: Lease, spelling: Spelling) -> Answer:
        return Answer(self.answers, call, lease, spelling, self.settings.model_names[0], self.fingerprint)
