"""Jobs whose pages are worth looking at: a fake model with latencies, lengths, failures and drafts of every kind."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from safegen.engine.request import Timings, Usage
from safegen.errors import GuardBlocked, RequestError, SchemaError, Truncated
from safegen.result import Result, failed
from tests.support.job_fakes import FakeRuntime

SECRET = "the row says so"  # content of rows, which no page may show
HOSTILE_IDS = [
    "<script>alert(document.title)</script>", '"><img src=x onerror=console.log(1)>', "'; DROP TABLE rows; --",
    "\u202egpj.elif", "שורה 7", "x" * 5000, "\u2066\u200f\u0000", "a\nb\tc", "\ud800", "",
]  # fmt: skip


class VariedRuntime(FakeRuntime):
    """Answers by a hash of the prompt. "@truncated", "@guard", "@schema" and those of FakeRuntime fail."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.model_name = "fake-135m-<q8>.gguf"

    def _answer(self, text: str, spec: Any, seed: int | None) -> Result[Any]:
        draw = int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8], 16) / 2**32
        total_ms = 80 * math.exp(1.1 * (draw * 997 % 1 + draw * 89 % 1 + draw * 7 % 1 - 1.5) * 2)
        tokens = 12 + int(60 * (draw * 31 % 1) * (draw * 17 % 1))
        usage = Usage(40, tokens, 16 if draw > 0.2 else 0, drafted=tokens, accepted=tokens * 2 // 3, forwards=tokens)
        timings = Timings(1.0, 5.0, total_ms)
        if "@truncated" in text:
            error: Exception = Truncated(f"the limit came after {SECRET}")
            return Result(None, SECRET, "truncated", "length", usage, timings=timings, error=error)
        if "@guard" in text:
            error = GuardBlocked("stopped", guard="pii", rule="email", stage="output")
            return Result(None, "", "blocked", "stop", usage, timings=timings, error=error)
        if "@schema" in text:
            return failed("refused", SchemaError(f"no: {SECRET}", pointer=f"/{SECRET}", keyword="minimum"))
        if "@odd" in text:
            return failed("refused", SchemaError("no", keyword=SECRET))
        if "@field" in text:
            return failed("refused", RequestError(f"{SECRET!r} is not served", field="max_tokens"))
        if "@crash" in text:
            return failed("error", ValueError(SECRET), "error")
        result = super()._answer(text, spec, seed)
        if result.status != "ok":
            return result
        return Result(SECRET, SECRET, "ok", "stop", usage, timings=timings)


def varied_rows(count: int) -> list[dict[str, Any]]:
    """Most are ok; ids of the first are hostile, and these rows fail in two ways, so that a page names them all."""
    marks = {3: "@truncated", 5: "@guard", 11: "@schema", 13: "@long", 17: "@error", 19: "@field", 23: "@crash"}
    rows: list[dict[str, Any]] = []
    for number in range(count):
        mark = next((text for step, text in marks.items() if number % (step * 9) == step), "")
        if number < len(HOSTILE_IDS):
            mark = ("@guard", "@truncated")[number % 2]
        row_id = HOSTILE_IDS[number] if number < len(HOSTILE_IDS) else f"ticket-{number:05d}"
        rows.append({"id": row_id, "text": f"{SECRET} {number} {mark}"})
    return rows
