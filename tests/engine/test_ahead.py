"""Steps computed ahead: the tokens of single steps, whatever ends a sequence in the middle of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from safegen.engine.backend import AheadDraws, ForwardBatch
from safegen.engine.core import EngineCore
from safegen.engine.request import Request, TokensEvent
from safegen.kernels.sampling import Draw, draw_tokens
from tests.engine.test_core import SETTINGS, expected, mixed_requests, tokens
from tests.support.engine_driver import STOP, Outcome, Outcomes, check, collect, drive, make_core
from tests.support.engine_driver import make_request as request
from tests.support.fake_backend import FakeBackend


class AheadBackend(FakeBackend):
    """Several steps of the fake one after the other. calls: how many steps each call came to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward_ahead(self, batch: ForwardBatch, draws: AheadDraws) -> tuple[list[list[int]], NDArray[np.float32]]:
        drawn: list[list[int]] = []
        for uniforms in (*draws.uniforms, None):
            logits = self.forward(batch)
            if uniforms is not None:
                rows = [Draw(each, row, None, u) for row, (each, u) in enumerate(zip(draws.settings, uniforms))]
                ids, faults = draw_tokens(logits, draws.vocab_size, None, rows)
                if not faults and not draws.stop_ids.intersection(ids):
                    drawn.append(ids)
                    batch = following(batch, ids)
                    continue
            self.calls.append(len(drawn) + 1)
            return drawn, logits
        raise AssertionError


def following(batch: ForwardBatch, ids: list[int]) -> ForwardBatch:
    position = batch.position + 1
    block = batch.block_table[np.arange(len(ids)), position // batch.block_size]
    return replace(
        batch,
        ids=np.array(ids, dtype=np.int32),
        position=position,
        slot=(block * batch.block_size + position % batch.block_size).astype(np.int32),
        context_len=batch.context_len + 1,
    )


def ticking(core: EngineCore) -> EngineCore:
    """With a clock by which every step takes a millisecond."""
    ticks = itertools.count()
    core._clock = lambda: next(ticks) / 1000
    return core


def free_requests(seed: int, count: int, **fields: Any) -> list[Request]:
    rng = random.Random(seed)
    return [
        request(
            f"r{number}",
            [rng.randrange(1, 40) for _ in range(rng.randrange(1, 14))],
            **{"max_tokens": rng.randrange(1, 40), "seed": number, "temperature": rng.choice([0.0, 0.8]), **fields},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_every_setting_gives_what_the_naive_loop_gives(name: str, seed: int) -> None:
    longest = request("", [7, 8, 9], max_tokens=44, seed=seed, stop_ids=())  # at last it runs alone
    requests = [longest, *free_requests(seed, 5), *mixed_requests(seed, 5)]
    requests = [replace(each, request_id=f"q{place}") for place, each in enumerate(requests)]
    backend, wanted = AheadBackend(), expected(requests)
    assert tokens(drive(ticking(make_core(backend, **SETTINGS[name])), requests)) == wanted
    assert max(backend.calls) > 1


def test_most_steps_of_a_lone_sequence_are_computed_ahead() -> None:
    backend = AheadBackend()
    lone = request("a", [5, 6, 7], max_tokens=65, stop_ids=())
    core = ticking(make_core(backend))
    drive(core, [lone])
    assert Counter(backend.calls)[8] >= 7
    assert core.stats().steps == 65, "each step is counted"


def test_what_a_call_computes_of_a_sequence_is_handed_out_as_one_event_before_its_end() -> None:
    backend = AheadBackend()
    core = ticking(make_core(backend))
    requests = free_requests(2, 6, max_tokens=30, stop_ids=())
    for each in requests:
        core.add(each)
    found: dict[str, list[int]] = {}
    ended: set[str] = set()
    most = 0
    while core.has_work:
        events = core.step()
        names = [(type(event), event.request_id) for event in events]
        assert len(set(names)) == len(names)
        for event in events:
            assert event.request_id not in ended
            if isinstance(event, TokensEvent):
                found[event.request_id] = [*found.get(event.request_id, []), *event.token_ids]
                most = max(most, len(event.token_ids))
            else:
                ended.add(event.request_id)
    assert {(name, 0): ids for name, ids in found.items()} == expected(requests)
    assert most > 4


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_stop_id_in_the_middle_ends_the_call_and_the_sequence(temperature: float) -> None:
    requests = free_requests(3, 24, max_tokens=60, temperature=temperature, stop_ids=range(12))
    backend = AheadBackend()
    outcomes = drive(ticking(make_core(backend, num_blocks=400)), requests)
    assert tokens(outcomes) == expected(requests)
    assert sum(outcome.reason == "stop" for outcome in outcomes.values()) > 12


def test_a_stop_string_drops_what_was_computed_past_it() -> None:
    """Two sequences run: the one ends by its stop string, the other goes on with the tokens of the same call."""
    alone = expected(free_requests(5, 2, max_tokens=40, temperature=0.0, stop_ids=()))
    stopped, other = free_requests(5, 2, max_tokens=40, temperature=0.0, stop_ids=())
    ids = alone["r0", 0]
    stop = bytes([64 + ids[12]]).decode() if ids[12] not in (40, 41, 42) else "("
    stopped = replace(stopped, params=replace(stopped.params, stop=(stop,)))
    outcomes = drive(ticking(make_core(AheadBackend())), [stopped, other])
    assert outcomes["r0", 0].reason == "stop"
    assert len(outcomes["r0", 0].token_ids) <= 13
    assert outcomes["r0", 0].token_ids == ids[: len(outcomes["r0", 0].token_ids)]
    assert outcomes["r1", 0].token_ids == alone["r1", 0]


def test_stop_ids_before_min_tokens_are_held_back_as_ever() -> None:
    for temperature in (0.0, 1.0):
        requests = free_requests(9, 6, max_tokens=40, min_tokens=25, temperature=temperature, stop_ids=range(20))
        backend = AheadBackend()
        assert tokens(drive(ticking(make_core(backend)), requests)) == expected(requests)
        assert max(backend.calls) > 1


def test_a_cancel_while_it_computes_commits_nothing_more_of_that_request() -> None:
    backend = AheadBackend()
    core = ticking(make_core(backend))
    requests = free_requests(1, 2, max_tokens=60, temperature=0.0, stop_ids=())

    def cancel_late(batch: ForwardBatch) -> None:
        if len(backend.batches) == 21:
            core.cancel("r0")

    backend.on_forward = cancel_late
    outcomes = drive(core, requests)
    assert outcomes["r0", 0].reason == "cancelled"
    assert len(outcomes["r0", 0].token_ids) < 21
    assert outcomes["r1", 0].token_ids == expected(requests)["r1", 0]


def test_a_fault_in_the_middle_ends_the_sequences_of_the_call_and_the_core_goes_on() -> None:
    backend = AheadBackend()
    core = ticking(make_core(backend))

    def fail_once(batch: ForwardBatch) -> None:
        if len(backend.batches) == 12:
            raise RuntimeError("out of luck")

    backend.on_forward = fail_once
    first = drive(core, free_requests(1, 2, max_tokens=60, stop_ids=()))
    assert {outcome.reason for outcome in first.values()} == {"error"}
    again = free_requests(2, 2)
    assert tokens(drive(core, again)) == expected(again)


def test_nan_in_the_middle_errors_its_row_alone() -> None:
    backend = AheadBackend()

    def poison(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(backend.batches) == 12:
            logits[0] = np.nan
        return logits

    backend.shape_logits = poison
    requests = free_requests(4, 2, max_tokens=60, temperature=0.7, stop_ids=())
    outcomes = drive(ticking(make_core(backend)), requests)
    assert outcomes["r0", 0].reason == "error"
    assert outcomes["r1", 0].token_ids == expected(requests)["r1", 0]


def test_blocks_that_do_not_suffice_leave_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers of four blocks each, in a pool of five."""
    requests = [request(f"r{number}", [3, 4, 5 + number], max_tokens=13, stop_ids=()) for number in range(2)]
    core = ticking(make_core(AheadBackend(), num_blocks=5, enable_prefix_caching=False))
    reserve, had_room = core.scheduler.reserve, list[bool]()

    def observed(*arguments: Any) -> bool:
        had_room.append(reserve(*arguments))
        return had_room[-1]

    monkeypatch.setattr(core.scheduler, "reserve", observed)
    assert tokens(drive(core, requests)) == expected(requests)
    assert set(had_room) == {False, True}


def test_a_copy_that_fails_before_steps_ahead_ends_their_sequences_alone() -> None:
    backend = AheadBackend()
    core = ticking(make_core(backend))
    asked = request("a", [1, 2, 3, 4, 5], n=2, max_tokens=30, seed=3, temperature=1.0, stop_ids=())

    def broken(source: int, destination: int) -> None:
        raise OSError("no copy")

    for rows in (1, 2):
        core._ahead._step_s[rows] = 0.001
    backend.copy_block = broken  # type: ignore[method-assign]
    assert {outcome.reason for outcome in drive(core, [asked]).values()} == {"error"}
    del backend.copy_block
    again = free_requests(2, 2)
    assert tokens(drive(core, again)) == expected(again)


def test_nobody_who_waits_is_kept_waiting() -> None:
    """A second request comes while the first is computed ahead: it is in the next call's plan."""
    backend = AheadBackend()
    core = ticking(make_core(backend))
    first, second = free_requests(6, 2, max_tokens=60, stop_ids=())
    core.add(first)
    outcomes: Outcomes = {}
    while len(outcomes.setdefault(("r0", 0), Outcome()).token_ids) < 20:
        collect(core.step(), outcomes)
        check(core)
    core.add(second)
    collect(core.step(), outcomes)
    assert len(outcomes["r1", 0].token_ids) == 1


def test_constrained_and_observed_rows_take_single_steps() -> None:
    for each in (
        request("a", [1, 2], constrained=True, max_tokens=30),
        request("a", [1, 2], max_tokens=30, logprobs=2, stop_ids=()),
        request("a", [1, 2], max_tokens=30, presence_penalty=0.5, stop_ids=()),
        request("a", [1, 2], max_tokens=30, logit_bias={7: 1.0}, stop_ids=()),
    ):
        backend = AheadBackend()
        drive(ticking(make_core(backend)), [each])
        assert not backend.calls


def test_slow_steps_are_computed_one_by_one() -> None:
    backend = AheadBackend()
    core = make_core(backend)
    ticks = itertools.count()
    core._clock = lambda: next(ticks) / 20
    drive(core, [request("a", [1, 2], max_tokens=30, stop_ids=(STOP,))])
    assert not backend.calls
