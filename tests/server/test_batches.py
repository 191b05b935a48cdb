"""Files and batches: OpenAI's lines in, OpenAI's lines out, each answered once, also across a restart."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from safegen.errors import JobLocked
from safegen.runtime import Runtime
from safegen.server.auth import ApiKey, key_digest
from tests.server.harness import ASK, InProcess, in_process, live, served, slow_runtime
from tests.support.sdk_fakes import ScriptedBackend, make_runtime

CHAT = "/v1/chat/completions"
ONE, TWO = "key-of-the-first-one", "key-of-the-other-one"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
TYPED = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}


def line(custom_id: str, body: dict[str, Any], **change: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | change)


def lines() -> list[str]:
    return [
        line("text", {**ASK, "max_tokens": 6}),
        line("typed", {**ASK, "response_format": TYPED}),
        line("tools", {**ASK, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}),
        line("two", {**ASK, "n": 2, "seed": 5, "max_tokens": 6}),
        line("unknown", {**ASK, "temprature": 1}),
        line("model", {**ASK, "model": "other"}),
        line("stream", {**ASK, "stream": True}),
        line("schema", {**ASK, "response_format": {"type": "regex", "pattern": "("}}),
    ]


async def upload(client: AsyncOpenAI, given: list[str]) -> str:
    file = await client.files.create(file=("in.jsonl", "\n".join(given).encode()), purpose="batch")
    assert (file.filename, file.purpose, file.bytes) == ("in.jsonl", "batch", len("\n".join(given).encode()))
    return file.id


async def started(client: AsyncOpenAI, given: list[str], endpoint: Any = CHAT) -> Any:
    file_id = await upload(client, given)
    return await client.batches.create(
        input_file_id=file_id, endpoint=endpoint, completion_window="24h", metadata={"night": "1"}
    )


async def ended(client: AsyncOpenAI, batch_id: str, within_s: float = 30.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        batch = await client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled"):
            return batch
        await asyncio.sleep(0.02)
    raise AssertionError(batch)


async def content(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    text = (await client.files.content(file_id)).text
    return {each["custom_id"]: each for each in map(json.loads, text.splitlines())}


def test_a_batch_answers_every_line_as_the_endpoint_would(tmp_path: Path) -> None:
    async def body(server: InProcess) -> None:
        client = server.openai
        batch = await ended(client, (await started(client, lines())).id)
        assert batch.status == "completed" and batch.metadata == {"night": "1"}
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (8, 4, 4)
        output, errors = await content(client, batch.output_file_id), await content(client, batch.error_file_id)
        assert sorted(output) == ["text", "tools", "two", "typed"]
        assert sorted(errors) == ["model", "schema", "stream", "unknown"]
        assert all(each["error"] is None and each["response"]["status_code"] == 200 for each in output.values())
        documents = {name: each["response"]["body"] for name, each in output.items()}
        assert isinstance(json.loads(documents["typed"]["choices"][0]["message"]["content"])["a"], bool)
        call = documents["tools"]["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "f" and isinstance(json.loads(call["arguments"])["a"], bool)
        alone = (await server.post(CHAT, {**ASK, "n": 2, "seed": 5, "max_tokens": 6})).json()
        assert documents["two"]["choices"] == alone["choices"] and documents["two"]["usage"]["completion_tokens"] == 12
        told = {
            name: (each["response"]["status_code"], each["response"]["body"]["error"]) for name, each in errors.items()
        }
        assert told["unknown"][0] == 400 and told["unknown"][1]["param"] == "temprature"
        assert told["model"][0] == 404 and told["stream"][1]["param"] == "stream"
        assert told["schema"][1]["code"] == "invalid_grammar"
        assert [each.id async for each in await client.batches.list()] == [batch.id]
        assert len([each async for each in await client.files.list()]) == 3
        assert not list((tmp_path / "batches" / batch.id).glob("*"))

    served(body, data_dir=tmp_path)


def test_plain_completions_are_batched_too(tmp_path: Path) -> None:
    async def body(server: InProcess) -> None:
        asked = {"model": "m", "prompt": "a\n", "temperature": 0}
        given = [
            line("a", asked, url="/v1/completions"),
            line("b", {**asked, "prompt": ["a", "b"]}, url="/v1/completions"),
        ]
        batch = await ended(server.openai, (await started(server.openai, given, "/v1/completions")).id)
        output = await content(server.openai, batch.output_file_id)
        errors = await content(server.openai, batch.error_file_id)
        assert output["a"]["response"]["body"]["choices"][0]["text"] == "hello there"
        assert errors["b"]["response"]["body"]["error"]["param"] == "prompt"

    served(body, make_runtime(ScriptedBackend("hello there")), data_dir=tmp_path)


@pytest.mark.parametrize(
    ("given", "code", "number"),
    [
        ([""], "empty_file", None),
        (["{"], "invalid_json_line", 1),
        (["[]"], "invalid_json_line", 1),
        ([line("a", ASK), line("a", ASK)], "duplicate_custom_id", 2),
        ([line("a", ASK, url="/v1/embeddings")], "mismatched_endpoint", 1),
        ([line("a", ASK, method="GET")], "invalid_method", 1),
        ([line("", ASK)], "invalid_custom_id", 1),
        ([line("a", ASK, mood=1)], "unknown_parameter", 1),
        ([json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": 1})], "invalid_body", 1),
    ],
)
def test_a_file_that_is_no_batch_fails_with_its_line(
    given: list[str], code: str, number: int | None, tmp_path: Path
) -> None:
    async def body(server: InProcess) -> None:
        batch = await ended(server.openai, (await started(server.openai, given)).id)
        assert batch.status == "failed" and batch.errors is not None and batch.failed_at is not None
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, number)

    served(body, data_dir=tmp_path)


def test_keys_see_their_own_files_and_batches_alone(tmp_path: Path) -> None:
    keys = (ApiKey("one", key_digest(ONE)), ApiKey("two", key_digest(TWO)))

    async def body(server: InProcess) -> None:
        mine, theirs = server.openai, server.openai.with_options(api_key=TWO)
        batch = await ended(mine, (await started(mine, lines()[:2])).id)
        for call in (
            theirs.files.retrieve(batch.input_file_id), theirs.files.content(batch.output_file_id),
            theirs.files.delete(batch.input_file_id), theirs.batches.retrieve(batch.id),
            theirs.batches.cancel(batch.id),
            theirs.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await call
        assert [each async for each in await theirs.files.list()] == []
        assert [each async for each in await theirs.batches.list()] == []
        assert (await mine.files.delete(batch.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await mine.files.content(batch.input_file_id)

    served(body, key=ONE, keys=keys, data_dir=tmp_path)


def test_a_batch_is_cancelled_with_what_is_done(tmp_path: Path) -> None:
    async def body(server: InProcess) -> None:
        given = [line(f"row {number}", {**ASK, "max_tokens": 5, "min_tokens": 5}) for number in range(200)]
        batch = await started(server.openai, given)
        while (await server.openai.batches.retrieve(batch.id)).request_counts.completed < 3:
            await asyncio.sleep(0.01)
        assert (await server.openai.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(server.openai, batch.id)
        assert batch.status == "cancelled" and batch.cancelled_at is not None
        done = batch.request_counts.completed
        assert 3 <= done < 200 and len(await content(server.openai, batch.output_file_id)) == done
        with pytest.raises(openai.ConflictError):
            await server.openai.batches.cancel(batch.id)

    served(body, slow_runtime(0.01), data_dir=tmp_path)


def test_a_batch_goes_on_after_a_restart_and_each_line_is_answered_once(tmp_path: Path) -> None:
    given = [line(f"row {number}", {**ASK, "max_tokens": 5, "min_tokens": 5}) for number in range(60)]

    async def whole(runtime: Runtime, folder: Path, batch_id: str | None, stop_after: int | None) -> Any:
        async with in_process(runtime, data_dir=folder) as server:
            if batch_id is None:
                batch_id = (await started(server.openai, given)).id
            if stop_after is not None:
                while (await server.openai.batches.retrieve(batch_id)).request_counts.completed < stop_after:
                    await asyncio.sleep(0.01)
                return batch_id, None
            batch = await ended(server.openai, batch_id)
            assert batch.status == "completed"
            return batch_id, await content(server.openai, batch.output_file_id)

    def texts(output: dict[str, Any]) -> dict[str, str]:
        return {name: each["response"]["body"]["choices"][0]["message"]["content"] for name, each in output.items()}

    batch_id, _ = asyncio.run(whole(slow_runtime(0.01), tmp_path / "a", None, 5))
    journal = tmp_path / "a" / "batches" / batch_id / "journal.jsonl"
    assert 5 <= len(journal.read_bytes().splitlines()) < 60
    _, resumed = asyncio.run(whole(make_runtime(), tmp_path / "a", batch_id, None))
    _, straight = asyncio.run(whole(make_runtime(), tmp_path / "b", None, None))
    assert len(resumed) == 60 and texts(resumed) == texts(straight)


def test_uploads_are_bounded_and_checked(tmp_path: Path) -> None:
    async def body(server: InProcess) -> None:
        async def answer(**form: Any) -> tuple[int, str, str | None]:
            got = await server.http.post("/v1/files", **form)
            return got.status_code, got.json()["error"]["code"], got.json()["error"]["param"]

        file = {"file": ("a", io.BytesIO(b"x"))}
        assert await answer(json={}) == (400, "invalid_value", "file")
        assert await answer(files=file, data={"purpose": "batch", "mood": "1"}) == (400, "unknown_parameter", "mood")
        assert await answer(files=file, data={"purpose": "assistants"}) == (400, "invalid_value", "purpose")
        assert await answer(files={"other": ("a", b"x")}, data={"purpose": "batch"}) == (
            400,
            "unknown_parameter",
            "other",
        )
        big = {"file": ("a", io.BytesIO(b"x" * 200_000))}
        assert (await answer(files=big, data={"purpose": "batch"}))[:2] == (413, "request_too_large")
        for _ in range(3):
            await upload(server.openai, ["x" * 50_000])
        full = {"file": ("a", io.BytesIO(b"x" * 50_001))}
        assert (await answer(files=full, data={"purpose": "batch"}))[:2] == (400, "storage_limit_exceeded")
        strange = {"file": ("../../etc/\n" + "n" * 400, b"x")}
        got = (await server.http.post("/v1/files", files=strange, data={"purpose": "batch"})).json()
        assert "\n" not in got["filename"] and len(got["filename"]) <= 255
        assert {path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"} == {
            ".json",
            ".jsonl",
        }
        for identity in ("..", "../lock", "file-" + "0" * 32, "x" * 5000):
            assert (await server.http.get(f"/v1/files/{identity}/content")).status_code == 404

    served(body, data_dir=tmp_path, max_file_bytes=100_000, max_stored_bytes=200_000)


def test_without_a_folder_there_are_no_files() -> None:
    async def body(server: InProcess) -> None:
        for path in ("/v1/files", "/v1/batches"):
            assert (await server.http.get(path)).json()["error"]["code"] == "not_found"

    served(body)


def test_one_server_uses_a_folder(tmp_path: Path) -> None:
    async def body(server: InProcess) -> None:
        with pytest.raises(JobLocked):
            async with in_process(make_runtime(), data_dir=tmp_path):
                pass

    served(body, data_dir=tmp_path)


def test_the_plain_client_runs_a_batch_over_a_socket(tmp_path: Path) -> None:
    with live(make_runtime(), data_dir=tmp_path) as server, server.openai() as client:
        file = client.files.create(file=io.BytesIO("\n".join(lines()).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        deadline = time.monotonic() + 30
        while batch.status not in ("completed", "failed") and time.monotonic() < deadline:
            time.sleep(0.05)
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed" and batch.output_file_id is not None
        assert len(client.files.content(batch.output_file_id).text.splitlines()) == 4
