"""Many requests of mixed length through few slots and a small pool: all answers right, none starved, memory flat.

Right: equal to the answer of the request alone. Not starved: first served in the order of arrival, and neither the wait
for the first token nor the pause between two tokens of a sequence is longer than a bound in steps. A step is the unit,
since it is what the scheduler decides about and no machine is too busy to count it. Flat: nothing is left of a request
when it has ended.

The fake backend runs the full size always; the default model a slice, and the full size in `make test-full`.
"""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from safegen.engine.config import EngineConfig
from safegen.engine.core import EngineCore
from safegen.engine.locate import locate_model
from safegen.engine.request import FinishedEvent, Request, SamplingParams, TokensEvent
from safegen.engine.runner import ModelRunner
from safegen.engine.sequence import Sequence
from safegen.engine.tokenizer import Tokenizer
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import SchemaOptions
from safegen.grammars.vocabulary import Vocabulary
from tests.support.engine_driver import Outcomes, check, collect, make_core, make_request, naive
from tests.support.fake_backend import FakeBackend
from tests.test_memory import Forgetful, resident_kib

NUM_REQUESTS, NUM_SLOTS = 1000, 64
CHECK_EVERY_STEPS = 64
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Load:
    """What a run came to. Steps by request id; longest_pause: between two tokens of one sequence."""

    outcomes: Outcomes = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    first_token: dict[str, int] = field(default_factory=dict)
    last_token: dict[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    longest_pause: int = 0
    resident: list[int] = field(default_factory=list)

    def note(self, event: TokensEvent | FinishedEvent, step: int) -> None:
        name = event.request_id
        if isinstance(event, FinishedEvent):
            self.finished[name] = step
            return
        self.first_token.setdefault(name, step)
        self.longest_pause = max(self.longest_pause, step - self.last_token.get(name, step))
        self.last_token[name] = step


def arrivals(requests: list[Request], a_step: float, rng: random.Random) -> list[list[Request]]:
    """The requests in order, `a_step` of them a step on average, in bursts."""
    steps: list[list[Request]] = [[]]
    for request in requests:
        while rng.random() > a_step / (1 + a_step):
            steps.append([])
        steps[-1].append(request)
    return steps


def run(core: EngineCore, schedule: list[list[Request]], max_steps: int) -> Load:
    load, left = Load(), sum(map(len, schedule))
    for step in range(max_steps):
        for request in schedule[step] if step < len(schedule) else ():
            core.add(request)
            load.arrived[request.request_id] = step
        events = core.step()
        collect(events, load.outcomes)
        for event in events:
            load.note(event, step)
        if step % CHECK_EVERY_STEPS == 0:
            check(core)
            load.resident.append(resident_kib())
        if len(load.finished) == left:
            return load
    raise AssertionError(f"{left - len(load.finished)} requests are not answered after {max_steps} steps")


def assert_served_in_order(load: Load, *, longest_wait: int, longest_pause: int) -> None:
    """Nobody overtakes: of two requests the earlier one has its first token no later. Waits are bounded, in steps."""
    by_arrival = [load.first_token[name] for name in load.arrived if name in load.first_token]
    assert by_arrival == sorted(by_arrival)
    waits = [load.first_token[name] - load.arrived[name] for name in load.first_token]
    assert max(waits) <= longest_wait
    assert load.longest_pause <= longest_pause


def assert_nothing_is_left(core: EngineCore, requests: list[Request]) -> None:
    pool = core.scheduler.pool
    pool.check_invariants([])
    assert pool.num_free == pool.num_blocks and not core.has_work
    assert not core._new and not core._cancelled and not core._events
    gc.collect()
    ours = {id(request) for request in requests}
    kept = [each for each in gc.get_objects() if type(each) is Sequence and id(each.request) in ours]
    assert not kept, f"{len(kept)} sequences outlive their answers"


def answers(load: Load) -> dict[str, list[int]]:
    return {name: outcome.token_ids for (name, _), outcome in load.outcomes.items()}


# --- the fake backend -------------------------------------------------------------------------------------------------


def fake_requests(rng: random.Random) -> list[Request]:
    """Prompts of 1 to 20 tokens, some of one stem; 2 to 40 tokens of output, greedy, seeded or constrained."""
    stem = rng.choices(range(1, 40), k=10)
    requests = []
    for number in range(NUM_REQUESTS):
        prompt = rng.choices(range(1, 40), k=rng.randint(1, 10)) + (stem if number % 3 == 0 else [])
        options: dict[str, Any] = {"max_tokens": rng.choice((2, 8, 24, 40)), "constrained": number % 5 == 0}
        if number % 2:
            options |= {"temperature": 1.0, "seed": number}
        requests.append(make_request(f"r{number}", prompt, **options))
    return requests


def test_a_thousand_mixed_requests_through_a_small_pool_all_get_their_own_answer_in_turn() -> None:
    rng = random.Random(11)
    requests = fake_requests(rng)
    expected = {request.request_id: naive(request) for request in requests}
    backend = FakeBackend()
    backend.batches = Forgetful()
    core = make_core(backend, num_blocks=160, max_num_seqs=NUM_SLOTS, max_num_batched_tokens=256)
    load = run(core, arrivals(requests, 4.0, rng), max_steps=2000)
    assert answers(load) == expected
    assert {outcome.reason for outcome in load.outcomes.values()} == {"stop", "length"}
    # They come within 250 steps and need 450: the queue grows to some 160 steps of work.
    assert_served_in_order(load, longest_wait=200, longest_pause=15)
    assert core.scheduler.num_preemptions > 100
    assert_nothing_is_left(core, requests)


# --- the default model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """a_step: requests that arrive a step. num_blocks: of the pool, 4 tokens each; too few for all slots at once.
    lone_step: every so many requests are answered alone too. Waits and pauses in steps."""

    num_requests: int
    num_slots: int
    a_step: float
    num_blocks: int
    lone_step: int
    longest_wait: int
    longest_pause: int


SLICE = Size(num_requests=48, num_slots=16, a_step=2, num_blocks=64, lone_step=2, longest_wait=50, longest_pause=20)
FULL = Size(NUM_REQUESTS, NUM_SLOTS, a_step=8, num_blocks=320, lone_step=5, longest_wait=180, longest_pause=20)


class RealModel:
    """The default model on the native kernels, loaded once, and requests for it."""

    def __init__(self) -> None:
        path = locate_model(None)
        self.runner = ModelRunner.load(path, "cpu")
        self.tokenizer = Tokenizer.load(path, model_vocab_size=self.runner.vocab_size)
        self._vocabulary = Vocabulary(self.tokenizer.token_bytes, tuple(self.tokenizer.stop_ids))
        self._program = compile_json_schema(SCHEMA, SchemaOptions()).program

    def core(self, num_blocks: int, **settings: Any) -> EngineCore:
        memory = num_blocks * self.runner.bytes_per_block(4)
        config = EngineConfig(kv_cache_memory=memory, block_size=4, **settings)
        return EngineCore(self.runner, self.tokenizer.token_bytes, config)

    def requests(self, count: int, seed: int) -> list[Request]:
        """Prompts of 2 to 40 tokens, 2 to 24 of output; a quarter of them constrained, a third seeded."""
        rng = random.Random(seed)
        return [self._request(number, rng) for number in range(count)]

    def _request(self, number: int, rng: random.Random) -> Request:
        prompt = tuple(rng.choices(range(1000, 20_000), k=rng.choice((2, 8, 20, 40))))
        sampled: dict[str, Any] = {"temperature": 0.8, "seed": number} if number % 3 == 0 else {}
        params = SamplingParams(max_tokens=rng.choice((2, 8, 16, 24)), **sampled)
        constraint = NativeConstraint(self._program, self._vocabulary) if number % 4 == 0 else None
        return Request(f"r{number}", prompt, params, self.tokenizer.stop_ids, constraint)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_default_model_answers_a_load_of_mixed_requests_as_it_answers_each_alone(full: bool) -> None:
    size, model = FULL if full else SLICE, RealModel()
    lone = model.core(64, max_num_seqs=1, enable_prefix_caching=False)
    some = model.requests(size.num_requests, seed=5)[:: size.lone_step]
    expected = answers(run(lone, [some], max_steps=100_000))
    requests = model.requests(size.num_requests, seed=5)
    core = model.core(size.num_blocks, max_num_seqs=size.num_slots, max_num_batched_tokens=256)
    load = run(core, arrivals(requests, size.a_step, random.Random(6)), max_steps=20_000)
    given = answers(load)
    assert len(given) == size.num_requests
    assert {name: given[name] for name in expected} == expected
    assert {outcome.reason for outcome in load.outcomes.values()} == {"stop", "length"}
    assert_served_in_order(load, longest_wait=size.longest_wait, longest_pause=size.longest_pause)
    assert core.scheduler.num_preemptions > size.num_requests // 20
    if full:
        half = len(load.resident) // 2
        assert max(load.resident[half:]) - load.resident[half] < 8192, "KiB more in the second half"
    assert_nothing_is_left(core, requests)
