"""Who may call, how often, and that one key's use tells and takes nothing of another's."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from safegen.errors import RequestError
from safegen.server import auth
from safegen.server.admission import Admission
from safegen.server.auth import ANONYMOUS, ApiKey, Keyring, key_digest, load_keys
from safegen.server.errors import ApiError
from safegen.server.settings import ServerSettings, check_exposure, default_model_name
from tests.server.harness import ASK, InProcess, served, slow_runtime

ONE, TWO = "key-of-the-first-one", "key-of-the-other-one"
CHAT = "/v1/chat/completions"


def key(name: str, secret: str, **limits: Any) -> ApiKey:
    return ApiKey(name, key_digest(secret), **limits)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_key_is_needed_where_there_are_keys() -> None:
    async def body(server: InProcess) -> None:
        for path in ("/v1/models", "/metrics"):
            for headers in ({}, bearer("wrong"), {"authorization": ONE}, {"authorization": f"Basic {ONE}"}, bearer("")):
                answer = await server.http.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert ONE not in answer.text
            assert (await server.http.get(path, headers=bearer(ONE))).status_code == 200
        assert (await server.post(CHAT, ASK)).status_code == 401
        assert (await server.post(CHAT, {**ASK, "max_tokens": 1}, headers=bearer(TWO))).status_code == 200
        for path in ("/health", "/ready"):
            assert (await server.http.get(path)).status_code == 200
        assert (await server.http.get("/openapi.json")).json()["security"] == [{"key": []}]

    served(body, keys=(key("one", ONE), key("two", TWO)))


def test_every_key_is_compared_whatever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare_digest(left, right)

    monkeypatch.setattr(auth.hmac, "compare_digest", counted)
    keyring = Keyring([key(f"k{number}", f"a-long-secret-{number:04}") for number in range(5)])
    for secret in ("a-long-secret-0000", "a-long-secret-0004", "none of them"):
        compared.clear()
        try:
            assert keyring.authenticate(f"Bearer {secret}").name in ("k0", "k4")
        except ApiError as error:
            assert error.status == 401
        assert len(compared) == 5
        assert {len(side) for pair in compared for side in pair} == {32}


def test_a_rate_refuses_with_the_seconds_to_wait() -> None:
    now = [0.0]
    admission = Admission(10, clock=lambda: now[0])
    limited = key("one", ONE, requests_per_minute=60)  # ten at once, then one a second
    for _ in range(10):
        admission.enter(limited).close()
    with pytest.raises(ApiError) as refused:
        admission.enter(limited)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.headers["Retry-After"] == "1"
    admission.enter(key("two", TWO)).close()
    now[0] += 1.01
    admission.enter(limited).close()
    with pytest.raises(ApiError):
        admission.enter(limited)


def test_a_key_has_its_own_concurrency() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "max_tokens": 30, "min_tokens": 30}
        answers = await asyncio.gather(*(server.post(CHAT, asked, headers=bearer(ONE)) for _ in range(4)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
        assert all(answer.json()["error"]["code"] == "concurrency_limit_exceeded" for answer in refused)
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        other, mine = await asyncio.gather(
            server.post(CHAT, asked, headers=bearer(TWO)), server.post(CHAT, asked, headers=bearer(ONE))
        )
        assert (other.status_code, mine.status_code) == (200, 200)

    served(body, slow_runtime(0.005), keys=(key("one", ONE, max_concurrent=2), key("two", TWO)))


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "max_tokens": 30, "min_tokens": 30}
        answers = await asyncio.gather(*(server.post(CHAT, {**asked, "n": 2}) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "server_overloaded" and "retry-after" in refused.headers
        answer = await server.post(CHAT, {**asked, "n": 5})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert server.app.state.server.admission.num_pending == 0
        assert (await server.post(CHAT, asked)).status_code == 200

    served(body, slow_runtime(0.005), max_pending=4)


def test_refused_requests_leave_no_trace_in_the_queue() -> None:
    async def body(server: InProcess) -> None:
        for wrong in ({"n": 99}, {"messages": []}, {"response_format": {"type": "regex", "pattern": "("}}):
            await server.post(CHAT, {**ASK, **wrong})
        await server.http.post(CHAT, content=b"{")
        admission = server.app.state.server.admission
        assert admission.num_pending == 0
        assert [account.num_running for account in admission._accounts.values()] == [0]

    served(body)


def test_keys_share_no_cached_prompts() -> None:
    async def body(server: InProcess) -> None:
        asked = {**ASK, "messages": [{"role": "user", "content": "the same words " * 20}], "max_tokens": 1}

        async def cached(secret: str) -> int:
            usage = (await server.post(CHAT, asked, headers=bearer(secret))).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert await cached(ONE) == 0
        assert await cached(ONE) > 200
        assert await cached(TWO) == 0
        assert await cached(TWO) > 200

    served(body, keys=(key("one", ONE), key("two", TWO)))


def test_a_draining_server_takes_nothing_new() -> None:
    async def body(server: InProcess) -> None:
        server.app.state.server.admission.is_draining = True
        assert (await server.http.get("/ready")).status_code == 503
        assert (await server.http.get("/health")).status_code == 200
        answer = await server.post(CHAT, ASK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in answer.headers

    served(body)


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    digest = hashlib.sha256(ONE.encode()).hexdigest()
    path.write_text(
        f"keys:\n  - {{name: one, key_sha256: {digest}, requests_per_minute: 60, max_concurrent: 4}}\n"
        "  - {name: two, key_env: SECOND}\n"
    )
    keys = load_keys(path, {"SECOND": TWO, "SAFEGEN_API_KEYS": f"three={ONE}3, four={TWO}4"})
    assert [each.name for each in keys] == ["one", "two", "three", "four"]
    assert (keys[0].requests_per_minute, keys[0].max_concurrent) == (60, 4)
    keyring = Keyring(keys)
    assert [keyring.authenticate(f"Bearer {secret}").name for secret in (ONE, TWO, f"{ONE}3")] == [
        "one",
        "two",
        "three",
    ]
    assert ONE not in repr(keys) and keys[0].digest.hex() not in repr(keys)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "keys: []", "keys: [1]", "keys: [{name: a}]", "keys: [{name: a, key: short}]", "other: 1", "keys: {",
     "keys: [{name: a, key_env: NOT_SET}]", "keys: [{name: a, key_sha256: ff}]", f"keys: [{{name: a b, key: {ONE}}}]",
     f"keys: [{{name: a, key: {ONE}, color: 1}}]", f"keys: [{{name: a, key: {ONE}, max_concurrent: 0}}]",
     f"keys: [{{name: a, key: {ONE}, requests_per_minute: -1}}]"],
)  # fmt: skip
def test_a_wrong_key_file_is_refused_without_its_keys(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(RequestError) as refused:
        load_keys(path, {})
    assert ONE not in str(refused.value)


def test_settings_are_checked_by_name() -> None:
    for wrong in (
        {"max_pending": 0}, {"model_names": ()}, {"request_timeout_s": -1}, {"max_body_bytes": 1.5},
        {"keys": (key("a", ONE), key("a", TWO))}, {"keys": (key("a", ONE), key("b", ONE))},
        {"keys": (key("a", ONE),), "cors_origins": ("*",)},
    ):  # fmt: skip
        with pytest.raises(RequestError):
            ServerSettings(**wrong)  # type: ignore[arg-type]


def test_a_server_without_keys_stays_on_this_machine() -> None:
    check_exposure("127.0.0.1", ServerSettings(), allow_anonymous=False)
    check_exposure("0.0.0.0", ServerSettings(keys=(key("a", ONE),)), allow_anonymous=False)
    check_exposure("0.0.0.0", ServerSettings(), allow_anonymous=True)
    with pytest.raises(RequestError, match="allow-anonymous"):
        check_exposure("0.0.0.0", ServerSettings(), allow_anonymous=False)
    assert Keyring(()).authenticate(None) is ANONYMOUS


def test_models_are_named_after_their_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SAFEGEN_MODEL", raising=False)
    assert default_model_name(None) == "default"
    assert default_model_name("/models/small.Q8.gguf") == "small.Q8"
    assert default_model_name("org/name") == "org/name"
    assert default_model_name(tmp_path) == tmp_path.name
