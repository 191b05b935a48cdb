"""The OpenAPI document is kept to: of what schemathesis makes of it, legal or not, nothing is answered with a fault,
and every answer has a status, a content type and a shape that the document has."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode

from safegen.server.app import create_app
from tests.server.harness import ASK, live, wait_for_blocks
from tests.server.harness import settings as server_settings
from tests.support.sdk_fakes import make_runtime

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PLAIN = ("/health", "/ready", "/metrics", "/v1/models")
OPERATIONS = {
    "POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models", "GET /v1/models/{model}", "GET /health",
    "GET /ready", "GET /metrics", "POST /v1/files", "GET /v1/files", "GET /v1/files/{id}", "DELETE /v1/files/{id}",
    "GET /v1/files/{id}/content", "POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{id}",
    "POST /v1/batches/{id}/cancel",
}  # fmt: skip


def test_the_document_has_every_route(tmp_path: Path) -> None:
    with contextlib.closing(make_runtime()) as runtime:
        document = create_app(runtime, server_settings(data_dir=tmp_path)).openapi()
    told = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert {name.replace("{model:path}", "{model}") for name in told} == OPERATIONS
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == ["m"]
    assert json.dumps(document).count('"$defs"') == 0


def short(case: Any) -> None:
    """Answers of a few tokens and no deadline of the client's own, which would end in 504, so that time goes into
    requests."""
    if isinstance(case.body, dict):
        case.body.pop("deadline_s", None)
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int) and case.body[name] > 8:
                case.body[name] = 8
        if "prompt" not in case.body and "max_completion_tokens" not in case.body:
            case.body.setdefault("max_tokens", 8)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["legal", "illegal"])
def test_what_is_made_of_the_document_finds_no_fault(mode: GenerationMode, tmp_path: Path, full: bool) -> None:
    statuses: list[int] = []
    with live(make_runtime(), data_dir=tmp_path) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        for number, result in enumerate(schema.get_all_operations()):
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and (operation.path in PLAIN or "{" in operation.path):
                continue  # nothing in them can be illegal
            examples = (400 if full else 60) if "completions" in operation.path else (60 if full else 10)

            @seeded(number)
            @settings(
                max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(operation.as_strategy(generation_mode=mode))
            def sent(case: Any) -> None:
                short(case)
                response = case.call(timeout=30)
                statuses.append(response.status_code)
                case.validate_response(response, checks=CHECKS)

            sent()
        assert wait_for_blocks(server.runtime)
        assert httpx2.post(f"{server.url}/v1/chat/completions", json={**ASK, "max_tokens": 1}).status_code == 200
    assert len(statuses) > 100
    assert {200, 404} <= set(statuses) if mode is GenerationMode.POSITIVE else 400 in statuses
