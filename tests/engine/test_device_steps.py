"""Steps launched before the one before them is committed: the tokens of the naive loop, whatever ends in between."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine.core import EngineCore
from safegen.engine.device_steps import DeviceSteps
from safegen.engine.request import Request
from safegen.errors import EngineError
from safegen.grammars.constraint import MaskRows, TokenTable
from tests.engine.test_core import SETTINGS, expected, mixed_requests, text_of, tokens
from tests.support.drafters import cheating_speculator
from tests.support.engine_driver import ATOM, CLOSE, OPEN, STOP, drive, make_core, naive
from tests.support.engine_driver import make_request as request
from tests.support.fake_backend import FAKE_VOCAB
from tests.support.fake_constraint import BracketConstraint, is_balanced
from tests.support.fake_device_backend import FakeDeviceBackend

DEPTH = 6


def bracket_table() -> TokenTable:
    """State 0 has no text yet, 1 .. 6 are depths, 7 is a whole item, 8 comes after a stop id, 9 is dead."""
    whole, stopped, dead = DEPTH + 1, DEPTH + 2, DEPTH + 3
    rows = MaskRows.allocate(dead + 1, FAKE_VOCAB)
    targets = np.full((dead + 1, FAKE_VOCAB), dead, dtype=np.int32)
    targets[0, [OPEN, ATOM]] = 1, whole
    for depth in range(1, DEPTH + 1):
        targets[depth, [ATOM, CLOSE]] = depth, depth - 1 or whole
        if depth < DEPTH:
            targets[depth, OPEN] = depth + 1
    targets[whole, STOP] = stopped
    for state in range(dead):
        for token in np.flatnonzero(targets[state] != dead):
            rows.words[state, token // 32] |= np.int32(np.uint32(1 << (token % 32)).view(np.int32))
    return TokenTable(rows.words, np.arange(FAKE_VOCAB, dtype=np.int32), targets)


TABLE = bracket_table()


class TabledBrackets(BracketConstraint):
    token_table = TABLE

    @property
    def table_state(self) -> int:
        return DEPTH + 1 if self.is_complete() else self.depth

    def fork(self) -> TabledBrackets:
        copied = TabledBrackets(self.open_id, self.close_id, self.atom_id, self.stop_ids, self.max_depth)
        copied.depth, copied.started, copied.num_advanced = self.depth, self.started, self.num_advanced
        return copied


def tabled(each: Request) -> Request:
    if each.constraint is None:
        return each
    return replace(each, constraint=TabledBrackets(OPEN, CLOSE, ATOM, frozenset([STOP])))


def steps_of(core: EngineCore) -> DeviceSteps:
    assert core._on_device is not None
    return core._on_device


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
def test_every_setting_gives_what_the_naive_loop_gives(name: str, seed: int, with_tables: bool) -> None:
    requests = mixed_requests(seed, 12)
    wanted = expected(requests)
    core = make_core(FakeDeviceBackend(), **SETTINGS[name])
    asked = [tabled(each) for each in requests] if with_tables else requests
    assert tokens(drive(core, asked)) == wanted
    if name.startswith("preempting"):
        assert core.stats().preemptions > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 9), st.integers(0, 20), st.integers(0, 30),
       st.booleans(), st.integers(0, 1))  # fmt: skip
def test_random_arrivals_cancels_and_settings_keep_every_answer(
    seed: int, block_size: int, max_num_seqs: int, extra_tokens: int, extra_blocks: int, caching: bool, num_tables: int
) -> None:
    rng = random.Random(seed)
    requests = [tabled(each) if rng.random() < 0.5 else each for each in mixed_requests(seed, 10)]
    wanted = expected(requests)
    arrivals: dict[int, list[Request]] = {}
    for one in requests:
        arrivals.setdefault(rng.randrange(25), []).append(one)
    cancelled = {one.request_id for one in requests if rng.random() < 0.25}
    cancels: dict[int, list[str]] = {}
    for request_id in sorted(cancelled):
        cancels.setdefault(rng.randrange(60), []).append(request_id)
    least = max(-(-(len(r.prompt_ids) + (r.params.max_tokens or 0) + 1) // block_size) for r in requests)
    core = make_core(
        FakeDeviceBackend(num_tables),
        block_size=block_size,
        num_blocks=least + extra_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_tokens,
        enable_prefix_caching=caching,
    )
    wanted = expected(requests)  # constraints of requests move with them
    outcomes = drive(core, arrivals, cancels)
    for (request_id, index), token_ids in wanted.items():
        outcome = outcomes[request_id, index]
        if request_id in cancelled and outcome.reason == "cancelled":
            assert outcome.token_ids == token_ids[: len(outcome.token_ids)]
        else:
            assert outcome.token_ids == token_ids


def free(number: int, **fields: Any) -> Request:
    return request(f"r{number}", range(1 + number, 9 + number), **{"max_tokens": 30, "stop_ids": (), **fields})


def long_brackets() -> list[Request]:
    """Of random constrained requests those with answers of ten tokens and more."""
    made = (request(f"c{n}", [n % 40 + 1], constrained=True, max_tokens=24, seed=n, temperature=1.0) for n in range(80))
    return [each for each in made if len(naive(each)) >= 10][:4]


def test_free_sequences_are_launched_and_drawn_ahead_until_their_last_token() -> None:
    backend = FakeDeviceBackend()
    core = make_core(backend)
    requests = [free(number, seed=number, temperature=0.8) for number in range(4)]
    wanted = expected(requests)
    assert tokens(drive(core, requests)) == wanted
    assert backend.num_launched == backend.num_waited == core.stats().steps == 30, "no launch is in vain"
    assert steps_of(core).num_ahead == steps_of(core).num_drawn_ahead == 29


def test_constrained_sequences_are_launched_ahead_and_drawn_when_their_masks_are_filled() -> None:
    backend = FakeDeviceBackend()
    core = make_core(backend)
    requests = long_brackets()
    wanted = expected(requests)
    outcomes = drive(core, requests)
    assert tokens(outcomes) == wanted
    assert all(is_balanced(text_of(outcome.token_ids)) for outcome in outcomes.values())
    assert steps_of(core).num_ahead > 5 and steps_of(core).num_drawn_ahead == 0
    assert backend.num_tabled_rows == 0


def test_tables_move_on_without_the_host() -> None:
    backend = FakeDeviceBackend()
    core = make_core(backend)
    requests = long_brackets()
    wanted = expected(requests)
    with_tables = [tabled(each) for each in requests]
    assert tokens(drive(core, with_tables)) == wanted
    assert backend.num_carried_states > 5
    assert all(each.constraint is not None and each.constraint.num_fills == 0 for each in with_tables)  # type: ignore[attr-defined]


def test_a_table_without_room_falls_back_to_masks() -> None:
    backend = FakeDeviceBackend(num_tables=0)
    requests = [request("c", [4], constrained=True, max_tokens=24, seed=2, temperature=1.0)]
    wanted = expected(requests)
    assert tokens(drive(make_core(backend), [tabled(each) for each in requests])) == wanted
    assert backend.num_tabled_rows == 0


def test_a_stop_in_flight_costs_one_row_and_no_token() -> None:
    requests = [free(n, seed=n, temperature=1.2, max_tokens=40, stop_ids=range(12)) for n in range(8)]
    wanted = expected(requests)
    backend = FakeDeviceBackend()
    outcomes = drive(make_core(backend, num_blocks=400), requests)
    assert tokens(outcomes) == wanted
    assert sum(outcome.reason == "stop" for outcome in outcomes.values()) >= 4


@pytest.mark.parametrize("with_tables", [False, True], ids=["masks", "tables"])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_verified_and_their_drafter_sees_every_token_before_the_next_forward(
    seed: int, with_tables: bool
) -> None:
    requests = mixed_requests(seed, 10)
    wanted = expected(requests)
    asked = [tabled(each) for each in requests] if with_tables else requests
    core = make_core(FakeDeviceBackend(), num_blocks=200, speculator=cheating_speculator(seed))
    assert tokens(drive(core, asked)) == wanted
    assert core.stats().accepted_tokens > 10
    assert steps_of(core).num_ahead == 0


def test_a_forward_that_fails_in_flight_ends_its_sequences_and_no_others() -> None:
    backend = FakeDeviceBackend()
    core = make_core(backend)
    for number in range(2):
        core.add(free(number))
    for _ in range(3):
        core.step()

    def fail(batch: Any) -> None:
        backend.on_forward = lambda batch: None
        raise RuntimeError("the device is gone")

    backend.on_forward = fail
    events = [*core.step(), *core.step()]
    ended = [event for event in events if hasattr(event, "error") and isinstance(event.error, EngineError)]
    assert len(ended) == 2 and not core.has_work
    later = free(5)
    assert tokens(drive(core, [later])) == expected([later])


def test_after_a_fault_of_the_engine_nothing_of_before_is_in_flight() -> None:
    core = make_core(FakeDeviceBackend())
    core.add(free(1))
    core.step()
    assert steps_of(core).flight is not None
    core.end_all("cancelled", lambda: EngineError("over"))
    assert steps_of(core).flight is None
    later = free(2)
    assert tokens(drive(core, [later])) == expected([later])
