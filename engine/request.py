"""What crosses the engine's door: sampling parameters, requests, step plans, events. All frozen.

The engine never sees schemas, guards or text, except stop strings, which must end the step in which they occur.
This module imports neither torch nor transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from safegen.errors import RequestError

if TYPE_CHECKING:
    from safegen.engine.origins import Origin
    from safegen.grammars.constraint import Constraint

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Every field is checked at construction; RequestError names the field.

    temperature: >= 0; 0 is greedy. top_p: (0, 1]. top_k: >= 0, 0 is off. min_p: [0, 1]. max_tokens: >= 1, None takes
    what the context leaves, at most 1,024. min_tokens: stop ids are masked before it (a complete constraint has the
    last word). stop: strings that end the output and are not part of it. stop_ids: further stop token ids. seed: None
    draws one. n: parallel samples. logprobs: how many top entries to report a token, None is off, 0 the token alone.
    repetition_penalty: [1e-6, 1e6], 1 is off. presence_penalty, frequency_penalty: [-2, 2]. logit_bias: token id ->
    bias, [-1e30, 1e30] or -inf. (The bounds keep scores finite in float32.)
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._as_tuple("stop")
        self._as_tuple("stop_ids")
        self._number("temperature", 0.0, math.inf)
        self._number("top_p", 0.0, 1.0, open_low=True)
        self._number("min_p", 0.0, 1.0)
        self._number("repetition_penalty", 1e-6, 1e6)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._integer("top_k", 0)
        self._integer("min_tokens", 0)
        self._integer("n", 1, 128)
        if self.max_tokens is not None:
            self._integer("max_tokens", 1)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}", field="min_tokens"
                )
        if self.logprobs is not None:
            self._integer("logprobs", 0)
        if self.seed is not None:
            self._integer("seed", -(2**63), 2**64 - 1)
        for text in self.stop:
            if not isinstance(text, str) or not text or not _is_unicode(text):
                raise RequestError(
                    f"stop takes non-empty strings without lone surrogates, got {text!r}", field="stop", value=text
                )
        for token in self.stop_ids:
            self._token_id("stop_ids", token)
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(
                f"logit_bias maps token ids to numbers, got {type(self.logit_bias).__name__}",
                field="logit_bias",
                value=self.logit_bias,
            )
        for token, bias in self.logit_bias.items():
            self._token_id("logit_bias", token)
            if not isinstance(bias, int | float) or not (-1e30 <= bias <= 1e30 or bias == -math.inf):
                raise RequestError(
                    f"logit_bias values lie in [-1e30, 1e30] or are -inf, got {bias!r:.40}",
                    field="logit_bias",
                    value=bias,
                )

    def _as_tuple(self, name: str) -> None:
        values: object = getattr(self, name)
        if isinstance(values, str) and name == "stop":
            values = (values,)
        if not isinstance(values, Iterable):
            raise RequestError(f"{name} takes a list, got {values!r}", field=name, value=values)
        object.__setattr__(self, name, tuple(values))

    def _token_id(self, name: str, token: object) -> None:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise RequestError(f"{name} holds token ids >= 0, got {token!r}", field=name, value=token)

    def _number(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise RequestError(f"{name} must be a finite number, got {value!r:.40}", field=name, value=value)
        if value < low or value > high or (open_low and value == low):
            bounds = f"{'(' if open_low else '['}{low}, {high}]"
            raise RequestError(f"{name} must lie in {bounds}, got {value!r}", field=name, value=value)

    def _integer(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(f"{name} must be an integer, got {value!r}", field=name, value=value)
        if value < low or (high is not None and value > high):
            upper = "" if high is None else f" and <= {high}"
            raise RequestError(f"{name} must be >= {low}{upper}, got {value}", field=name, value=value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int past every float
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """One unit of work for the engine. prompt_ids: at least one. constraint: fresh, owned by the engine from here on;
    with n > 1 the engine forks it. stop_ids: the one shared stop set (tokenizer, generation config and user). drafters:
    names of those that may propose for it, None is all that the engine has. type_key: the same number for requests of
    one output type, which drafts do alike for. shares_output: drafts for others of that type may be taken from it, and
    for it from theirs. wants_origins: its events say where each token came from (engine/origins.py)."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    stop_ids: frozenset[int]
    constraint: Constraint | None = None
    cache_salt: str | None = None
    drafters: frozenset[str] | None = None
    type_key: int | None = None
    shares_output: bool = False
    wants_origins: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one output token: `raw` before any processing, `constrained` after the whole pipeline.

    A greedy row's law is one token; its `constrained` values are those of the masked row at temperature 1.
    top_raw, top_constrained: (token id, logprob), best first, as many as asked for.
    """

    token_id: int
    raw: float
    constrained: float
    top_raw: tuple[tuple[int, float], ...] = ()
    top_constrained: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """drafted: tokens that a forward verified. accepted: those that became output."""

    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. cached_tokens: prompt tokens taken from the prefix cache (of the first computation).

    drafted, accepted: tokens that speculation proposed and a forward verified, and those of them that became output;
    by_drafter: the same for each drafter that proposed any. forwards: how many forwards the output took; the tokens a
    forward are completion_tokens / forwards.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0
    by_drafter: Mapping[str, DraftCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. queue: submit to first scheduled; first_token: submit to first output token; total: to the end."""

    queue_ms: float
    first_token_ms: float
    total_ms: float
    mask_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """New settled tokens of one sequence (index 0..n-1), stop id not included: no retract takes them back.

    logprobs: one a token if they were asked for; none for the tokens of a forced close, which were not drawn and come
    last. origins: one a token if they were asked for.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of one sequence.

    finish_reason: "stop" (stop id, stop string, or complete constraint), "length", "cancelled", "error". stop_match:
    the stop string that matched. text_bytes: how many bytes of the output belong to the answer (less than all only
    when a stop string matched inside). forced_close: the shortest legal completion was forced near the limit.
    error: the exception behind "error", or behind a "cancelled" that the caller did not ask for (EngineClosed).
    """

    request_id: str
    index: int
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    text_bytes: int
    stop_match: str | None = None
    forced_close: bool = False
    error: Exception | None = None


Event = TokensEvent | FinishedEvent
