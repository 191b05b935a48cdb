"""Which upstream a request goes to: one that has its model, is well, and has room.

Prefix affinity: requests whose prompts begin alike go to the same replica, whose prefix cache then holds that
beginning. The order of preference is rendezvous hashing (Thaler and Ravishankar 1998): each upstream has a score for a
beginning, so one that comes or goes moves its own requests alone, and gateways agree without talking. The favoured one
is left for the next in that order once it has `spill_after` more requests than the least busy one (bounded loads).
Without a beginning the least busy one is taken, in turn where several are.

Where no upstream has room a request waits in its model's line, first come first served; a further attempt of a request
stands at its head. A line is bounded in length and time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from safegen.gateway.calls import Call
from safegen.gateway.config import Queue, Routing
from safegen.gateway.upstream import Place, Upstream
from safegen.server.errors import ApiError, overloaded


@dataclass(slots=True)
class _Waiting:
    call: Call
    avoid: Collection[Upstream]
    since: float
    granted: asyncio.Future[Place] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Router:
    """Used by the event loop's thread alone. by_affinity: requests by where their beginning sent them."""

    def __init__(self, upstreams: Sequence[Upstream], routing: Routing, queue: Queue) -> None:
        self.upstreams = tuple(upstreams)
        self.by_affinity: Counter[str] = Counter()
        self._spill_after = routing.spill_after
        self._queue = queue
        self._turn = 0
        self._by_model: dict[str, list[Upstream]] = {}
        for upstream in self.upstreams:
            upstream.on_change = self.wake
            for name in dict.fromkeys(upstream.config.models):
                self._by_model.setdefault(name, []).append(upstream)
        self._lines: dict[str, deque[_Waiting]] = {name: deque() for name in self._by_model}

    @property
    def num_waiting(self) -> dict[str, int]:
        return {name: len(line) for name, line in self._lines.items()}

    def num_upstreams(self, model: str) -> int:
        return len(self._by_model[model])

    def is_served(self, model: str) -> bool:
        """Whether some upstream of the model is well."""
        return any(upstream.is_well for upstream in self._by_model[model])

    def try_place(self, call: Call, avoid: Collection[Upstream] = ()) -> Place | None:
        """A place at once, at an upstream that is none of `avoid`, or none."""
        open_now = self._open(call, avoid)
        return Place(self._chosen(call, open_now), self._released) if open_now else None

    def has_room(self, call: Call, avoid: Collection[Upstream] = ()) -> bool:
        """Whether `try_place` would find one."""
        return bool(self._open(call, avoid))

    def _open(self, call: Call, avoid: Collection[Upstream]) -> list[Upstream]:
        return [each for each in self._by_model[call.model] if each.takes_requests and each not in avoid]

    async def place(self, call: Call, avoid: Collection[Upstream] = ()) -> Place:
        """avoid: upstreams that it has been tried at, which come last. Raises ApiError 429 or 503."""
        line = self._lines[call.model]
        if avoid or not line:
            found = self._placed(call, avoid)
            if found is not None:
                return found
        if not avoid and len(line) >= self._queue.max_waiting:
            raise self._too_long(call.model, f"{len(line)} requests wait already")
        waiting = _Waiting(call, avoid, asyncio.get_running_loop().time())
        (line.appendleft if avoid else line.append)(waiting)
        try:
            async with asyncio.timeout(self._queue.wait_s):
                self._wake_when_circuits_close(call.model)
                return await waiting.granted
        except TimeoutError:
            self._leave(line, waiting)
            raise self._too_long(call.model, f"the request has waited for {self._queue.wait_s:g} s") from None
        except BaseException:
            self._leave(line, waiting)
            raise

    def wake(self) -> None:
        """Some upstream may take requests that could not before: let those go that can, the longest waiting first."""
        while True:
            heads = sorted((line for line in self._lines.values() if line), key=lambda line: line[0].since)
            if not any(self._let_go(line) for line in heads):
                return

    def _let_go(self, line: deque[_Waiting]) -> bool:
        """The head of a line, if there is a place for it."""
        head = line[0]
        if not head.granted.done():  # else its client has just left
            found = self._placed(head.call, head.avoid)
            if found is None:
                return False
            head.granted.set_result(found)
        line.popleft()
        return True

    def rest(self, upstream: Upstream) -> None:
        """A circuit has opened: look again when it is half-open."""
        if upstream.breaker.rest_s > 0:
            asyncio.get_running_loop().call_later(upstream.breaker.rest_s + 1e-3, self.wake)

    def _placed(self, call: Call, avoid: Collection[Upstream]) -> Place | None:
        """Rather at an upstream that it has not been tried at."""
        return self.try_place(call, avoid) or (self.try_place(call) if avoid else None)

    def _wake_when_circuits_close(self, model: str) -> None:
        for upstream in self._by_model[model]:
            self.rest(upstream)

    def _leave(self, line: deque[_Waiting], waiting: _Waiting) -> None:
        if waiting.granted.done() and not waiting.granted.cancelled():
            waiting.granted.result().close()
        elif waiting in line:
            line.remove(waiting)

    def _released(self, upstream: Upstream) -> None:
        if any(self._lines.values()):
            self.rest(upstream)
            self.wake()

    def _chosen(self, call: Call, open_now: list[Upstream]) -> Upstream:
        least = min(upstream.outstanding for upstream in open_now)
        if call.affinity is not None:
            ranked = preference(call.affinity, self._by_model[call.model])
            most = least + self._spill_after
            chosen = next(each for each in ranked if each in open_now and each.outstanding <= most)
            self.by_affinity["favoured" if chosen is ranked[0] else "spilled"] += 1
            return chosen
        idle = [upstream for upstream in open_now if upstream.outstanding == least]
        self._turn += 1
        return idle[self._turn % len(idle)]

    def _too_long(self, model: str, reason: str) -> ApiError:
        if self.is_served(model):
            return overloaded(f"all upstreams of the model are busy, and {reason}; try again later", 1.0)
        return no_upstream(f"no upstream of the model can be reached, and {reason}")


def preference(affinity: bytes, upstreams: Sequence[Upstream]) -> list[Upstream]:
    """The upstreams, the favoured one first. An upstream's score is that of its name, whatever else there is."""
    return sorted(upstreams, key=lambda each: _score(affinity, each.name), reverse=True)


def _score(affinity: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=affinity, digest_size=8).digest()


def no_upstream(message: str) -> ApiError:
    headers = {"Retry-After": "5"}
    return ApiError(503, message, kind="server_error", code="no_upstream", headers=headers)
