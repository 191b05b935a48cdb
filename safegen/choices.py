"""Exact label probabilities for `Choice(..., probabilities=True)`: a walk over the tree of token prefixes.

A label has many tokenizations; its probability is the sum over all of them, under the masked law at temperature 1.
A node is a token prefix of some label. Where the bytes so far leave one label only, its whole mass is that label's:
the mask is live, so no mass can leave. Only ambiguous nodes are opened: one request of one token for the law of the
next token (the prompt comes from the prefix cache), some in one yield.

Labels with a long common beginning have exponentially many tokenizations of it, nearly all of which the model would
never write. So the node with the most mass is opened first, until all that are left together hold less than
`_TOLERANCE`; the result is normalised by what was found. Past `Limits.max_choice_nodes` the walk raises CapacityError.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from safegen.engine.request import Request, SamplingParams, Timings, Usage
from safegen.errors import CapacityError, EngineError
from safegen.grammars.constraint import Constraint, MaskRows, Retract
from safegen.output_type import OutputType, compile_type
from safegen.result import Result
from safegen.run import Run

if TYPE_CHECKING:
    from safegen.runtime import Job, Runtime, Work

_TOLERANCE = 5e-7
_PROBES_AT_ONCE = 32


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """A token prefix: its ids, its mass, the labels (as bytes) that its text may become, the constraint after it."""

    ids: tuple[int, ...]
    text: bytes
    mass: float
    labels: tuple[bytes, ...]
    constraint: Constraint


class OneToken:
    """A constraint for one token whose law is all that is wanted: the inner mask, then it is complete.

    Its shortest completion is empty, so that no budget closes it and the row is the unchanged masked law.
    """

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner
        self._spent = False

    def fill(self, draft: Sequence[int], rows: MaskRows) -> int:
        return self._inner.fill(draft, rows)

    def advance(self, ids: Sequence[int]) -> Retract | None:
        self._spent = self._spent or bool(ids)
        return None

    def settled(self) -> int:
        return int(self._spent)

    def forced(self) -> bytes:
        return b""

    def is_complete(self) -> bool:
        return self._spent

    def can_end(self) -> bool:
        return self._spent

    def shortest_completion(self) -> tuple[int, ...]:
        return ()

    def fork(self) -> OneToken:
        copy = OneToken(self._inner.fork())
        copy._spent = self._spent
        return copy


def choice_work(runtime: Runtime, job: Job) -> Work:
    """A Choice with probabilities. At temperature 0 the value is the most likely label, otherwise a sampled one."""
    usage, total_ms, probabilities = yield from _walk(runtime, job)
    if job.params.temperature > 0:
        run = runtime.start(job)
        yield (run,)
        return dataclasses.replace(run.result, choices=probabilities)
    label = max(probabilities, key=probabilities.__getitem__)
    return Result(
        value=job.output_type.read(label),
        text=label,
        status="ok",
        finish_reason="stop",
        usage=usage,
        timings=Timings(0.0, total_ms, total_ms),
        choices=probabilities,
    )


def _walk(runtime: Runtime, job: Job) -> Generator[tuple[Run, ...], None, tuple[Usage, float, dict[str, float]]]:
    labels = tuple(label.encode() for label in job.output_type.labels)
    constraint = runtime.constraint(job.output_type, job.stop_ids)
    assert constraint is not None
    mass = dict.fromkeys(labels, 0.0)
    closed = [_Node((), b"", 1.0, labels, constraint)]  # by falling mass
    num_probes, total_ms, cached = 0, 0.0, 0
    while math.fsum(node.mass for node in closed) >= _TOLERANCE:
        opened, closed = closed[:_PROBES_AT_ONCE], closed[_PROBES_AT_ONCE:]
        num_probes += len(opened)
        if num_probes > runtime.limits.max_choice_nodes:
            raise CapacityError(
                f"the labels have more than max_choice_nodes={runtime.limits.max_choice_nodes} ambiguous token "
                "prefixes; let them differ earlier, or raise Limits(max_choice_nodes=...)"
            )
        runs = [_probe(runtime, job, node) for node in opened]
        yield tuple(runs)
        for node, run in zip(opened, runs):
            closed += _children(runtime, job, node, _law(run), mass)
        closed.sort(key=lambda node: (-node.mass, node.ids))
        total_ms += max(run.result.timings.total_ms for run in runs)
        cached += sum(run.result.usage.cached_tokens for run in runs)
    found = math.fsum(mass.values())
    if not abs(1.0 - found) < 2 * _TOLERANCE:
        raise EngineError(f"the label probabilities sum to {found!r}, not to 1")
    usage = Usage(len(job.prompt_ids), num_probes, cached)
    return usage, total_ms, {label.decode(): value / found for label, value in mass.items()}


def _probe(runtime: Runtime, job: Job, node: _Node) -> Run:
    """One token after a node, with the log-probability of every legal token. No stop id: it is a token like others."""
    rows = MaskRows.allocate(1, len(runtime.token_bytes))
    node.constraint.fork().fill((), rows)
    params = SamplingParams(
        temperature=1.0, max_tokens=1, seed=0, logprobs=int(rows.bools(0).sum()), logit_bias=job.params.logit_bias
    )
    request = Request(
        runtime.new_id(),
        job.prompt_ids + node.ids,
        params,
        frozenset(),
        OneToken(node.constraint.fork()),
        job.cache_salt,
    )
    return Run(request, _FREE_TEXT, runtime.token_bytes)


def _law(run: Run) -> dict[int, float]:
    result = run.result
    if result.status not in ("ok", "truncated") or not result.logprobs:
        raise result.error or EngineError("a probe for label probabilities came back empty")
    return {token: math.exp(value) for token, value in result.logprobs[0].top_constrained if value > -math.inf}


def _children(
    runtime: Runtime, job: Job, node: _Node, law: dict[int, float], mass: dict[bytes, float]
) -> Iterator[_Node]:
    """Add to `mass` what a token decides; the children that stay ambiguous are yielded."""
    for token, probability in law.items():
        share = node.mass * probability
        if token in job.stop_ids:
            mass[node.text] += share
            continue
        text = node.text + (runtime.token_bytes[token] or b"")
        labels = tuple(label for label in node.labels if label.startswith(text))
        if not labels:
            raise EngineError(f"token {token} leads to no label although the mask allows it")
        if len(labels) == 1:
            mass[labels[0]] += share
        else:
            constraint = node.constraint.fork()
            constraint.advance((token,))
            yield _Node((*node.ids, token), text, share, labels, constraint)


_FREE_TEXT: OutputType[str] = compile_type(None)
