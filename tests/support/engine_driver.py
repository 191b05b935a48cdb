"""Drives an EngineCore to its end, checking its invariants after every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.logits import History, LogitsPipeline, RowBuffers
from safegen.engine.request import Event, FinishedEvent, Request, SamplingParams, TokensEvent
from safegen.engine.rng import uniform
from safegen.engine.sampler import draw
from safegen.engine.speculate.speculator import Speculator
from safegen.grammars.constraint import MaskRows
from tests.support.fake_backend import FAKE_VOCAB, FakeBackend, prefix_logits
from tests.support.fake_constraint import BracketConstraint

OPEN, CLOSE, ATOM, STOP = 40, 41, 42, 0
TOKEN_BYTES: list[bytes | None] = [None, *(bytes([64 + number]) for number in range(1, FAKE_VOCAB))]
TOKEN_BYTES[OPEN], TOKEN_BYTES[CLOSE], TOKEN_BYTES[ATOM] = b"(", b")", b"x"


@dataclass
class Outcome:
    """Everything that one sequence of a request came to."""

    token_ids: list[int] = field(default_factory=list)
    finished: FinishedEvent | None = None
    logprobs: list[Any] = field(default_factory=list)

    @property
    def reason(self) -> str:
        assert self.finished is not None
        return self.finished.finish_reason


Outcomes = dict[tuple[str, int], Outcome]


def make_core(
    backend: FakeBackend | None = None,
    *,
    num_blocks: int = 64,
    token_bytes: list[bytes | None] = TOKEN_BYTES,
    speculator: Speculator | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> EngineCore:
    settings = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64, **settings}
    backend = backend or FakeBackend()
    settings.setdefault("kv_cache_memory", num_blocks * backend.bytes_per_block(settings["block_size"]))
    core = EngineCore(backend, token_bytes, EngineConfig(**settings), speculator=speculator, clock=clock)

    def check_writes(block_ids: set[int]) -> None:
        pool = core.scheduler.pool
        for block_id in block_ids:
            assert pool.ref_count(block_id) == 1, (
                f"block {block_id} is written while {pool.ref_count(block_id)} hold it"
            )
            assert not pool.is_cached(block_id), f"cached block {block_id} is written"

    backend.check_writes = check_writes
    return core


def make_request(request_id: str, prompt: Iterable[int], *, constrained: bool = False, **fields: Any) -> Request:
    stop_ids = frozenset(fields.pop("stop_ids", (STOP,)))
    return Request(
        request_id=request_id,
        prompt_ids=tuple(prompt),
        constraint=BracketConstraint(OPEN, CLOSE, ATOM, stop_ids) if constrained else None,
        cache_salt=fields.pop("cache_salt", None),
        params=SamplingParams(**fields),
        stop_ids=stop_ids,
    )


def check(core: EngineCore) -> None:
    """Block pool, queues and sequences are consistent with each other."""
    scheduler, pool = core.scheduler, core.scheduler.pool
    pool.check_invariants([sequence.block_table for sequence in scheduler.sequences()])
    assert [s.order for s in scheduler.running] == sorted(s.order for s in scheduler.running)
    assert [s.order for s in scheduler.waiting] == sorted(s.order for s in scheduler.waiting)
    assert len(scheduler.running) <= core.config.max_num_seqs
    for sequence in scheduler.sequences():
        assert sequence.num_emitted_tokens <= sequence.num_output_tokens
        known, parent = sequence._block_hashes, pool.root_hash(sequence.request.cache_salt)
        assert len(known) <= sequence.num_tokens // pool.block_size
        for place, content_hash in enumerate(known):
            ids = sequence.token_ids(place * pool.block_size, (place + 1) * pool.block_size)
            parent = pool.block_hash(parent, ids)
            assert content_hash == parent, "the hash chain is that of other tokens"
    for sequence in scheduler.waiting:
        assert not sequence.block_table and sequence.num_computed_tokens == 0
    for sequence in scheduler.running:
        assert sequence.num_computed_tokens <= len(sequence.block_table) * pool.block_size
        assert sequence.num_computed_tokens < sequence.num_tokens_with_draft
        for place in range(sequence.num_computed_tokens // pool.block_size + 1, len(sequence.block_table)):
            assert pool.ref_count(sequence.block_table[place]) == 1
            assert not pool.is_cached(sequence.block_table[place])


def collect(events: Iterable[Event], outcomes: Outcomes) -> None:
    for event in events:
        outcome = outcomes.setdefault((event.request_id, event.index), Outcome())
        assert outcome.finished is None, f"{event} comes after {outcome.finished}"
        if isinstance(event, TokensEvent):
            assert event.token_ids
            outcome.token_ids += event.token_ids
            outcome.logprobs += event.logprobs
        else:
            outcome.finished = event
            assert event.usage.completion_tokens == len(outcome.token_ids)


def drive(
    core: EngineCore,
    arrivals: Mapping[int, list[Request]] | list[Request],
    cancels: Mapping[int, list[str]] | None = None,
    max_steps: int = 3000,
) -> Outcomes:
    """Step until everything is answered. arrivals, cancels: by step number (a plain list arrives at step 0)."""
    schedule = dict(arrivals) if isinstance(arrivals, Mapping) else {0: arrivals}
    outcomes: Outcomes = {}
    expected = {(r.request_id, i) for requests in schedule.values() for r in requests for i in range(r.params.n)}
    for step in range(max_steps):
        for request in schedule.pop(step, []):
            core.add(request)
        for request_id in (cancels or {}).get(step, []):
            core.cancel(request_id)
        collect(core.step(), outcomes)
        check(core)
        if not core.has_work and not schedule:
            break
    else:
        raise AssertionError(f"not done after {max_steps} steps")
    assert {key for key, outcome in outcomes.items() if outcome.finished} == expected == set(outcomes)
    pool = core.scheduler.pool
    assert pool.num_free == pool.num_blocks, "blocks leaked"
    return outcomes


def naive(of: Request, index: int = 0) -> list[int]:
    """The oracle: one sequence, no cache, no batch, no scheduler. Knows free text, seeds and stop ids."""
    params, ids = of.params, list(of.prompt_ids)
    pipeline = LogitsPipeline(params, of.prompt_ids, of.stop_ids, RowBuffers(FAKE_VOCAB))
    constraint = of.constraint.fork() if of.constraint else None
    output: list[int] = []
    while len(output) < (params.max_tokens or 0):
        mask = None
        if constraint is not None:
            rows = MaskRows.allocate(1, FAKE_VOCAB)
            constraint.fill((), rows)
            mask = rows.words[0]
        counts = {token: output.count(token) for token in set(output)}
        target = pipeline.target(prefix_logits(ids + output), History(len(output), counts), mask)
        token_id = draw(target.law, uniform(params.seed or 0, index, len(output)))
        if token_id in of.stop_ids:
            break
        if constraint is not None:
            left = params.max_tokens - len(output) if params.max_tokens else 0
            before = constraint.shortest_completion()
            after = constraint.fork()
            after.advance([token_id])
            if len(before) <= left and len(after.shortest_completion()) > left - 1:
                return [*output, *before]
            constraint = after
        output.append(token_id)
        if constraint is not None and constraint.is_complete():
            break
    return output
