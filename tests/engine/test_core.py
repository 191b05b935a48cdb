"""The step: the same answer alone or in company, one ending for every sequence, failures that stay in their row."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch
from safegen.engine.core import EngineCore
from safegen.engine.logits import EmptyMask
from safegen.engine.request import Request, TokensEvent
from safegen.errors import CapacityError, EngineError, RequestError
from safegen.grammars.constraint import ConstraintViolation, MaskRows, NoCompletion
from tests.support.engine_driver import ATOM, CLOSE, OPEN, STOP, TOKEN_BYTES, Outcomes, check, drive, make_core, naive
from tests.support.engine_driver import make_request as request
from tests.support.fake_backend import FAKE_VOCAB, FakeBackend, prefix_logits
from tests.support.fake_constraint import BracketConstraint, is_balanced


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKEN_BYTES[token_id] or b"" for token_id in token_ids).decode()


def mixed_requests(seed: int, count: int) -> list[Request]:
    """Requests of every kind: greedy, seeded, penalised, constrained, several samples, shared prefixes, salts."""
    rng = random.Random(seed)
    prefix = [rng.randrange(1, 40) for _ in range(11)]
    made = []
    for number in range(count):
        head = prefix[: rng.choice([0, 4, 8, 11])]
        prompt = head + [rng.randrange(1, 40) for _ in range(rng.randrange(1, 14))]
        fields: dict[str, Any] = {"max_tokens": rng.randrange(1, 24), "seed": rng.randrange(100)}
        fields["temperature"] = rng.choice([0.0, 0.7, 1.5])
        fields["n"] = rng.choice([1, 1, 1, 3])
        fields["cache_salt"] = rng.choice([None, None, "tenant"])
        if rng.random() < 0.3:
            fields |= {"presence_penalty": 0.5, "repetition_penalty": 1.3, "frequency_penalty": 0.2}
        if rng.random() < 0.3:
            fields |= {"top_p": 0.8, "top_k": 12, "min_p": 0.02, "logit_bias": {7: 2.0}}
        made.append(request(f"r{number}", prompt, constrained=rng.random() < 0.4, **fields))
    return made


def tokens(outcomes: Outcomes) -> dict[tuple[str, int], list[int]]:
    return {key: outcome.token_ids for key, outcome in outcomes.items()}


def expected(requests: list[Request]) -> dict[tuple[str, int], list[int]]:
    return {(r.request_id, i): naive(r, i) for r in requests for i in range(r.params.n)}


SETTINGS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks of 3": {"max_num_seqs": 3, "max_num_batched_tokens": 3},
    "no prefix cache": {"enable_prefix_caching": False},
    "blocks of 1": {"block_size": 1, "num_blocks": 70},
    "preempting": {"num_blocks": 13},
    "preempting, no cache, chunks": {
        "num_blocks": 13,
        "enable_prefix_caching": False,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 5,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(6))
def test_every_setting_gives_what_the_naive_loop_gives(name: str, seed: int) -> None:
    requests = mixed_requests(seed, 12)
    wanted = expected(requests)
    core = make_core(**SETTINGS[name])
    assert tokens(drive(core, requests)) == wanted
    if name.startswith("preempting"):
        assert core.stats().preemptions > 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 20),
    st.integers(0, 30),
    st.booleans(),
)
def test_random_arrivals_cancels_and_settings_keep_every_answer(
    seed: int, block_size: int, max_num_seqs: int, extra_tokens: int, extra_blocks: int, caching: bool
) -> None:
    rng = random.Random(seed)
    requests = mixed_requests(seed, 10)
    arrivals: dict[int, list[Request]] = {}
    for one in requests:
        arrivals.setdefault(rng.randrange(25), []).append(one)
    cancelled = {one.request_id for one in requests if rng.random() < 0.25}
    cancels: dict[int, list[str]] = {}
    for request_id in sorted(cancelled):
        cancels.setdefault(rng.randrange(60), []).append(request_id)
    least = max(-(-(len(r.prompt_ids) + (r.params.max_tokens or 0) + 1) // block_size) for r in requests)
    core = make_core(
        block_size=block_size,
        num_blocks=least + extra_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_tokens,
        enable_prefix_caching=caching,
    )
    wanted = expected(requests)
    outcomes = drive(core, arrivals, cancels)
    for (request_id, index), token_ids in wanted.items():
        outcome = outcomes[request_id, index]
        if request_id in cancelled and outcome.reason == "cancelled":
            assert outcome.token_ids == token_ids[: len(outcome.token_ids)]
        else:
            assert outcome.token_ids == token_ids


def test_prefix_hits_are_counted_and_the_last_token_is_always_computed() -> None:
    core = make_core()
    prompt = list(range(1, 17))  # four full blocks
    first = drive(core, [request("a", prompt, max_tokens=1)])
    second = drive(core, [request("b", prompt, max_tokens=1)])
    assert first["a", 0].token_ids == second["b", 0].token_ids
    assert first["a", 0].finished is not None and first["a", 0].finished.usage.cached_tokens == 0
    assert second["b", 0].finished is not None and second["b", 0].finished.usage.cached_tokens == 12
    assert core.stats().prefix_hit_tokens == 12


def test_output_blocks_serve_the_next_turn_of_a_conversation() -> None:
    core = make_core()
    answer = drive(core, [request("a", range(1, 9), max_tokens=9, stop_ids=())])["a", 0].token_ids
    longer = [*range(1, 9), *answer, 5]
    outcome = drive(core, [request("b", longer, max_tokens=4)])["b", 0]
    assert outcome.finished is not None and outcome.finished.usage.cached_tokens == 16
    assert outcome.token_ids == naive(request("b", longer, max_tokens=4))


def test_n_samples_compute_the_prompt_once_and_copy_on_write() -> None:
    backend = FakeBackend()
    core = make_core(backend)
    asked = request("a", range(1, 11), n=4, temperature=1.0, seed=3, max_tokens=6, stop_ids=())
    outcomes = drive(core, [asked])
    assert len(backend.batches[0].ids) == 10
    assert [len(batch.ids) for batch in backend.batches[1:]] == [4] * 5
    assert len(backend.copies) == 3  # the last to write keeps the shared block
    assert tokens(outcomes) == expected([asked])
    assert len({tuple(outcome.token_ids) for outcome in outcomes.values()}) == 4


def test_more_samples_than_run_at_once_wait_their_turn() -> None:
    asked = request("a", range(1, 11), n=7, temperature=1.0, seed=3, max_tokens=6)
    assert tokens(drive(make_core(max_num_seqs=2), [asked])) == expected([asked])


# --- endings --------------------------------------------------------------------------------------------------------


def force(*token_ids: int, prompt_length: int) -> Any:
    """on logits: the token at each output position."""

    def shape(backend: FakeBackend) -> None:
        def apply(logits: NDArray[np.float32]) -> NDArray[np.float32]:
            batch = backend.batches[-1]
            for number, row in enumerate(batch.sampled_rows):
                place = int(batch.position[row]) - (prompt_length - 1)
                logits[number, token_ids[min(place, len(token_ids) - 1)]] = 50.0
            return logits

        backend.shape_logits = apply

    return shape


def run_forced(token_ids: list[int], *, constrained: bool = False, **fields: Any) -> Any:
    backend = FakeBackend()
    force(*token_ids, prompt_length=3)(backend)
    outcome = drive(make_core(backend), [request("a", [1, 2, 3], constrained=constrained, **fields)])["a", 0]
    return outcome, outcome.finished, backend


def test_stop_id_ends_the_output_and_is_not_part_of_it() -> None:
    outcome, finished, _ = run_forced([5, 6, STOP], max_tokens=9)
    assert outcome.token_ids == [5, 6]
    assert (finished.finish_reason, finished.text_bytes, finished.usage.completion_tokens) == ("stop", 2, 2)


def test_max_tokens_ends_as_length() -> None:
    outcome, finished, _ = run_forced([5], max_tokens=4)
    assert outcome.token_ids == [5] * 4
    assert (finished.finish_reason, finished.forced_close) == ("length", False)


def test_context_end_cuts_max_tokens() -> None:
    core = make_core(max_context=16)
    outcome = drive(core, [request("a", [1] * 10, max_tokens=100, stop_ids=())])["a", 0]
    assert (len(outcome.token_ids), outcome.reason) == (6, "length")


@pytest.mark.parametrize(
    ("max_context", "num_blocks", "expected"), [(4096, 2000, 1024), (512, 400, 500), (512, 10, 27), (512, 3, 1)]
)
def test_max_tokens_of_none_is_1024_or_what_context_and_pool_leave(
    max_context: int, num_blocks: int, expected: int
) -> None:
    core = make_core(FakeBackend(max_context=max_context), num_blocks=num_blocks)
    assert core.door.max_tokens(request("a", [1] * 12)) == expected


def test_stop_string_across_tokens_ends_in_the_step_it_occurs() -> None:
    stop = chr(64 + 6) + chr(64 + 7)
    outcome, finished, backend = run_forced([5, 6, 7, 8, 9], stop=(stop,), max_tokens=9)
    assert outcome.token_ids == [5, 6, 7]
    assert (finished.finish_reason, finished.stop_match, finished.text_bytes) == ("stop", stop, 1)
    assert len(backend.batches) == 3


def test_min_tokens_holds_back_stop_ids_and_stop_strings() -> None:
    outcome, finished, _ = run_forced([STOP], min_tokens=3, max_tokens=9)
    assert len(outcome.token_ids) == 3 and STOP not in outcome.token_ids
    assert finished.finish_reason == "stop"
    outcome, finished, _ = run_forced([5], stop=(chr(64 + 5),), min_tokens=3, max_tokens=9)
    assert (outcome.token_ids, finished.text_bytes) == ([5, 5, 5], 2)


def test_complete_constraint_stops_without_spending_a_token() -> None:
    outcome, finished, backend = run_forced([OPEN, ATOM, CLOSE, 9], constrained=True, max_tokens=9)
    assert (text_of(outcome.token_ids), finished.finish_reason) == ("(x)", "stop")
    assert len(backend.batches) == 3


def test_constraint_complete_from_the_start_takes_no_step() -> None:
    asked = request("a", [1, 2, 3], constrained=True, n=2)
    assert asked.constraint is not None
    asked.constraint.advance([ATOM])
    core = make_core()
    outcomes = drive(core, [asked])
    assert [(o.token_ids, o.reason) for o in outcomes.values()] == [([], "stop")] * 2
    assert core.stats().steps == 0


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_budget_aware_close_gives_a_whole_answer(max_tokens: int) -> None:
    outcome, finished, _ = run_forced([OPEN], constrained=True, max_tokens=max_tokens)
    assert is_balanced(text_of(outcome.token_ids)), text_of(outcome.token_ids)
    assert len(outcome.token_ids) <= max_tokens
    assert (finished.finish_reason, finished.forced_close) == ("length", True)
    assert finished.text_bytes == len(outcome.token_ids)


def test_budget_below_the_shortest_answer_is_cut_as_length() -> None:
    asked = request("a", [1], constrained=True, max_tokens=2)
    assert asked.constraint is not None
    asked.constraint.advance([OPEN, OPEN, OPEN])
    outcome = drive(make_core(), [asked])["a", 0]
    assert (len(outcome.token_ids), outcome.reason) == (2, "length")
    assert outcome.finished is not None and not outcome.finished.forced_close


def test_constrained_rows_never_hold_an_illegal_token_however_the_logits_lie() -> None:
    backend = FakeBackend()
    adored = [token for token in range(FAKE_VOCAB) if token not in (OPEN, CLOSE, ATOM)]

    def adore_illegal(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:, adored] += 100.0
        return logits

    backend.shape_logits = adore_illegal
    requests = [
        request(f"r{i}", [1, i + 1], constrained=True, temperature=t, seed=i, max_tokens=15, logit_bias={9: 90.0})
        for i, t in enumerate([0.0, 0.5, 1.0, 2.0] * 6)
    ]
    for outcome in drive(make_core(backend), requests).values():
        assert is_balanced(text_of(outcome.token_ids))


# --- failures stay in their row -------------------------------------------------------------------------------------


class BrokenConstraint(BracketConstraint):
    """Raises in one method from the given fill on."""

    def __init__(self, method: str, after_fills: int = 2) -> None:
        super().__init__(OPEN, CLOSE, ATOM, frozenset({STOP}))
        self.method, self.after_fills = method, after_fills

    def _breaks(self, method: str) -> bool:
        return method == self.method and self.num_fills >= self.after_fills

    def fill(self, draft: Any, rows: MaskRows) -> int:
        if self._breaks("empty"):
            return 0
        legal = super().fill(draft, rows)
        if self._breaks("fill"):
            raise ValueError("broken fill")
        return legal

    def advance(self, ids: Any) -> None:
        if self._breaks("advance"):
            raise ConstraintViolation("broken advance")
        super().advance(ids)

    def shortest_completion(self) -> tuple[int, ...]:
        if self._breaks("shortest_completion"):
            raise ValueError("broken completion")
        return super().shortest_completion()


@pytest.mark.parametrize("method", ["fill", "advance", "shortest_completion", "empty"])
def test_constraint_failure_ends_its_row_alone(method: str) -> None:
    backend = FakeBackend()
    force(OPEN, prompt_length=3)(backend)
    others = [request(f"r{i}", [i + 1, 2, 3], max_tokens=8) for i in range(3)]
    broken = Request("broken", (1, 2, 3), others[0].params, frozenset({STOP}), BrokenConstraint(method))
    outcomes = drive(make_core(backend), [others[0], broken, *others[1:]])
    finished = outcomes["broken", 0].finished
    assert finished is not None and finished.finish_reason == "error"
    assert isinstance(finished.error, EmptyMask if method == "empty" else EngineError)
    assert outcomes["broken", 0].token_ids == [OPEN] * (2 if method == "empty" else 1)
    for other in others:
        assert outcomes[other.request_id, 0].token_ids == [OPEN] * 8


@pytest.mark.parametrize("num_good", [0, 1, 2])  # the first is of the mask, the others of samples
def test_fork_failure_ends_all_samples_of_its_request_alone(num_good: int) -> None:
    class Unforkable(BracketConstraint):
        num_forks = 0

        def fork(self) -> BracketConstraint:
            self.num_forks += 1
            if self.num_forks > num_good:
                raise ValueError("cannot fork")
            return super().fork()

    broken = Request(
        "broken",
        (1, 2),
        request("x", [1], n=3, max_tokens=5).params,
        frozenset({STOP}),
        Unforkable(OPEN, CLOSE, ATOM, frozenset({STOP})),
    )
    other = request("other", [1, 2, 3], max_tokens=6)
    outcomes = drive(make_core(), [broken, other])
    assert [outcomes["broken", index].reason for index in range(3)] == ["error"] * 3
    assert outcomes["other", 0].token_ids == naive(other)


def test_constrained_row_without_a_mask_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    fill = core._fill

    def forget(plan: Any) -> Any:
        masks = fill(plan)
        masks.place.clear()
        return masks

    monkeypatch.setattr(core, "_fill", forget)
    free = request("free", [1, 2], max_tokens=5)
    outcomes = drive(core, [request("bound", [1, 2], constrained=True), free])
    finished = outcomes["bound", 0].finished
    assert finished is not None and type(finished.error).__name__ == "MissingMask"
    assert outcomes["free", 0].token_ids == naive(free)


def test_mask_of_another_step_is_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    fill, kept = core._fill, []

    def replay(plan: Any) -> Any:
        kept.append(fill(plan))
        return kept[0]

    monkeypatch.setattr(core, "_fill", replay)
    asked = request("a", [1, 2], constrained=True, max_tokens=9, logit_bias={OPEN: 50.0})
    outcome = drive(core, [asked])["a", 0]
    assert outcome.finished is not None and type(outcome.finished.error).__name__ == "MissingMask"
    assert len(outcome.token_ids) == 1


def test_nan_logits_error_their_row_alone() -> None:
    backend = FakeBackend()

    def poison(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[0, 3] = np.nan
        return logits

    backend.shape_logits = poison
    for temperature in (0.0, 1.0):
        asked = [request("a", [1], temperature=temperature, max_tokens=3), request("b", [2], max_tokens=1)]
        outcomes = drive(make_core(backend), asked)
        finished = outcomes["a", 0].finished
        assert finished is not None and type(finished.error).__name__ == "NonFiniteLogits"
        assert outcomes["b", 0].token_ids == naive(asked[1])


def test_backend_failure_ends_that_step_and_the_core_goes_on() -> None:
    backend = FakeBackend()
    core = make_core(backend, max_num_seqs=2)

    def fail_once(batch: ForwardBatch) -> None:
        if batch.step_id == 2:
            raise RuntimeError("kernel exploded")

    backend.on_forward = fail_once
    requests = [request(f"r{i}", [i + 1] * 5, max_tokens=6, n=1, stop_ids=()) for i in range(4)]
    outcomes = drive(core, requests)
    for request_id in ("r0", "r1"):
        finished = outcomes[request_id, 0].finished
        assert finished is not None and isinstance(finished.error, EngineError)
        assert isinstance(finished.error.__cause__, RuntimeError)
    for one in requests[2:]:
        assert outcomes[one.request_id, 0].token_ids == naive(one)


def test_blocks_of_a_failed_forward_are_not_found_by_later_requests() -> None:
    backend = FakeBackend()
    core = make_core(backend)

    def fail_first(batch: ForwardBatch) -> None:
        if batch.step_id == 0:
            raise RuntimeError("kernel exploded")

    backend.on_forward = fail_first
    asked = request("a", range(1, 14), max_tokens=5)
    assert drive(core, [asked])["a", 0].reason == "error"
    assert drive(core, [asked])["a", 0].token_ids == naive(asked)


def test_cancel_between_launch_and_commit_commits_nothing() -> None:
    backend = FakeBackend()
    core = make_core(backend)

    def cancel_third(batch: ForwardBatch) -> None:
        if batch.step_id == 2:
            core.cancel("a")

    backend.on_forward = cancel_third
    other = request("b", [4, 5], max_tokens=6)
    outcomes = drive(core, [request("a", [1, 2, 3], max_tokens=9, n=2, stop_ids=()), other])
    assert [outcomes["a", i].reason for i in range(2)] == ["cancelled"] * 2
    assert [len(outcomes["a", i].token_ids) for i in range(2)] == [2, 2]
    assert outcomes["b", 0].token_ids == naive(other)


def test_cancel_before_the_fork_answers_for_every_sample() -> None:
    core = make_core(max_num_batched_tokens=8)
    outcomes = drive(core, [request("a", [1] * 30, n=3)], cancels={1: ["a"]})
    assert [outcomes["a", i].reason for i in range(3)] == ["cancelled"] * 3


def test_cancel_of_an_unknown_or_finished_request_does_nothing() -> None:
    core = make_core()
    drive(core, [request("a", [1], max_tokens=1)])
    core.cancel("a")
    core.cancel("never")
    again = request("a", [1], max_tokens=2)
    assert drive(core, [again])["a", 0].token_ids == naive(again)


def test_end_all_answers_everybody_and_leaves_an_empty_engine() -> None:
    core = make_core()
    core.add(request("a", [1] * 9, n=2, stop_ids=()))
    core.step()
    core.add(request("b", [2]))
    events = core.end_all("error", lambda: EngineError("bookkeeping fault"))
    assert sorted((e.request_id, e.index) for e in events if not isinstance(e, TokensEvent)) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
    ]
    check(core)
    after = request("a", [1] * 9, max_tokens=3)
    assert drive(core, [after])["a", 0].token_ids == naive(after)


# --- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "prompt_ids"),
        ({"prompt": [FAKE_VOCAB]}, "prompt_ids"),
        ({"prompt": [-1]}, "prompt_ids"),
        ({"prompt": [1] * 512}, "prompt_ids"),
        ({"prompt": [1], "logit_bias": {FAKE_VOCAB: 1.0}}, "logit_bias"),
    ],
)
def test_wrong_requests_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    core = make_core(num_blocks=500)
    with pytest.raises(RequestError) as caught:
        core.add(request("a", fields.pop("prompt"), **fields))
    assert caught.value.field == field
    assert not core.has_work


def test_the_door_holds_the_published_formula() -> None:
    core = make_core(num_blocks=4)  # 16 tokens
    with pytest.raises(CapacityError, match=r"ceil\(\(8 \+ 8 \+ 1\) / 4\) = 5 blocks"):
        core.add(request("a", [1] * 8, max_tokens=8))
    largest = request("a", [1] * 8, max_tokens=7, stop_ids=())
    assert drive(core, [largest])["a", 0].token_ids == naive(largest)
    assert core.stats().preemptions == 0


def test_a_request_id_in_flight_is_refused() -> None:
    core = make_core()
    core.add(request("a", [1]))
    with pytest.raises(RequestError, match="in flight"):
        core.add(request("a", [1]))


def test_token_bytes_longer_than_the_vocabulary_are_refused() -> None:
    with pytest.raises(RequestError, match="token_bytes"):
        EngineCore(FakeBackend(), [b"a"] * (FAKE_VOCAB + 1), make_core().config)


def test_ids_past_the_tokenizer_are_never_sampled() -> None:
    backend = FakeBackend(vocab_size=FAKE_VOCAB + 8)

    def adore_padding(logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:, FAKE_VOCAB:] += 100.0
        return logits

    backend.shape_logits = adore_padding
    outcome = drive(make_core(backend), [request("a", [1], max_tokens=6, temperature=1.0, seed=1)])["a", 0]
    assert all(token_id < FAKE_VOCAB for token_id in outcome.token_ids)


def test_logprobs_come_raw_and_constrained_for_each_token() -> None:
    asked = request("a", [1, 2], constrained=True, max_tokens=6, logprobs=2)
    outcome = drive(make_core(), [asked])["a", 0]
    assert [entry.token_id for entry in outcome.logprobs] == outcome.token_ids[: len(outcome.logprobs)]
    row = prefix_logits([1, 2]).astype(np.float64)
    first = outcome.logprobs[0]
    assert first.raw == pytest.approx(row[first.token_id] - np.log(np.exp(row).sum()))
    legal = {OPEN, ATOM}
    assert {token for token, _ in first.top_constrained} == legal
    assert sum(np.exp(logprob) for _, logprob in first.top_constrained) == pytest.approx(1.0)


class CountsCompletions(BracketConstraint):
    num_asked = 0

    def shortest_completion(self) -> tuple[int, ...]:
        self.num_asked += 1
        return super().shortest_completion()


@pytest.mark.parametrize(("max_tokens", "asked_again"), [(19, False), (20, True)])
def test_completion_that_no_tokens_could_spell_in_time_is_asked_for_once(max_tokens: int, asked_again: bool) -> None:
    """Asking costs time in the length of the answer. The tokens here have one byte each."""
    constraint = CountsCompletions(OPEN, CLOSE, ATOM, frozenset({STOP}), max_depth=30)
    constraint.depth, constraint.started = 20, True
    asked = replace(request("a", [5], max_tokens=max_tokens, temperature=1.0, seed=1), constraint=constraint)
    outcome = drive(make_core(), [asked])["a", 0]
    assert outcome.finished is not None and outcome.finished.forced_close == asked_again
    assert (constraint.num_asked > 1) == asked_again


def test_constraint_without_a_completion_at_hand_is_asked_less_and_less_often() -> None:
    class Unknown(CountsCompletions):
        def shortest_completion(self) -> tuple[int, ...]:
            super().shortest_completion()
            raise NoCompletion("none at hand")

    constraint = Unknown(OPEN, CLOSE, ATOM, frozenset({STOP}), max_depth=300)
    constraint.depth, constraint.started = 200, True
    asked = replace(request("a", [5], max_tokens=150, temperature=1.0, seed=1), constraint=constraint)
    outcome = drive(make_core(), [asked])["a", 0]
    assert len(outcome.token_ids) == 150
    assert 2 < constraint.num_asked < 12
