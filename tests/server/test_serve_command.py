"""`safegen serve` as a process of its own, on the default model: it starts, answers, drains on SIGTERM, ends with 0."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from safegen.cli import main

ROOT = Path(__file__).parents[2]
SECRET = "walrus"
KEY = "key-of-the-test-itself"


class Person(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=0, le=130)
    mood: Literal["good", "bad"]


@dataclass
class Process:
    popen: subprocess.Popen[str]
    url: str
    log: list[str]

    def client(self) -> OpenAI:
        return OpenAI(api_key=KEY, base_url=f"{self.url}/v1", max_retries=0, timeout=120)


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[Process]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SAFEGEN_API_KEYS": f"tests={KEY}"}
    environment.pop("SAFEGEN_MODEL", None)
    popen = subprocess.Popen(
        [sys.executable, "-m", "safegen.cli", "serve", "--port", "0", "--kv-cache-memory", str(64 << 20), *arguments],
        stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    log: list[str] = []
    assert popen.stderr is not None
    reader = threading.Thread(target=lambda: log.extend(popen.stderr or ()), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while not any("startup complete" in text for text in log):
            assert popen.poll() is None and time.monotonic() < deadline, log
            time.sleep(0.05)
        found = next(found for text in log if (found := re.search(r"http://[0-9.]+:\d+", text)))
        yield Process(popen, found[0], log)
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait(30)
        reader.join(5)


def test_it_serves_drains_on_sigterm_and_logs_no_content(tmp_path: Path) -> None:
    guards = tmp_path / "guards.yaml"
    guards.write_text("guards:\n  - {type: Never, phrases: [purple]}\n")
    with started("--guards", str(guards), "--model-name", "small", "--data-dir", str(tmp_path / "kept")) as process:
        client = process.client()
        asked: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": f"Ann, 34. Not {SECRET}."}]}
        parsed = client.chat.completions.parse(**asked, response_format=Person, max_tokens=60, seed=1)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        assert httpx2.get(f"{process.url}/v1/models").status_code == 401
        stream = client.chat.completions.create(
            **asked, stream=True, max_tokens=60, temperature=0, extra_body={"min_tokens": 60}
        )
        first = next(stream)
        process.popen.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{process.url}/ready", timeout=5).status_code != 503:
                    time.sleep(0.01)
                    continue
            break
        rest = list(stream)  # what had begun is finished
        assert first.id == rest[-1].id and rest[-1].choices[0].finish_reason == "length"
        assert process.popen.wait(30) == 0
    written = "".join(process.log)
    assert "POST /v1/chat/completions 200 key=tests" in written
    assert SECRET not in written and KEY not in written and "Ann" not in written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "--allow-anonymous"),
        (["--api-keys", "/nowhere/keys.yaml"], "cannot be read"),
        (["--guards", "/nowhere/guards.yaml"], "cannot be read"),
        (["--max-pending", "0"], "max_pending"),
        (["--port", "99999"], "cannot be listened at"),
        (["/nowhere/model.gguf", "--port", "0"], "model.gguf"),
    ],
)
def test_mistakes_in_the_call_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAFEGEN_API_KEYS", raising=False)
    assert main(["serve", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def test_importing_the_command_line_imports_no_server() -> None:
    code = (
        "import safegen.cli, sys; print([n for n in ('fastapi', 'uvicorn', 'starlette', 'torch') if n in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.strip() == "[]", ran.stderr


def test_the_document_of_a_port_is_json() -> None:
    with started() as process:
        document = httpx2.get(f"{process.url}/openapi.json").json()
        assert document["info"]["title"] == "safegen" and json.dumps(document)
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(30) == 0
