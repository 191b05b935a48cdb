"""`safegen gateway` as a process of its own: it needs no model and no torch, drains on SIGTERM, and ends with 0."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from safegen.cli import main
from tests.gateway.fake_upstream import FakeUpstream, words
from tests.gateway.harness import ASK, CHAT, data_of, joined

ROOT = Path(__file__).parents[2]
KEY, SECRET = "key-of-the-test-itself", "walrus"
CONFIG = "upstreams:\n  - {name: one, url: 'http://127.0.0.1:%d/v1', models: [m]}\n"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.asynccontextmanager
async def started(path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, list[str]]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "safegen.cli", "gateway", str(path), "--port", "0",
        stderr=asyncio.subprocess.PIPE, env={**ENVIRONMENT, "SAFEGEN_API_KEYS": f"tests={KEY}"}, cwd=ROOT,
    )  # fmt: skip
    log: list[str] = []
    try:
        assert process.stderr is not None
        while not log or "startup complete" not in log[-1]:
            line = await asyncio.wait_for(process.stderr.readline(), 60)
            assert line, log
            log.append(line.decode())
        url = next(line for line in log if " at http" in line).split(" at ")[1].strip().removesuffix("/v1")
        yield process, url, log
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_it_answers_drains_on_sigterm_and_logs_no_content(tmp_path: Path) -> None:
    async def body() -> None:
        fake = FakeUpstream(step_s=0.1)
        await fake.start()
        (tmp_path / "gateway.yaml").write_text(CONFIG % fake.port)
        headers = {"authorization": f"Bearer {KEY}"}
        async with started(tmp_path / "gateway.yaml") as (process, url, log):
            async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as http:
                asked = {**ASK, "stream": True, "max_tokens": 8, "user": SECRET}
                async with http.stream("POST", CHAT, json=asked) as answer:
                    text = ""
                    async for piece in answer.aiter_text():
                        if not text:
                            process.send_signal(signal.SIGTERM)
                        text += piece
                assert joined(data_of(text)) == words(8)  # what had begun is finished
                with pytest.raises(httpx2.TransportError):
                    await http.post(CHAT, json=ASK)
            assert await asyncio.wait_for(process.wait(), 30) == 0
            log.append((await process.stderr.read()).decode())
        await fake.stop()
        written = "".join(log)
        assert "POST /v1/chat/completions 200 key=tests" in written
        assert SECRET not in written and KEY not in written and str(fake.port) not in written

    asyncio.run(asyncio.wait_for(body(), 90))


@pytest.mark.parametrize(
    ("document", "arguments", "message"),
    [
        (None, [], "cannot be read"),
        ("upstreams: [", [], "no YAML"),
        ("upstreams: []", [], "upstreams"),
        (CONFIG % 1 + "retry: {}\n", [], "retry"),
        (CONFIG.replace("models", "key_env: SAFEGEN_ABSENT, models") % 1, [], "SAFEGEN_ABSENT"),
        (CONFIG % 1, ["--host", "0.0.0.0"], "--allow-anonymous"),
        (CONFIG % 1, ["--port", "99999"], "cannot be listened at"),
        (CONFIG % 1, ["--api-keys", "/nowhere/keys.yaml"], "cannot be read"),
    ],
)
def test_mistakes_in_the_call_are_named(
    document: str | None,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SAFEGEN_API_KEYS", raising=False)
    path = tmp_path / "gateway.yaml"
    if document is not None:
        path.write_text(document)
    assert main(["gateway", str(path), *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def test_a_gateway_needs_no_torch_and_no_native_code() -> None:
    code = (
        "import safegen.gateway.app, safegen.server.serving, sys; "
        "print([n for n in ('torch', 'transformers', 'safegen.llm') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT)
    assert ran.stdout.strip() == "[]", ran.stderr
