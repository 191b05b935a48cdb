"""`load_test`: an LLM under load, at one or several rates or numbers of requests in flight.

At a rate requests arrive by themselves (a Poisson process, or evenly) and wait if they must: what users of a service
see. In flight, the next is sent when one ends: what a batch of that size gives. Each point has its requests and its
arrivals from the seed alone, so that two runs ask the same; a point finds nothing of another in the prefix cache.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from safegen.async_llm import AsyncLLM
from safegen.errors import RequestError
from safegen.llm import LLM
from safegen.load.replay import Asked, in_turns, replay
from safegen.load.trace import Arrival, Served, Slo, fixed_trace, poisson_trace, steady_tokens_per_s, trace_figures
from safegen.load.workload import made_up, of_prompts
from safegen.reports.versions import versions

Arrivals = Literal["poisson", "fixed"]
_TRACES = {"poisson": poisson_trace, "fixed": fixed_trace}


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load. rate_per_s or concurrency: what it was. figures: see `trace_figures`; also prompt_tokens and
    output_tokens (means), in closed loops steady_tokens_per_s. misses: what of the SLO does not hold."""

    rate_per_s: float | None
    concurrency: int | None
    num_requests: int
    figures: Mapping[str, float]
    misses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.rate_per_s:g}/s" if self.rate_per_s is not None else f"{self.concurrency} in flight"

    @property
    def meets(self) -> bool:
        return not self.misses


@dataclass(frozen=True, slots=True)
class LoadReport:
    """points in the order asked for. slo: what was promised. arrivals, seed: of the traces. model, measured_at (when
    the test began, UTC) and versions: of what was measured."""

    points: tuple[LoadPoint, ...]
    slo: Slo
    arrivals: Arrivals
    seed: int
    model: str = ""
    measured_at: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """The SLO holds at every point."""
        return all(point.meets for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        points = [{**asdict(point), "name": point.name, "meets": point.meets} for point in self.points]
        return {
            "ok": self.ok, "slo": asdict(self.slo), "arrivals": self.arrivals, "seed": self.seed, "model": self.model,
            "measured_at": self.measured_at, "versions": dict(self.versions), "points": points,
        }  # fmt: skip

    def table(self) -> str:
        from safegen.load.report import table

        return table(self)

    def to_html(self) -> str:
        """A page of its own, with its charts inside."""
        from safegen.load.report import page

        return page(self)

    def save_plot(self, path: str) -> None:
        """As .html, or .png or .svg, which need matplotlib. Complete or not at all. Raises RequestError."""
        from safegen.load.report import save_plot

        save_plot(self, path)

    def save_html(self, path: str) -> None:
        """`to_html` as a file, complete or not at all. Raises RequestError."""
        from safegen.load.report import save_plot

        save_plot(self, path, "--html")


def load_test(
    llm: LLM | AsyncLLM,
    *,
    rates: Sequence[float] = (),
    concurrency: Sequence[int] = (),
    arrivals: Arrivals = "poisson",
    num_requests: int = 100,
    prompt_tokens: int = 256,
    output_tokens: int = 64,
    prompts: Sequence[Any] | None = None,
    type: Any = None,
    slo: Slo | None = None,
    spread: float = 0.5,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> LoadReport:
    """Put an LLM under load, and say how its answers come.

    rates: requests a second, each a point. concurrency: requests in flight, each a point; one of both at least.
    arrivals: of rates. num_requests: of a point (of a closed loop at least three each in flight). prompts: what is
    asked, or (prompt, type) pairs; None makes up prompts of about prompt_tokens tokens, that share nothing. The answer
    to those takes output_tokens on average, evenly spread by +-spread of it; to prompts of one's own, at most that.
    type: of the answers. progress: told each load as it begins.

    Blocks; not to be called in an event loop. Raises RequestError, SchemaError, GrammarError.
    """
    _check(rates, concurrency, arrivals, num_requests, prompt_tokens, output_tokens, spread)
    _refuse_in_event_loop()
    runtime = llm._runtime
    spec = None if type is None else runtime.compile(type)
    count = max([num_requests, *(3 * each for each in concurrency)])
    workload = (
        made_up(count, prompt_tokens, output_tokens, runtime.count_tokens, type=spec, spread=spread, seed=seed)
        if prompts is None
        else of_prompts(prompts, output_tokens, type=spec)
    )
    test = _Test(
        AsyncLLM.from_runtime(runtime), workload, prompts is None, arrivals, num_requests, seed, slo or Slo(), progress
    )
    begun = datetime.now(UTC)
    points = asyncio.run(test.points(rates, concurrency))
    return LoadReport(
        tuple(points), test.slo, arrivals, seed, runtime.model_name, f"{begun:%Y-%m-%d %H:%M:%S} UTC", tuple(versions())
    )


@dataclass(frozen=True, slots=True)
class _Test:
    llm: AsyncLLM
    workload: list[Asked]
    is_made_up: bool
    arrivals: Arrivals
    num_requests: int
    seed: int
    slo: Slo
    progress: Callable[[str], None] | None

    async def points(self, rates: Sequence[float], concurrency: Sequence[int]) -> list[LoadPoint]:
        await replay(self.llm, self.workload, [Arrival(0.0, 0), Arrival(0.0, len(self.workload) - 1)], "warm")
        return [
            *[await self._at_rate(number, rate) for number, rate in enumerate(rates)],
            *[await self._in_flight(number, each) for number, each in enumerate(concurrency)],
        ]

    def _begin(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)

    async def _at_rate(self, number: int, rate: float) -> LoadPoint:
        self._begin(f"{self.num_requests} requests at {rate:g} a second")
        trace = _TRACES[self.arrivals](rate, self.num_requests, len(self.workload), self.seed + number)
        if self.is_made_up:  # each once
            trace = [Arrival(arrival.at_s, place) for place, arrival in enumerate(trace)]
        served = await replay(self.llm, self.workload, trace, self._salt(f"{self.seed} {number} at {rate}"))
        return self._point(served, rate, None)

    async def _in_flight(self, number: int, concurrency: int) -> LoadPoint:
        count = max(self.num_requests, 3 * concurrency)
        self._begin(f"{count} requests, {concurrency} in flight")
        rng = random.Random(self.seed + number)
        places = range(count) if self.is_made_up else [rng.randrange(len(self.workload)) for _ in range(count)]
        served = await in_turns(self.llm, self.workload, places, concurrency, self._salt(f"{number} of {concurrency}"))
        return self._point(served, None, concurrency)

    def _salt(self, point: str) -> Any:
        """Made-up prompts share nothing, not even what a chat template puts before them."""
        return (lambda arrival: f"load {point} {arrival.place}") if self.is_made_up else f"load {point}"

    def _point(self, served: Sequence[Served], rate: float | None, concurrency: int | None) -> LoadPoint:
        figures = trace_figures(served, self.slo)
        figures["prompt_tokens"] = statistics.fmean(each.prompt_tokens for each in served)
        figures["output_tokens"] = statistics.fmean(each.tokens for each in served)
        if concurrency is not None:
            steady = steady_tokens_per_s(served, concurrency)
            figures["steady_tokens_per_s"] = figures["tokens_per_s"] if steady is None else steady
        return LoadPoint(rate, concurrency, len(served), figures, tuple(self.slo.misses(served)))


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RequestError("load_test blocks; in an event loop: await asyncio.to_thread(load_test, llm, ...)")


def _check(
    rates: Sequence[float], concurrency: Sequence[int], arrivals: str, num_requests: int, prompt_tokens: int,
    output_tokens: int, spread: float,
) -> None:  # fmt: skip
    if not rates and not concurrency:
        raise RequestError("a load test needs rates=[...] or concurrency=[...]", field="rates", value=rates)
    for name, values, kind in (("rates", rates, (int, float)), ("concurrency", concurrency, int)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < float("inf"):
                raise RequestError(f"{name} holds positive numbers, got {value!r}", field=name, value=value)
    if arrivals not in _TRACES:
        raise RequestError(
            f"arrivals={arrivals!r} is unknown; choose poisson or fixed", field="arrivals", value=arrivals
        )
    counts = (("num_requests", num_requests), ("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens))
    for name, count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise RequestError(f"{name} must be an integer of at least 1, got {count!r}", field=name, value=count)
    if not 0 <= spread < 1:
        raise RequestError(f"spread must lie in [0, 1), got {spread!r}", field="spread", value=spread)


__all__ = ["Arrivals", "LoadPoint", "LoadReport", "load_test"]
