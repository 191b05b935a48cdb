"""A server under mixed load for a long time: twenty minutes with SAFEGEN_FULL=1, some seconds else.

Well-behaved clients (streams, whole answers, types, tools) run beside every bad one that there is, phase after phase.
In each phase every good answer is bitwise what it is alone. Between phases, when the clients have left, nothing is
held: no block, no place in the queue, no connection. What the process keeps once it has warmed up is bounded.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from safegen.limits import Limits
from tests.server.clients import (
    CHAT,
    GOOD,
    LONG,
    begun,
    die_mid_stream,
    request_bytes,
    send_bad_schema,
    send_garbage,
    send_oversized,
    settled,
)
from tests.server.harness import ASK, Live, live
from tests.support.fake_backend import FakeBackend
from tests.support.sdk_fakes import MAX_CONTEXT, TOKEN_BYTES, make_runtime
from tests.test_memory import Forgetful, resident_kib

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NAMES = {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"n": NAMES}}}}
WELL_BEHAVED: list[dict[str, Any]] = [
    *GOOD,
    {**GOOD[0], "seed": 11, "stream": False},
    {**GOOD[1], "seed": 12, "stream": False},
    {**ASK, "seed": 13, "max_tokens": 80, "stream": True, "tools": [TOOL], "tool_choice": "required"},
    {**ASK, "seed": 14, "max_tokens": 80, "stream": False, "tools": [TOOL]},
    {**ASK, "seed": 15, "stream": True, "response_format": {"type": "regex", "pattern": "[a-z]{5,30}"}},
    {**ASK, "seed": 16, "max_tokens": 40, "stream": True, "n": 2, "logprobs": True, "top_logprobs": 2},
]
CLIENT = httpx2.Client(timeout=120, limits=httpx2.Limits(max_keepalive_connections=0))
NUM_GOOD_CLIENTS = 4
WRITE_TIMEOUT_S = 0.5
MAX_BODY_BYTES = 100_000


@dataclass(frozen=True)
class Plan:
    """kept_kib: what the process may grow by after warm_phases, all phases together."""

    phases: int
    warm_phases: int
    phase_s: float
    kept_kib: int
    num_garbage: int


SHORT = Plan(phases=6, warm_phases=3, phase_s=2.0, kept_kib=6 * 1024, num_garbage=100)
FULL = Plan(phases=24, warm_phases=6, phase_s=50.0, kept_kib=16 * 1024, num_garbage=10_000)


def shown(server: Live, body: dict[str, Any]) -> list[Any]:
    """What every choice of an answer comes to, without the ids that differ from request to request."""
    answer = CLIENT.post(f"{server.url}{CHAT}", json=body)
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        choices = answer.json()["choices"]
        return [[_told(each["message"]), each["logprobs"], each["finish_reason"]] for each in choices]
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    found: dict[int, list[Any]] = {}
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            whole = found.setdefault(choice["index"], [["", []], None, None])
            _add(whole[0], choice["delta"])
            whole[1:] = [choice["logprobs"] or whole[1], choice["finish_reason"] or whole[2]]
    return [found[index] for index in sorted(found)]


def _told(message: dict[str, Any]) -> list[Any]:
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
    return [message["content"] or "", calls]


def _add(told: list[Any], delta: dict[str, Any]) -> None:
    told[0] += delta.get("content") or ""
    for part in delta.get("tool_calls", ()):
        if part["index"] == len(told[1]):
            told[1].append([part["function"]["name"], ""])
        told[1][part["index"]][1] += part["function"]["arguments"]


@dataclass
class Load:
    """Clients that go on until told to stop. counts: requests of each kind of client."""

    server: Live
    alone: list[list[Any]]
    counts: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    rng: random.Random = field(default_factory=lambda: random.Random(5))

    def good(self) -> None:
        place = next(self.numbers) % len(WELL_BEHAVED)
        assert shown(self.server, WELL_BEHAVED[place]) == self.alone[place]

    def ever_new(self) -> None:
        """Prompts and schemas that nobody has sent before."""
        number = next(self.numbers)
        schema = {"type": "object", "properties": {f"p{number}": {"type": "string", "maxLength": 5}}}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        body = {**ASK, "messages": [{"role": "user", "content": f"go {number}"}], "max_tokens": 20, "stream": False}
        answer = CLIENT.post(f"{self.server.url}{CHAT}", json={**body, "response_format": form})
        assert answer.status_code == 200, answer.text

    def dies(self) -> None:
        die_mid_stream(self.server)

    def reads_nothing(self) -> None:
        made = begun(self.server, {**LONG, "logprobs": True, "top_logprobs": 5}, receive_buffer_bytes=2048)
        self.over.wait(2 * WRITE_TIMEOUT_S)
        made.close()

    def half_open(self) -> None:
        made = self.server.connect()
        made.sendall(request_bytes(LONG)[: self.rng.choice((0, 30, -10))])
        self.over.wait(1.3)  # longer than a body may take
        made.close()

    def bad_schema(self) -> None:
        send_bad_schema(self.server, self.counts["bad_schema"])

    def oversized(self) -> None:
        send_oversized(self.server, 3 * MAX_BODY_BYTES)

    def garbage(self) -> None:
        send_garbage(self.server, self.rng)

    def run(self, seconds: float) -> None:
        """All clients at once, for so long. Raises what one of them finds wrong."""
        kinds: list[Callable[[], None]] = [
            *[self.good] * NUM_GOOD_CLIENTS, self.ever_new, self.dies, self.reads_nothing, self.half_open,
            self.bad_schema, self.oversized, self.garbage,
        ]  # fmt: skip
        self.over.clear()
        with ThreadPoolExecutor(len(kinds)) as pool:
            clients = [pool.submit(self._go_on, kind) for kind in kinds]
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not any(client.done() for client in clients):
                time.sleep(0.05)
            self.over.set()
            for client in clients:
                client.result()

    def _go_on(self, kind: Callable[[], None]) -> None:
        while not self.over.is_set():
            kind()
            self.counts[kind.__name__] += 1


@pytest.fixture
def no_kept_logs() -> Iterator[None]:
    """pytest keeps every record that a test logs: a kilobyte for each request that is garbage."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("no_kept_logs")
def test_under_long_mixed_load_answers_stay_and_nothing_is_kept(full: bool) -> None:
    plan = FULL if full else SHORT
    backend = FakeBackend(len(TOKEN_BYTES), MAX_CONTEXT)
    backend.batches = Forgetful()
    limits = Limits(max_cached_types=20, compile_deadline_s=1.0)
    kept, files = list[int](), list[int]()
    with live(
        make_runtime(backend, limits=limits, kv_cache_memory=8 * 16 * 1000), max_body_bytes=MAX_BODY_BYTES,
        write_timeout_s=WRITE_TIMEOUT_S, body_timeout_s=1.0,
    ) as server:  # fmt: skip
        load = Load(server, [shown(server, body) for body in WELL_BEHAVED])
        assert len({json.dumps(each) for each in load.alone}) == len(WELL_BEHAVED)
        for _ in range(plan.phases):
            load.run(plan.phase_s)
            assert settled(server, 30.0), "something is held after all clients have left"
            kept.append(resident_kib())
            files.append(num_open_files())
        while load.counts["garbage"] < plan.num_garbage:
            load.garbage()
            load.counts["garbage"] += 1
        assert settled(server, 30.0)
        assert [shown(server, body) for body in WELL_BEHAVED] == load.alone
        finished = server.runtime.engine_stats().finished
    warm, after = kept[: plan.warm_phases], kept[plan.warm_phases :]
    growth_kib = max(after[-2:]) - max(warm)
    print(f"{dict(load.counts)}; KiB kept: {kept}; open files: {files}; ended: {dict(finished)}")
    assert growth_kib < plan.kept_kib, f"KiB after each phase: {kept}"
    assert max(files[plan.warm_phases :]) <= max(files[: plan.warm_phases]) + 3, f"open files after each phase: {files}"
    assert set(load.counts) == {
        "good", "ever_new", "dies", "reads_nothing", "half_open", "bad_schema", "oversized", "garbage"
    }  # fmt: skip
    assert load.counts["good"] > 10 * plan.phases and finished["cancelled"] > plan.phases
    assert finished.get("error", 0) == 0
