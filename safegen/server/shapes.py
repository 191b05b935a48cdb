"""OpenAI's documents: chat completions, plain completions, their chunks, usage and log-probabilities."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from safegen.engine.request import TokenLogprobs
from safegen.result import Result

LEAST_LOGPROB = -9999.0  # what OpenAI's API says for a token that cannot be


@dataclass(frozen=True, slots=True)
class Heading:
    """What all chunks of an answer begin with."""

    id: str
    kind: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def document(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """usage: left out where it is None."""
        made: dict[str, Any] = {
            "id": self.id, "object": self.kind, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "choices": choices,
        }  # fmt: skip
        if usage is not None:
            made["usage"] = usage
        return made


class ChunkWriter:
    """Chunks of one stream as JSON: what they have in common is encoded once."""

    def __init__(self, heading: Heading, *, with_usage: bool) -> None:
        whole = encoded(heading.document([]))
        self._before = whole.removesuffix(b"]}")
        self._after = b'],"usage":null}' if with_usage else b"]}"

    def chunk(self, choice: dict[str, Any]) -> bytes:
        return self._before + encoded(choice) + self._after


def encoded(document: Any) -> bytes:
    """JSON in UTF-8; in ASCII escapes where a text has none."""
    try:
        return _UNICODE.encode(document).encode()
    except UnicodeEncodeError:
        return _ASCII.encode(document).encode()


_UNICODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ASCII = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"


def fingerprint_of(model_fingerprint: str) -> str:
    return f"fp_{model_fingerprint[:12] or 'none'}"


def usage_of(results: Sequence[Result[Any]]) -> dict[str, Any]:
    """results: one a prompt. The prompt counts once, whatever n is."""
    samples = [each for result in results for each in (result, *result.alternatives)]
    prompt = sum(result.usage.prompt_tokens for result in results)
    completion = sum(each.usage.completion_tokens for each in samples)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(result.usage.cached_tokens for result in results)},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": sum(each.usage.accepted for each in samples),
            "rejected_prediction_tokens": sum(each.usage.drafted - each.usage.accepted for each in samples),
        },
    }


class LogprobShapes:
    """Log-probabilities are those of the law that a token was drawn from, its output type included; `raw_logprob` is
    the model's own."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self._token_bytes = token_bytes

    def chat(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        """None: nobody asked, or a guard has changed the text, whose tokens would tell what it took out."""
        if entries is None:
            return None
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: TokenLogprobs) -> dict[str, Any]:
        return {
            **self._token(entry.token_id, entry.constrained),
            "raw_logprob": _finite(entry.raw),
            "top_logprobs": [self._token(token, value) for token, value in entry.top_constrained],
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    def plain(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        """As /v1/completions has them."""
        if entries is None:
            return None
        texts = [self._text(entry.token_id) for entry in entries]
        offsets, at = [], 0
        for text in texts:
            offsets.append(at)
            at += len(text)
        tops = [
            {self._text(token): _finite(value) for token, value in reversed(entry.top_constrained)} for entry in entries
        ]
        return {
            "tokens": texts,
            "token_logprobs": [_finite(entry.constrained) for entry in entries],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return self._bytes(token_id).decode(errors="replace")

    def _bytes(self, token_id: int) -> bytes:
        return self._token_bytes[token_id] or b""


def _finite(value: float) -> float:
    return max(LEAST_LOGPROB, value) if value == value else LEAST_LOGPROB
