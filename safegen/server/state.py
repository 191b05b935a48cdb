"""What the routes of one server share: its settings, the way to the model, who may come in, what is counted."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from safegen.runtime import Runtime
from safegen.server.admission import Admission, Lease
from safegen.server.answers import Answers
from safegen.server.auth import ApiKey
from safegen.server.bodies import read_body
from safegen.server.completions import Answer, Spelling
from safegen.server.meter import HttpMeter
from safegen.server.replies import Answering, Work
from safegen.server.settings import ServerSettings
from safegen.server.shapes import LogprobShapes, fingerprint_of
from safegen.server.translate import Call

# Of the body, a cache salt and the request's place: what sends the answer, and within how many seconds.
MakeWork = Callable[[bytes, str | None, Lease], tuple[Work, float]]


class ServerState:
    """One a server; used by its event loop's thread."""

    def __init__(self, runtime: Runtime, settings: ServerSettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.admission = Admission(settings.max_pending)
        self.answers = Answers(runtime, settings.compile_threads)
        self.meter = HttpMeter()
        self.logprobs = LogprobShapes(runtime.token_bytes)
        self.fingerprint = fingerprint_of(runtime.fingerprint)

    def authenticated(self, request: Request) -> ApiKey:
        """Raises ApiError 401."""
        key = self.settings.keyring.authenticate(request.headers.get("authorization"))
        request.state.key_name = key.name
        return key

    def cache_salt(self, key: ApiKey) -> str | None:
        """Requests of one key share cached prompt beginnings with one another alone."""
        return None if self.settings.keyring.is_open else key.cache_salt

    async def answering(
        self, request: Request, make_call: Callable[[bytes, str | None], Call], spelling: Spelling
    ) -> Response:
        """The answer to a completion of either kind. make_call: of the body and a cache salt. Raises ApiError."""

        def work(raw: bytes, cache_salt: str | None, lease: Lease) -> tuple[Work, float]:
            call = make_call(raw, cache_salt)
            return self.answer(call, lease, spelling).send, call.deadline_s

        return await self.admitted(request, work)

    async def admitted(self, request: Request, make_work: MakeWork) -> Response:
        """The answer to whatever computes: within the key's limits, and for as long as the client is there. Raises
        ApiError."""
        key = self.authenticated(request)
        lease = self.admission.enter(key)
        try:
            raw = await read_body(request, self.settings.max_body_bytes, self.settings.body_timeout_s)
            work, deadline_s = make_work(raw, self.cache_salt(key), lease)
            return Answering(
                work,
                deadline_s=deadline_s,
                write_timeout_s=self.settings.write_timeout_s,
                on_end=lease.close,
            )
        except BaseException:
            lease.close()
            raise

    def answer(self, call: Call, lease: Lease, spelling: Spelling) -> Answer:
        return Answer(self.answers, call, lease, spelling, self.settings.model_names[0], self.fingerprint)
