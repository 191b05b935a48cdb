"""The cases that broke speculation elsewhere, one by one. The answer is always the one without a draft."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Any

import pytest

from safegen.engine.backend import ForwardBatch
from safegen.engine.core import EngineCore
from safegen.engine.request import Request, SamplingParams
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import NO_DRAFT, Ask, Draft
from safegen.grammars.constraint import Retract
from tests.support.drafters import cheating_speculator, coming_tokens, speculator_of
from tests.support.engine_driver import ATOM, OPEN, STOP, Outcome, check, drive, make_core, make_request, naive
from tests.support.fake_backend import FakeBackend
from tests.support.verified_constraint import LONE_ARRAYS, LONE_TOKENS, VerifiedConstraint

PROMPT = [5, 7, 9]
SAMPLED = {"temperature": 1.3, "seed": 3}


def alone(asked: Request, core: EngineCore) -> Outcome:
    return drive(core, [asked])[asked.request_id, 0]


def bracketed(**fields: Any) -> Request:
    return make_request("a", PROMPT, constrained=True, **{"max_tokens": 40, **SAMPLED, **fields})


def seed_of_length(least: int, **fields: Any) -> dict[str, Any]:
    """A seed whose bracketed answer has at least so many tokens."""
    for seed in range(200):
        if len(naive(bracketed(**{**fields, "seed": seed}))) >= least:
            return {**fields, "seed": seed}
    raise AssertionError("no seed gives an answer that long")


# --- illegal drafts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 5])
def test_an_illegal_draft_at_the_first_a_middle_or_the_last_place_is_only_rejected(place: int) -> None:
    def with_illegal(ask: Ask) -> Draft:
        ids = coming_tokens(ask, 6)
        if len(ids) > place:
            ids[place] = 13  # no bracket
        return Draft(tuple(ids))

    fields = seed_of_length(12)
    wanted = naive(bracketed(**fields))
    core = make_core(speculator=speculator_of(with_illegal))
    outcome = alone(bracketed(**fields), core)
    assert outcome.token_ids == wanted
    stats = core.stats()
    assert stats.drafted_tokens > stats.accepted_tokens
    assert (stats.accepted_tokens == 0) == (place == 0)


def test_a_draft_of_illegal_tokens_alone_gives_the_answer_without_it() -> None:
    wanted = naive(bracketed())
    core = make_core(speculator=speculator_of(lambda ask: Draft((13,) * ask.room)))
    assert alone(bracketed(), core).token_ids == wanted
    assert core.stats().accepted_tokens == 0


# --- ends inside a draft --------------------------------------------------------------------------------------------


def test_a_constraint_that_completes_inside_the_draft_ends_the_answer_there() -> None:
    def past_the_end(ask: Ask) -> Draft:
        return Draft((*coming_tokens(ask, 6), ATOM, OPEN, STOP))

    for seed in range(20):
        wanted = alone(bracketed(seed=seed), make_core())
        core = make_core(speculator=speculator_of(past_the_end, 12))
        outcome = alone(bracketed(seed=seed), core)
        assert (outcome.token_ids, outcome.reason) == (wanted.token_ids, wanted.reason)
        assert core.stats().accepted_tokens or len(wanted.token_ids) < 2


@pytest.mark.parametrize("more", [(), (STOP,), (17, 18), (ATOM,)])
def test_a_stop_id_inside_the_draft_ends_the_output_there(more: Ids[int]) -> None:
    stop_ids = tuple(range(8))  # so that one comes soon
    lengths = set()
    for seed in range(12):
        fields = {"max_tokens": 30, "temperature": 1.0, "seed": seed, "stop_ids": stop_ids}
        wanted = naive(make_request("a", PROMPT, **fields))
        core = make_core(speculator=speculator_of(lambda ask: Draft((*coming_tokens(ask, 12), *more)), 16))
        outcome = alone(make_request("a", PROMPT, **fields), core)
        assert (outcome.token_ids, outcome.reason) == (wanted, "stop" if len(wanted) < 30 else "length")
        lengths.add(len(wanted))
    assert len(lengths) > 4


def test_a_stop_string_inside_the_draft_ends_the_output_in_it() -> None:
    fields = {"max_tokens": 30, "temperature": 1.0, "stop_ids": ()}
    for seed in range(10):
        free = naive(make_request("a", PROMPT, seed=seed, **fields))
        text = "".join(chr(64 + token) for token in free)
        stop = text[9:11]
        asked = make_request("a", PROMPT, seed=seed, stop=(stop,), **fields)
        outcomes = [alone(asked, make_core()), alone(asked, make_core(speculator=cheating_speculator(seed)))]
        assert outcomes[0].token_ids == outcomes[1].token_ids
        ends = [outcome.finished and (outcome.finished.text_bytes, outcome.finished.stop_match) for outcome in outcomes]
        assert ends[0] == ends[1]


def test_min_tokens_ends_inside_the_draft() -> None:
    stop_ids = tuple(range(12))
    for seed in range(10):
        for temperature in (0.0, 1.0):
            fields = {"max_tokens": 30, "temperature": temperature, "seed": seed, "min_tokens": 9, "stop_ids": stop_ids}
            asked = make_request("a", PROMPT, **fields)
            wanted = alone(asked, make_core())
            got = alone(asked, make_core(speculator=cheating_speculator(seed, wrong=0.05)))
            assert (got.token_ids, got.reason) == (wanted.token_ids, wanted.reason)
            assert len(got.token_ids) >= 9


# --- preemption, cancel ---------------------------------------------------------------------------------------------


def test_preemption_with_a_draft_pending_drops_the_draft_and_keeps_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    drop = Sequence.drop_draft

    def note(sequence: Sequence) -> None:
        if sequence.draft and not sequence.block_table:
            dropped.append(len(sequence.draft))
        drop(sequence)

    monkeypatch.setattr(Sequence, "drop_draft", note)
    asked = [make_request(f"r{i}", [i + 1, 2, 3], max_tokens=20, seed=i, temperature=1.0) for i in range(5)]
    wanted = {(one.request_id, 0): naive(one) for one in asked}
    core = make_core(num_blocks=9, speculator=cheating_speculator(wrong=0.1))
    outcomes = drive(core, asked)
    assert {key: outcome.token_ids for key, outcome in outcomes.items()} == wanted
    assert core.stats().preemptions and dropped


@pytest.mark.parametrize("constrained", [False, True])
def test_cancel_between_launch_and_commit_commits_nothing_of_the_draft(constrained: bool) -> None:
    fields = seed_of_length(14) if constrained else dict(SAMPLED)
    asked = make_request("a", PROMPT, constrained=constrained, max_tokens=40, stop_ids=(STOP,), **fields)
    other = make_request("b", [4, 5], max_tokens=9, seed=1, temperature=1.0)
    wanted, wanted_other = naive(asked), naive(other)
    backend = FakeBackend()
    core = make_core(backend, speculator=speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 4)))))
    num_rows: list[int] = []

    def cancel_second(batch: ForwardBatch) -> None:
        if len(backend.batches) == 2:
            num_rows.append(len(batch.sampled_rows))
            core.cancel("a")

    backend.on_forward = cancel_second
    outcomes = drive(core, [asked, other])
    assert num_rows[0] >= 6  # both had drafts
    assert (outcomes["a", 0].reason, outcomes["a", 0].token_ids) == ("cancelled", wanted[:5])
    assert outcomes["b", 0].token_ids == wanted_other


# --- rows with settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.2},
        {"logit_bias": {OPEN: 3.0, 17: 4.0, 21: -5.0}},
        {"logit_bias": {OPEN: 1.0, 12: 5.0}, "min_p": 0.1, "top_k": 4, "top_p": 0.8},
        {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.3},
        {"temperature": 0.0, "frequency_penalty": 1.0},
        {"logprobs": 3},
    ],
    ids=lambda fields: "+".join(fields),
)
@pytest.mark.parametrize("constrained", [False, True])
def test_verified_rows_go_through_the_whole_pipeline(fields: dict[str, Any], constrained: bool) -> None:
    num_accepted = 0
    for seed in range(6):
        settings = {"max_tokens": 24, "temperature": 1.0, "seed": seed, **fields}
        asked = [make_request("a", PROMPT, constrained=constrained, **settings) for _ in range(2)]
        wanted = alone(asked[0], make_core())
        core = make_core(speculator=cheating_speculator(seed))
        got = alone(asked[1], core)
        assert got.token_ids == wanted.token_ids
        assert got.logprobs == wanted.logprobs
        num_accepted += core.stats().accepted_tokens
    assert num_accepted > 10


def test_samples_of_one_prompt_have_drafts_of_their_own_after_the_fork() -> None:
    asked = make_request("a", PROMPT, max_tokens=18, temperature=1.0, seed=2, n=4, stop_ids=())
    wanted = [naive(asked, index) for index in range(4)]
    core = make_core(speculator=cheating_speculator())
    outcomes = drive(core, [asked])
    assert [outcomes["a", index].token_ids for index in range(4)] == wanted
    finished = [outcomes["a", index].finished for index in range(4)]
    assert all(one is not None and one.usage.accepted > 0 and one.usage.forwards < 18 for one in finished)


# --- room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_a_draft_longer_than_max_tokens_is_cut_to_the_room_left(max_tokens: int) -> None:
    asked = make_request("a", PROMPT, max_tokens=max_tokens, stop_ids=(), **SAMPLED)
    backend = FakeBackend()
    core = make_core(backend, speculator=speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 50))), 50))
    outcome = alone(asked, core)
    assert (outcome.token_ids, outcome.reason) == (naive(asked), "length")
    assert len(backend.batches) == 1
    assert len(backend.batches[0].sampled_rows) == max_tokens


def test_a_draft_longer_than_the_context_is_cut_to_the_room_left() -> None:
    asked = make_request("a", PROMPT, max_tokens=100, stop_ids=(), **SAMPLED)
    core = make_core(
        FakeBackend(max_context=20), speculator=speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 50))), 50)
    )
    outcome = alone(asked, core)
    assert (len(outcome.token_ids), outcome.reason) == (17, "length")


def test_a_draft_takes_no_block_from_another_sequence() -> None:
    asked = [make_request(f"r{i}", [i + 1, 2, 3], max_tokens=13, seed=i, stop_ids=()) for i in range(4)]
    wanted = {(one.request_id, 0): naive(one) for one in asked}
    core = make_core(num_blocks=16, speculator=speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 12))), 12))
    outcomes = drive(core, asked)  # four blocks each: just enough
    assert {key: outcome.token_ids for key, outcome in outcomes.items()} == wanted
    assert core.stats().preemptions == 0


def test_drafts_of_a_step_have_a_bound_together() -> None:
    asked = [make_request(f"r{i}", [i + 1, 2, 3], max_tokens=20, seed=i, stop_ids=()) for i in range(8)]
    backend = FakeBackend()
    speculator = cheating_speculator(wrong=0.0)
    speculator.max_tokens_a_step = 5
    core = make_core(backend, speculator=speculator)
    drive(core, asked)
    assert max(len(batch.sampled_rows) for batch in backend.batches) <= 8 + 5


def test_a_prompt_in_chunks_keeps_its_draft_until_the_last_chunk() -> None:
    asked = make_request("a", list(range(1, 30)), max_tokens=9, stop_ids=(), **SAMPLED)
    backend = FakeBackend()
    speculator = speculator_of(lambda ask: Draft(tuple(coming_tokens(ask, 8))), 8)
    core = make_core(backend, speculator=speculator, max_num_seqs=1, max_num_batched_tokens=7)
    outcome = alone(asked, core)
    assert outcome.token_ids == naive(asked)
    sizes = [len(batch.ids) for batch in backend.batches]
    assert sizes[:4] == [7] * 4 and max(sizes) <= 7


# --- retracts -------------------------------------------------------------------------------------------------------


def verified(seed: int) -> Request:
    constraint = VerifiedConstraint(LONE_ARRAYS, LONE_TOKENS, frozenset({STOP}))
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=30)
    return Request("a", tuple(PROMPT), params, frozenset({STOP}), constraint)


def test_a_retract_drops_what_was_drafted_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    retracted: list[Retract] = []
    advance = VerifiedConstraint.advance

    def note(constraint: VerifiedConstraint, ids: Ids[int]) -> Retract | None:
        retract = advance(constraint, ids)
        if retract is not None:
            retracted.append(retract)
        return retract

    monkeypatch.setattr(VerifiedConstraint, "advance", note)

    def on_past_the_retract(ask: Ask) -> Draft:
        return Draft((*coming_tokens(ask, 6), 2, 3, 5))

    for seed in range(25):
        wanted = alone(verified(seed), make_core(token_bytes=LONE_TOKENS))
        core = make_core(token_bytes=LONE_TOKENS, speculator=speculator_of(on_past_the_retract, 9))
        got = alone(verified(seed), core)
        assert (got.token_ids, got.reason) == (wanted.token_ids, wanted.reason)
        assert got.finished is not None and wanted.finished is not None
    assert len(retracted) > 10


def test_a_sequence_with_a_draft_is_checked_after_every_step() -> None:
    core = make_core(num_blocks=12, speculator=cheating_speculator())
    for number in range(5):
        core.add(make_request(f"r{number}", [number + 1, 3], max_tokens=18, constrained=number % 2 == 0, seed=number))
    while core.has_work:
        core.step()
        check(core)
        assert all(not sequence.draft for sequence in core.scheduler.running if sequence.num_output_tokens)


def test_no_speculation_for_a_request_that_refuses_it() -> None:
    asked = make_request("a", PROMPT, max_tokens=12, stop_ids=(), **SAMPLED)
    refusing = Request(asked.request_id, asked.prompt_ids, asked.params, asked.stop_ids, drafters=frozenset())
    backend = FakeBackend()
    core = make_core(backend, speculator=cheating_speculator())
    assert alone(refusing, core).token_ids == naive(asked)
    assert len(backend.batches) == 12
    assert core.stats().drafted_tokens == 0


def test_an_engine_without_drafters_never_drafts() -> None:
    assert NO_DRAFT.ids == ()
    core = make_core()
    outcome = alone(make_request("a", PROMPT, max_tokens=12, stop_ids=(), **SAMPLED), core)
    assert outcome.finished is not None
    assert (outcome.finished.usage.forwards, outcome.finished.usage.drafted) == (12, 0)
