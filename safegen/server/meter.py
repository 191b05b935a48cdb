"""Counts of HTTP requests, as further metrics of a server. Used by the event loop's thread alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from safegen.observe.openmetrics import Family, gauge
from safegen.server.admission import Admission


class HttpMeter:
    """requests by route (as declared, so that no path of a client becomes a label) and status."""

    def __init__(self) -> None:
        self.num_running = 0
        self._requests: Counter[tuple[str, int]] = Counter()

    def ended(self, route: str, status: int) -> None:
        """status: 499 where the client had left before there was one."""
        self._requests[route, status] += 1

    def families(self, admission: Admission) -> Iterator[Family]:
        samples = [
            ("_total", {"route": route, "code": str(status)}, float(count))
            for (route, status), count in sorted(self._requests.items())
        ]
        yield Family("http_requests", "counter", "HTTP requests by route and status.", samples)
        yield gauge("http_requests_running", "HTTP requests that are answered now.", self.num_running)
        yield gauge("http_sequences_pending", "Sequences of requests in work or waiting.", admission.num_pending)
