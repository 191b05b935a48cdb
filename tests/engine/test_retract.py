"""Retract: output that is taken back leaves no trace, in the cache, the counts, the stream or the law."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.engine import rng as engine_rng
from safegen.engine.backend import ForwardBatch
from safegen.engine.core import EngineCore
from safegen.engine.request import FinishedEvent, Request, SamplingParams, TokensEvent
from safegen.errors import EngineError, InvalidOutput, RequestError, RetractsExhausted
from safegen.grammars.constraint import NoCompletion, Retract
from tests.support.engine_driver import STOP, TOKEN_BYTES, Outcome, Outcomes, check, collect, drive, make_core, naive
from tests.support.engine_driver import make_request as plain_request
from tests.support.fake_backend import FakeBackend
from tests.support.naive_retract import Reference, reference
from tests.support.verified_constraint import Texts, VerifiedConstraint, arrays, holds

PIECES = [
    b"x[",
    b"[a",
    b"b]",
    b"]_",
    b"]_[",
    b"aa",
    b"[aab]",
    b"c]y",
    b"x(",
    b"([",
    b"][",
    b"])",
    b"a][b",
    b"x([ab",
    b"yy",
]
PIECES += [b"w(", b"([aa", b"[aa]"]
TOKENS: list[bytes | None] = [*TOKEN_BYTES]
TOKENS[1 : 1 + len(PIECES)] = PIECES
TAILS = (b"", b"y", b"yy")
TRIPLES = frozenset(b"x" + array + tail for array in arrays("abc", [3]) for tail in TAILS)
PAIRS = frozenset(b"x" + one + b"_" + two for one in arrays("abc", [2]) for two in arrays("abc", [1, 2]))
NESTED = frozenset(
    b"x(" + one + two + b")" + tail for one in arrays("ab", [1, 2]) for two in arrays("ab", [1, 2]) for tail in TAILS
)
DOOMED = frozenset(
    [b"p[aa]", b"p[bb]", b"w([aa][ab])", b"w([bb][ab])", b"w([cc][ab])y", b"v([ab][ba])", b"v([ab][ab])yy"]
)
ENDS = frozenset([b"x", b"x[aa]", b"x[bb]", b"x[aa]y"])
NOTHING = frozenset([b"x[aa]", b"x[bb]_[cc]", b"[aa]y"])
LONG = frozenset(b"x" + array for array in arrays("ab", [1, 2, 3, 4, 5]))
LANGUAGES = (TRIPLES, PAIRS, NESTED, LONG, DOOMED, ENDS, NOTHING)


def token(text: bytes) -> int:
    return TOKENS.index(text)


def request(request_id: str, prompt: Ids[int], language: Texts, **fields: Any) -> Request:
    stop_ids = frozenset({STOP})
    cache_salt = fields.pop("cache_salt", None)
    constraint = VerifiedConstraint(language, TOKENS, stop_ids)
    return Request(request_id, tuple(prompt), SamplingParams(**fields), stop_ids, constraint, cache_salt)


def fresh(one: Request) -> Request:
    """The same request again: an engine owns, and moves, the constraint that it is given."""
    return replace(one, constraint=None if one.constraint is None else one.constraint.fork())


def core_of(backend: FakeBackend | None = None, **settings: Any) -> EngineCore:
    return make_core(backend, token_bytes=TOKENS, **settings)


def text_of(token_ids: Ids[int]) -> bytes:
    return b"".join(TOKENS[token_id] or b"" for token_id in token_ids)


def mixed_requests(seed: int, count: int) -> list[Request]:
    """Requests whose answers are taken back, among others; prompts share prefixes with each other's outputs."""
    rng = random.Random(seed)
    prefix = [rng.randrange(1, 40) for _ in range(7)]
    made = []
    for number in range(count):
        head = prefix[: rng.choice([0, 4, 7, 7])]
        prompt = head + [rng.choice([42, 27, 33, 34, 40, 1, 2]) for _ in range(rng.randrange(0 if head else 1, 6))]
        fields: dict[str, Any] = {"max_tokens": rng.choice([2, 5, 9, 14, 20, 20, 20]), "seed": rng.randrange(100)}
        fields["temperature"] = rng.choice([0.0, 1.0, 1.0, 2.0])
        fields["n"] = rng.choice([1, 1, 1, 3])
        if rng.random() < 0.3:
            fields |= {"presence_penalty": 0.5, "repetition_penalty": 1.3, "frequency_penalty": 0.2}
        if rng.random() < 0.25:
            made.append(plain_request(f"r{number}", prompt, constrained=rng.random() < 0.5, **fields))
            continue
        if rng.random() < 0.6:
            fields["logit_bias"] = {token(b"a"): 3.0, token(b"b"): 2.0}
        if rng.random() < 0.2:
            fields["stop"] = rng.choice([("aa",), ("]y", "b]"), ("ab", "]_["), ("yy",)])
        fields["min_tokens"] = rng.choice([0, 0, 1, 2, 7]) if fields["max_tokens"] > 6 else 0
        fields["logprobs"] = rng.choice([None, None, 0, 2])
        fields["cache_salt"] = rng.choice([None, None, "tenant"])
        made.append(request(f"r{number}", prompt, rng.choice((TRIPLES, NESTED, *LANGUAGES)), **fields))
    return made


def is_verified(one: Request) -> bool:
    return isinstance(one.constraint, VerifiedConstraint)


def assert_as_reference(outcome: Outcome, wanted: Reference) -> None:
    finished = outcome.finished
    assert finished is not None
    assert outcome.token_ids == wanted.token_ids
    assert (finished.finish_reason, finished.forced_close) == (wanted.reason, wanted.forced_close), finished.error
    assert outcome.logprobs == wanted.logprobs
    text = text_of(wanted.token_ids)
    assert finished.stop_match == wanted.stop_match
    if wanted.stop_match is None:
        assert finished.text_bytes == len(text)
    else:
        assert text[finished.text_bytes :].startswith(wanted.stop_match.encode())
    assert isinstance(finished.error, RetractsExhausted) == (wanted.reason == "error")


def assert_as_naive(requests: list[Request], outcomes: Outcomes) -> int:
    """Everybody's answer is that of the naive loop, or a state of it where it was cancelled; returns the number of
    retracts on the way."""
    num_retracts = 0
    for one, index in ((asked, index) for asked in requests for index in range(asked.params.n)):
        outcome = outcomes[one.request_id, index]
        if not is_verified(one):
            wanted_ids = naive(one, index)
            assert outcome.token_ids == (wanted_ids[: len(outcome.token_ids)] if is_cancelled(outcome) else wanted_ids)
            continue
        wanted = reference(one, index, TOKENS)
        num_retracts += wanted.num_retracts
        if is_cancelled(outcome):
            assert tuple(outcome.token_ids) in wanted.states
        else:
            assert_as_reference(outcome, wanted)
    return num_retracts


def is_cancelled(outcome: Outcome) -> bool:
    return outcome.reason == "cancelled"


SETTINGS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks of 3": {"max_num_seqs": 3, "max_num_batched_tokens": 3},
    "no prefix cache": {"enable_prefix_caching": False},
    "blocks of 1": {"block_size": 1, "num_blocks": 70},
    "blocks of 2": {"block_size": 2, "num_blocks": 50},
    "preempting": {"num_blocks": 10},
    "preempting, blocks of 1": {"num_blocks": 36, "block_size": 1},
    "preempting, no cache, chunks": {
        "num_blocks": 10,
        "enable_prefix_caching": False,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(5))
def test_every_setting_gives_what_the_naive_loop_gives(name: str, seed: int) -> None:
    requests = mixed_requests(seed, 18)
    core = core_of(**SETTINGS[name])
    outcomes = drive(core, [fresh(one) for one in requests])
    assert assert_as_naive(requests, outcomes) >= 10
    if name.startswith("preempting"):
        assert core.stats().preemptions > 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 9), st.integers(0, 20), st.integers(0, 30), st.booleans()
)
def test_random_arrivals_cancels_and_settings_keep_every_answer(
    seed: int, block_size: int, max_num_seqs: int, extra_tokens: int, extra_blocks: int, caching: bool
) -> None:
    rng = random.Random(seed)
    requests = mixed_requests(seed, 10)
    arrivals: dict[int, list[Request]] = {}
    for one in requests:
        arrivals.setdefault(rng.randrange(25), []).append(fresh(one))
    cancelled = {one.request_id for one in requests if rng.random() < 0.25}
    cancels: dict[int, list[str]] = {}
    for request_id in sorted(cancelled):
        cancels.setdefault(rng.randrange(60), []).append(request_id)
    least = max(-(-(len(r.prompt_ids) + (r.params.max_tokens or 0) + 1) // block_size) for r in requests)
    core = core_of(
        block_size=block_size,
        num_blocks=least + extra_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + extra_tokens,
        enable_prefix_caching=caching,
    )
    assert_as_naive(requests, drive(core, arrivals, cancels))


# --- one sequence, step by step -------------------------------------------------------------------------------------


def prefer(backend: FakeBackend, prompt_length: int, *attempts: list[bytes]) -> None:
    """The model wants to spell the attempts, one after the other: the next one from where a position comes again."""
    turn = [0, -1]

    def apply(logits: Any) -> Any:
        batch = backend.batches[-1]
        for number, row in enumerate(batch.sampled_rows):
            place = int(batch.position[row]) - (prompt_length - 1)
            if place <= turn[1]:
                turn[0] += 1
            turn[1] = place
            wanted = attempts[min(turn[0], len(attempts) - 1)]
            logits[number, token(wanted[place]) if place < len(wanted) else STOP] = 50.0
        return logits

    backend.shape_logits = apply


def run_steps(core: EngineCore, asked: Request) -> list[list[bytes]]:
    """The texts of the events of each step; the last is of the step that ends the sequence."""
    core.add(asked)
    steps: list[list[bytes]] = []
    outcomes: Outcomes = {}
    while core.has_work:
        events = core.step()
        collect(events, outcomes)
        check(core)
        steps.append([text_of(event.token_ids) for event in events if isinstance(event, TokensEvent)])
    return steps


def test_text_of_an_open_node_is_held_back_until_it_passes() -> None:
    backend = FakeBackend()
    prefer(backend, 2, [b"x", b"[", b"a", b"b", b"]_[", b"c", b"]"])
    steps = run_steps(core_of(backend), request("a", [1, 2], PAIRS, max_tokens=20))
    assert steps == [[b"x"], [], [], [], [b"[ab"], [], [b"]_[c]"]]  # a token that ends and opens a node belongs to both
    prefer(backend, 2, [b"x", b"[", b"a", b"b", b"]", b"_", b"[", b"c", b"]"])
    steps = run_steps(core_of(backend), request("a", [1, 2], PAIRS, max_tokens=20))
    assert steps == [[b"x"], [], [], [], [b"[ab]"], [b"_"], [], [], [b"[c]"]]


def test_text_that_failed_is_never_shown_and_the_forced_prefix_is_spelled_again() -> None:
    backend = FakeBackend()
    core = core_of(backend)
    attempts = (
        [b"x[", b"aa", b"c", b"]"],
        [b"x", b"[", b"a", b"c", b"c", b"]"],
        [b"x", b"[", b"a", b"b", b"c", b"]", b"y"],
    )
    prefer(backend, 2, *attempts)
    steps = run_steps(core, request("a", [1, 2], TRIPLES, max_tokens=9))
    # the first attempt goes back to the prompt, because the token that opens the node begins before it
    assert steps == [[]] * 4 + [[b"x"]] + [[]] * 9 + [[b"[abc]"], [b"y"], []]
    stats = core.stats()
    assert (stats.retracts, stats.retracted_tokens, stats.output_tokens) == (2, 4 + 5, 7)


def test_the_parent_is_taken_back_when_nothing_is_left_of_the_node() -> None:
    backend = FakeBackend()
    core = core_of(backend, block_size=2)
    prefer(
        backend,
        2,
        [b"p", b"[", b"a", b"a", b"]"],
        [b"p", b"[", b"b", b"b", b"]"],
        [b"v", b"([", b"a", b"b", b"][", b"b", b"a", b"])"],
    )
    steps = run_steps(core, request("a", [1, 2], DOOMED, max_tokens=30))
    # "p" is not settled: no text that begins with it passes
    assert b"".join(text for texts in steps for text in texts) == b"v([ab][ba])"
    assert all(not texts for texts in steps[:9])
    assert core.stats().retracts == 2


def test_an_answer_that_a_retract_completes_stops_without_another_token() -> None:
    backend = FakeBackend()
    prefer(backend, 2, [b"x", b"[", b"a", b"a", b"]"], [b"x", b"[", b"b", b"b", b"]"])
    language = frozenset([b"x", b"x[aa]"])
    outcome = drive(core_of(backend), [request("a", [1, 2], language, max_tokens=30)])["a", 0]
    assert (text_of(outcome.token_ids), outcome.reason, len(backend.batches)) == (b"x", "stop", 5)


def test_retracts_are_bounded_and_then_the_sequence_ends_without_the_failed_text() -> None:
    for max_retracts in (0, 1, 3):
        backend = FakeBackend()
        core = core_of(backend, max_retracts=max_retracts)
        prefer(
            backend,
            2,
            *([b"x", b"[", one, two, b"a", b"]"] for one in (b"a", b"b", b"c") for two in (b"a",)),
            [b"x", b"[", b"b", b"b", b"a", b"]"],
        )
        outcome = drive(core, [request("a", [1, 2], TRIPLES, max_tokens=30)])["a", 0]
        finished = outcome.finished
        assert finished is not None and isinstance(finished.error, RetractsExhausted)
        assert isinstance(finished.error, InvalidOutput)
        assert (finished.finish_reason, finished.error.pointer, text_of(outcome.token_ids)) == ("error", "/[", b"x")
        assert (finished.text_bytes, finished.usage.completion_tokens) == (1, 1)
        assert f"{max_retracts} times" in str(finished.error)


def test_nothing_left_to_try_ends_without_the_failed_text() -> None:
    outcome = drive(core_of(), [request("a", [1, 2], NOTHING, max_tokens=30, temperature=1.0, seed=1)])["a", 0]
    assert outcome.finished is not None and isinstance(outcome.finished.error, RetractsExhausted)
    assert (outcome.token_ids, outcome.finished.text_bytes) == ([], 0)


def test_drawn_tokens_are_bounded_by_the_retracts() -> None:
    core = core_of(max_retracts=5)
    requests = [request(f"r{i}", [1, i], TRIPLES, max_tokens=8, temperature=1.5, seed=i, n=2) for i in range(8)]
    drive(core, requests)
    stats = core.stats()
    drawn = stats.output_tokens + stats.retracted_tokens
    assert stats.retracts > 20 and drawn <= 16 * (5 + 1) * 8


class Liar(VerifiedConstraint):
    """Says that everything is settled, and takes it back all the same; or keeps what was never committed."""

    lie = Retract(1, b"", "/liar")

    def settled(self) -> int:
        return len(self.ends) if self.lie.kept_tokens == 1 else 0

    def advance(self, ids: Ids[int]) -> Retract | None:
        return self.lie if super().advance(ids) else None


@pytest.mark.parametrize("kept_tokens", [-1, 1, 5])
def test_a_retract_outside_what_may_be_taken_back_ends_its_row_alone(kept_tokens: int) -> None:
    class Broken(Liar):
        lie = Retract(kept_tokens, b"", "/liar")

    backend = FakeBackend()
    prefer(backend, 2, [b"x", b"[", b"a", b"aa", b"]"])
    asked = Request(
        "a", (1, 2), SamplingParams(max_tokens=60), frozenset({STOP}), Broken(TRIPLES, TOKENS, frozenset({STOP}))
    )
    outcome = drive(core_of(backend), [asked])["a", 0]
    error = outcome.finished.error if outcome.finished else None
    assert type(error) is EngineError and "/liar" in str(error) and f"back to {kept_tokens} tokens" in str(error)
    assert text_of(outcome.token_ids) == b"x[aaa"


# --- blocks ---------------------------------------------------------------------------------------------------------


def test_a_block_that_another_request_found_in_the_cache_is_copied_before_it_is_written_again() -> None:
    backend = FakeBackend()
    core = core_of(backend, block_size=4)
    first = request("a", [1, 2], TRIPLES, max_tokens=9, logit_bias={token(b"a"): 90.0, token(b"x"): 99.0})
    core.add(fresh(first))
    outcomes: Outcomes = {}
    for _ in range(5):  # x [ a a a: the first block, of the prompt and "x[", and the next position are in the cache
        collect(core.step(), outcomes)
        check(core)
    assert core.stats().cached_blocks == 1 and core.stats().retracts == 0
    second = plain_request("b", [1, 2, token(b"x"), token(b"["), 5], max_tokens=12, stop_ids=())
    outcomes |= drive_on(core, [second], outcomes)
    assert core.stats().prefix_hit_tokens == 4 and core.stats().retracts > 0
    assert len(backend.copies) == 1
    assert_as_reference(outcomes["a", 0], reference(first, 0, TOKENS))
    assert outcomes["b", 0].token_ids == naive(second)


def drive_on(core: EngineCore, requests: list[Request], outcomes: Outcomes) -> Outcomes:
    for one in requests:
        core.add(one)
    while core.has_work:
        collect(core.step(), outcomes)
        check(core)
    return outcomes


def test_samples_that_go_back_to_a_shared_prompt_copy_it_before_they_write() -> None:
    backend = FakeBackend()
    core = core_of(backend, block_size=4)
    language = frozenset(arrays("ab", [2]))
    asked = request("a", [1, 2, 3, 4, 5, 6, 7, 8], language, n=4, max_tokens=9, temperature=1.0, seed=5)
    outcomes = drive(core, [fresh(asked)])
    assert assert_as_naive([asked], outcomes) >= 3
    assert len(backend.copies) >= 2  # of a full block, which no sample would ever write to without a retract
    assert len(backend.batches[0].ids) == 8


def test_a_lone_sequence_in_the_smallest_pool_retracts_in_place() -> None:
    for prompt_length in range(1, 9):
        asked = request("a", range(1, prompt_length + 1), TRIPLES, max_tokens=7, temperature=1.0, seed=3)
        backend = FakeBackend()
        core = core_of(backend, block_size=4, num_blocks=-(-(prompt_length + 7 + 1) // 4))
        outcomes = drive(core, [fresh(asked)])
        assert assert_as_naive([asked], outcomes) > 0
        assert (core.stats().preemptions, backend.copies) == (0, [])


def test_blocks_past_the_cut_are_given_back() -> None:
    backend = FakeBackend()
    core = core_of(backend, block_size=1, enable_prefix_caching=False)
    prefer(backend, 2, [b"x", b"[", b"a", b"a", b"c", b"]"], [b"x", b"[", b"a", b"b", b"c", b"]"])
    core.add(request("a", [1, 2], TRIPLES, max_tokens=9))
    free = []
    for _ in range(7):
        core.step()
        check(core)
        free.append(core.scheduler.pool.num_free)
    assert free == [62, 61, 60, 59, 58, 62, 61]  # the last token kept is computed again


def test_a_sequence_preempted_after_a_retract_is_computed_again_from_the_kept_tokens() -> None:
    backend = FakeBackend()
    core = core_of(backend, block_size=2, num_blocks=20)
    asked = request("a", [1, 2, 3], PAIRS, max_tokens=20, temperature=1.0, seed=0)
    core.add(fresh(asked))
    outcomes: Outcomes = {}
    num_retracts = 0
    while core.has_work:
        collect(core.step(), outcomes)
        if core.stats().retracts > num_retracts and core.scheduler.running:
            num_retracts = core.stats().retracts
            core.scheduler._preempt(core.scheduler.running[0])
        check(core)
    assert core.stats().preemptions == num_retracts > 1
    assert_as_naive([asked], outcomes)


# --- with everything else -------------------------------------------------------------------------------------------


def test_cancel_while_the_failing_token_is_computed_commits_nothing() -> None:
    backend = FakeBackend()
    core = core_of(backend)
    prefer(backend, 2, [b"x", b"[", b"a", b"a", b"c", b"]"])

    def cancel_last(batch: ForwardBatch) -> None:
        if batch.step_id == 5:
            core.cancel("a")

    backend.on_forward = cancel_last
    outcome = drive(core, [request("a", [1, 2], TRIPLES, max_tokens=9)])["a", 0]
    assert (outcome.reason, text_of(outcome.token_ids), core.stats().retracts) == ("cancelled", b"x[aac", 0)


def test_end_all_hands_out_what_is_held_back() -> None:
    backend = FakeBackend()
    core = core_of(backend)
    prefer(backend, 2, [b"x", b"[", b"a", b"a", b"c", b"]"])
    core.add(request("a", [1, 2], TRIPLES, max_tokens=9))
    outcomes: Outcomes = {}
    for _ in range(4):
        collect(core.step(), outcomes)
    collect(core.end_all("error", lambda: EngineError("fault")), outcomes)
    assert text_of(outcomes["a", 0].token_ids) == b"x[aa"


@pytest.mark.parametrize("stop", ["a]", "aa", "[a", "c]y"])
def test_stop_strings_see_only_text_that_stays(stop: str) -> None:
    asked = request("a", [1, 2], TRIPLES, max_tokens=9, stop=(stop,), logit_bias={token(b"a"): 9.0, token(b"yy"): 90.0})
    wanted = reference(asked, 0, TOKENS)
    assert_as_reference(drive(core_of(), [fresh(asked)])["a", 0], wanted)
    if stop == "a]":  # "[aaa]" ends in it, but that text fails when it closes
        assert wanted.num_retracts > 0 and b"aaa]" not in text_of(wanted.token_ids)


@pytest.mark.parametrize("max_tokens", range(1, 14))
@pytest.mark.parametrize("language", [TRIPLES, PAIRS, NESTED, LONG], ids=["triples", "pairs", "nested", "long"])
def test_budget_aware_close_gives_an_answer_that_passes_however_often_it_goes_back(
    max_tokens: int, language: Texts
) -> None:
    requests = [
        request(f"r{seed}", [1, seed], language, max_tokens=max_tokens, temperature=2.0, seed=seed) for seed in range(9)
    ]
    shortest = VerifiedConstraint(language, TOKENS, frozenset()).shortest_completion()
    outcomes = drive(core_of(), [fresh(one) for one in requests])
    for one, outcome in zip(requests, outcomes.values()):
        finished = outcome.finished
        assert finished is not None and finished.usage.completion_tokens <= max_tokens
        if len(shortest) <= max_tokens:
            text = text_of(outcome.token_ids)
            assert text in language and holds(text), f"{text!r} of {one.request_id}"
    assert_as_naive(requests, outcomes)


def close_of(attempts: list[list[bytes]], language: Texts, max_tokens: int) -> tuple[list[bytes], EngineCore, Outcome]:
    backend = FakeBackend()
    core = core_of(backend)
    prefer(backend, 2, *attempts)
    asked = request("a", [1, 2], language, max_tokens=max_tokens, logprobs=0)
    outcome = drive(core, [asked])["a", 0]
    assert outcome.finished is not None and (outcome.reason, outcome.finished.forced_close) == ("length", True)
    assert outcome.finished.text_bytes == len(text_of(outcome.token_ids))
    return [text_of([token_id]) for token_id in outcome.token_ids], core, outcome


def test_text_that_only_a_retract_can_end_is_taken_back_at_the_limit() -> None:
    drawn = [b"x", b"[", b"a", b"a", b"b", b"b", b"b", b"]"]
    tokens, core, outcome = close_of([drawn], LONG, 6)
    assert tokens == [b"x", b"[", b"a", b"]"]  # the shortest answer that was known after "x[a"
    assert [entry.token_id for entry in outcome.logprobs] == outcome.token_ids[:3]
    assert core.stats().retracts == 0


def test_the_close_known_before_a_retract_is_kept_where_the_constraints_own_no_longer_fits() -> None:
    # known after two tokens: "b" "a" "]" ")"; from the start, where it goes back to, byte by byte there are eleven
    language = frozenset([b"x([ab][ab])", b"x([ab][ba])"])
    drawn = [b"x([ab", b"][", b"a", b"b", b"])"]
    tokens, core, outcome = close_of([drawn, [b"x"]], language, 6)
    assert tokens == [b"x([ab", b"][", b"b", b"a", b"]", b")"]
    assert outcome.logprobs == []  # none of these was drawn in the end
    assert core.stats().retracts == 1


def test_a_close_from_before_a_doomed_part_outlives_its_retracts() -> None:
    language = frozenset([b"p[aa]", b"p[aabb]", b"r[ab]"])
    drawn = [b"p", b"[", b"a", b"a", b"]"], [b"p", b"[", b"a", b"a", b"b"]
    tokens, core, _ = close_of([*drawn], language, 5)
    assert tokens == [b"r", b"[", b"a", b"b", b"]"]
    assert core.stats().retracts == 1


class Forgetful(VerifiedConstraint):
    """Knows no completion while an array is still to come."""

    def shortest_completion(self) -> tuple[int, ...]:
        if self.text and self.text.count(b"]") < 2:
            raise NoCompletion("no array is at hand")
        return super().shortest_completion()


@pytest.mark.parametrize("max_tokens", range(9, 40))
def test_where_no_end_is_known_the_known_answer_is_closed_near_the_limit_and_given_up_far_from_it(
    max_tokens: int,
) -> None:
    backend = FakeBackend()
    prefer(backend, 2, [b"x", b"[", b"b", b"a", b"]", b"_", b"[", b"c", b"]"])
    stop_ids = frozenset({STOP})
    asked = Request("a", (1, 2), SamplingParams(max_tokens=max_tokens), stop_ids, Forgetful(PAIRS, TOKENS, stop_ids))
    outcome = drive(core_of(backend), [asked])["a", 0]
    # "]", the fifth token, settles text past "x[", the last from which an end was known, "ab]_[a]"
    is_near = max_tokens - 4 <= 2 * 7 + 16
    assert text_of(outcome.token_ids) == (b"x[ab]_[a]" if is_near else b"x[ba]_[c]")
    assert outcome.finished is not None and outcome.finished.forced_close == is_near


def test_no_number_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    uniform = engine_rng.uniform

    def record(*counter: int) -> float:
        drawn.append(counter)
        return uniform(*counter)

    monkeypatch.setattr(engine_rng, "uniform", record)
    drive(core_of(), [request("a", [1], TRIPLES, max_tokens=20, temperature=1.0, seed=3, n=5)])
    assert len(drawn) == len(set(drawn)) > 40
    assert {attempt for *_, attempt in drawn} >= {0, 1, 2}


def test_logprobs_and_penalties_are_those_of_the_text_that_stays() -> None:
    fields: dict[str, Any] = {
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.7,
        "logprobs": 3,
    }
    asked = [request(f"r{i}", [1, i], TRIPLES, max_tokens=9, temperature=1.0, seed=i, **fields) for i in range(12)]
    assert assert_as_naive(asked, drive(core_of(), [fresh(one) for one in asked])) > 20


def test_an_answer_without_retracts_is_drawn_as_ever() -> None:
    pinned = [0.9007596233153624, 0.8720734548204873, 0.0828426870273763]  # those of the first version
    assert [engine_rng.uniform(7, 0, place, 0) for place in range(3)] == pinned
    assert engine_rng.uniform(7, 0, 0, 1) != pinned[0]


@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_max_retracts_is_checked_by_name(value: Any) -> None:
    with pytest.raises(RequestError, match="max_retracts must be an integer >= 0") as caught:
        core_of(max_retracts=value)
    assert caught.value.field == "max_retracts"


def test_finished_event_of_a_retracted_sequence_counts_what_was_handed_out() -> None:
    asked = request("a", [1], TRIPLES, max_tokens=20, temperature=1.0, seed=3)
    finished = drive(core_of(), [fresh(asked)])["a", 0].finished
    assert isinstance(finished, FinishedEvent)
    assert finished.usage.completion_tokens == len(reference(asked, 0, TOKENS).token_ids)
