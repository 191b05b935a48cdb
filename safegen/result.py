"""`Result`: what one request came to. Frozen; made in one place (`safegen.run`).

`status` is the whole verdict. `ok` means that the text was parsed and passed an independent validator; every other
status has a reason in `error`. Nothing here raises except `unwrap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from safegen.engine.request import FinishReason, Timings, TokenLogprobs, Usage
from safegen.errors import (
    Cancelled,
    EngineError,
    GuardBlocked,
    InvalidOutput,
    Refused,
    SafegenError,
    Truncated,
)

if TYPE_CHECKING:
    from safegen.guards.audit import AuditRecord

T = TypeVar("T")

Status = Literal["ok", "truncated", "refused", "blocked", "invalid", "cancelled", "error"]

ERROR_OF_STATUS: Mapping[str, type[SafegenError]] = {
    "truncated": Truncated,
    "refused": Refused,
    "blocked": GuardBlocked,
    "invalid": InvalidOutput,
    "cancelled": Cancelled,
    "error": EngineError,
}


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """One answer.

    value: the typed value; None unless status is "ok" (or "truncated" with a value: free text so far, or an answer
    that was closed near the token limit). text: the exact text that came out. finish_reason: "stop", "length",
    "cancelled", "error", or None when the request was never run. thinking: the reasoning of a Think type, as far as it
    came; None for other types. audit: the guards' decisions, in their order. logprobs: one entry an output token, when
    asked for and no guard has changed the text. alternatives: the further samples of n > 1. choices: label ->
    probability, for Choice(..., probabilities=True). error: why status is not "ok".

    "blocked": a guard stopped the prompt or the answer. `.error`, a GuardBlocked, names guard, rule and path; text
    is what a stream had shown; value is None, or a Refusal where the guards have on_block=Refusal.
    """

    value: T | None
    text: str
    status: Status
    finish_reason: FinishReason | None
    usage: Usage = field(default=Usage(0, 0))
    audit: tuple[AuditRecord, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    timings: Timings = field(default=Timings(0.0, 0.0, 0.0))
    alternatives: tuple[Result[T], ...] = ()
    choices: Mapping[str, float] | None = None
    thinking: str | None = None
    error: Exception | None = None

    def unwrap(self) -> T:
        """The value of an "ok" result. Raises the error class of any other status; its `.result` is this Result."""
        if self.status == "ok":
            return cast(T, self.value)
        if self.status == "blocked" and self.value is not None:  # a Refusal was asked for in place of an exception
            return self.value
        reason = str(self.error) if self.error is not None else f"the answer ended with status {self.status!r}"
        failure = ERROR_OF_STATUS[self.status](reason)
        failure.result = self
        if isinstance(failure, GuardBlocked) and isinstance(self.error, GuardBlocked):
            for name in ("guard", "rule", "path", "stage"):
                setattr(failure, name, getattr(self.error, name))
        raise failure from self.error


def failed(status: Status, error: Exception, finish_reason: FinishReason | None = None) -> Result[T]:
    """The Result of a request that never ran."""
    return Result(value=None, text="", status=status, finish_reason=finish_reason, error=error)
