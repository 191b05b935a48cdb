"""The promise: of two upstreams one is killed again and again, and no request is lost that had not begun to stream.

Upstreams are processes that are killed with SIGKILL, in turn, and started again; the gateway is a process as well. A
second a kill here for a few seconds; SAFEGEN_FULL=1 takes five seconds a kill for a minute, and a minute with real
servers of the default model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from safegen.server.serving import listen
from tests.gateway.fake_upstream import words
from tests.gateway.harness import CHAT, data_of, joined

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_upstream.py")
LINE: dict[str, Any] = {"limits": httpx2.Limits(max_connections=None), "timeout": 60, "trust_env": False}


def free_port() -> int:
    with listen("127.0.0.1", 0, 1) as listening:
        port: int = listening.getsockname()[1]
        return port


class Killable:
    """An upstream as a process of its own, always at one port. command: from the port."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self.port = free_port()
        self._command = command(self.port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, env=environment, cwd=ROOT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def fake(name: str) -> Killable:
    return Killable(lambda port: [sys.executable, str(FAKE), str(port), name, "0.02"])


def real() -> Killable:
    more = ["--model-name", "m", "--kv-cache-memory", str(64 << 20)]
    return Killable(lambda port: [sys.executable, "-m", "safegen.cli", "serve", "--port", str(port), *more])


@contextlib.contextmanager
def gateway(upstreams: list[Killable], folder: Path) -> Iterator[str]:
    """Its URL. One that is told to end ends in good order."""
    listed = [{"name": f"u{number}", "url": each.url, "models": ["m"]} for number, each in enumerate(upstreams)]
    path = folder / "gateway.json"
    path.write_text(json.dumps({"upstreams": listed, "health": {"interval_s": 0.3}, "queue": {"wait_s": 30}}))
    command = [sys.executable, "-m", "safegen.cli", "gateway", str(path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while not any("startup complete" in line for line in log):
            assert process.poll() is None and time.monotonic() < deadline, log
            time.sleep(0.02)
        yield next(found for line in log if (found := re.search(r"http://[0-9.]+:\d+", line)))[0]
    finally:
        process.terminate()
        assert process.wait(30) == 0, log[-20:]
        reader.join(5)


class Load:
    """Clients that ask one request after the other, documents and streams in turn, and what became of them."""

    def __init__(self, http: httpx2.AsyncClient, num_words: int, *, expects: str | None) -> None:
        self._http = http
        self._num_words = num_words
        self._expects = expects
        self.counts: Counter[str] = Counter()
        self.lost: list[str] = []
        self.is_over = False

    async def client(self, number: int) -> None:
        while not self.is_over:
            number += 1
            try:
                await (self._stream if number % 2 else self._document)(number)
            except (httpx2.HTTPError, AssertionError) as error:
                self.lost.append(repr(error)[:300])

    def _body(self, number: int, **given: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"count to {number}"}]
        return {"model": "m", "messages": messages, "max_tokens": self._num_words, "seed": number, **given}

    async def _document(self, number: int) -> None:
        answer = await self._http.post(CHAT, json=self._body(number))
        assert answer.status_code == 200, answer.text
        content = answer.json()["choices"][0]["message"]["content"]
        assert self._expects is None or content == self._expects
        self.counts["document"] += 1

    async def _stream(self, number: int) -> None:
        """It may be cut once it has begun, and says so then; before that it is not lost."""
        async with self._http.stream("POST", CHAT, json=self._body(number, stream=True)) as answer:
            text = (await answer.aread()).decode()
            assert answer.status_code == 200, text
        events = data_of(text)
        last = events[-1]
        assert len(events) > 1, text  # it has begun
        if last == "[DONE]":
            assert self._expects is None or joined(events) == self._expects
            self.counts["stream"] += 1
        else:
            assert json.loads(last)["error"]["code"] == "upstream_failed"
            assert self._expects is None or self._expects.startswith(joined(events))
            self.counts["cut"] += 1


async def kill_in_turn(upstreams: list[Killable], every_s: float, for_s: float) -> int:
    """One is killed every so often, and started again at once: the next one, as soon as the other one takes requests.
    Returns how many kills that were."""
    number, ends = 0, time.monotonic() + for_s
    async with httpx2.AsyncClient(**LINE) as http:
        while time.monotonic() < ends:
            await asyncio.sleep(every_s)
            victim, other = upstreams[number % 2], upstreams[(number + 1) % 2]
            while not await is_ready(http, other):
                await asyncio.sleep(0.05)
            await asyncio.to_thread(victim.kill)
            victim.start()
            number += 1
    return number


async def under_fire(url: str, upstreams: list[Killable], load: dict[str, Any], every_s: float, for_s: float) -> None:
    num_clients = load.pop("num_clients")
    async with httpx2.AsyncClient(base_url=url, **LINE) as http:
        running = Load(http, **load)
        clients = [asyncio.create_task(running.client(number * 1000 + number)) for number in range(num_clients)]
        kills = await kill_in_turn(upstreams, every_s, for_s)
        running.is_over = True
        async with asyncio.timeout(60):
            await asyncio.gather(*clients)
        metrics = (await http.get("/metrics")).text
    print(f"{kills} kills, {dict(running.counts)}, lost: {running.lost}")
    assert running.lost == []
    assert running.counts["document"] > kills and running.counts["stream"] > kills and running.counts["cut"] > 0
    [retries] = re.findall(r'further_attempts_total\{kind="retry"\} (\d+)', metrics)
    assert int(retries) >= kills // 2  # kills were felt
    outstanding = re.findall(r"upstream_outstanding\{[^}]*\} (\S+)", metrics)
    assert len(outstanding) == 2 and set(outstanding) == {"0.0"}


async def all_ready(upstreams: list[Killable]) -> None:
    async with httpx2.AsyncClient(**LINE) as http, asyncio.timeout(90):
        for each in upstreams:
            while not await is_ready(http, each):
                await asyncio.sleep(0.05)


async def is_ready(http: httpx2.AsyncClient, upstream: Killable) -> bool:
    try:
        return (await http.get(f"http://127.0.0.1:{upstream.port}/ready")).status_code == 200
    except httpx2.HTTPError:
        return False


def run(upstreams: list[Killable], folder: Path, body: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    for each in upstreams:
        each.start()
    try:
        asyncio.run(all_ready(upstreams))
        with gateway(upstreams, folder) as url:
            asyncio.run(body(url))
    finally:
        for each in upstreams:
            each.kill()


def test_no_request_that_had_not_begun_is_lost(tmp_path: Path, full: bool) -> None:
    upstreams = [fake("one"), fake("two")]
    every_s, for_s = (5.0, 60.0) if full else (1.0, 4.0)
    load: dict[str, Any] = {"num_clients": 12, "num_words": 10, "expects": words(10)}
    run(upstreams, tmp_path, lambda url: under_fire(url, upstreams, load, every_s, for_s))


@pytest.mark.full
def test_no_request_to_real_servers_is_lost(tmp_path: Path) -> None:
    upstreams = [real(), real()]
    load: dict[str, Any] = {"num_clients": 4, "num_words": 12, "expects": None}
    run(upstreams, tmp_path, lambda url: under_fire(url, upstreams, load, 5.0, 60.0))
