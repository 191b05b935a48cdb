"""What every HTTP front of ours shares, whatever answers behind it: who may come in, how often, and what is counted."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from starlette.responses import Response

from safegen.server.admission import Admission, Lease
from safegen.server.auth import ApiKey
from safegen.server.bodies import read_body
from safegen.server.meter import HttpMeter
from safegen.server.replies import Answering, Work
from safegen.server.settings import ServerSettings

# Of the body, a cache salt and the request's place: what sends the answer, and within how many seconds.
MakeWork = Callable[[bytes, str | None, Lease], tuple[Work, float]]


class Door:
    """One a server; used by its event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.admission = Admission(settings.max_pending)
        self.meter = HttpMeter()

    def authenticated(self, request: Request) -> ApiKey:
        """Raises ApiError 401."""
        key = self.settings.keyring.authenticate(request.headers.get("authorization"))
        request.state.key_name = key.name
        return key

    def cache_salt(self, key: ApiKey) -> str | None:
        """Requests of one key share cached prompt beginnings with one another alone."""
        return None if self.settings.keyring.is_open else key.cache_salt

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
