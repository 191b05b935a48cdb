"""Drafts of a model, over fakes that show what is wrong in a cache: a draft model that equals the target is never
rejected, whatever happens to the sequences, and one that does not changes no answer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from safegen.engine import rng
from safegen.engine.backend import ForwardBatch
from safegen.engine.request import Request, SamplingParams
from safegen.engine.speculate.vocabulary import check_same_vocabulary
from safegen.errors import ModelLoadError
from safegen.grammars.constraint import Retract
from tests.support.engine_driver import STOP, drive, make_core, make_request, naive
from tests.support.fake_backend import FakeBackend
from tests.support.model_drafts import KINDS, Kind, ModelCore, as_it_is, noised
from tests.support.verified_constraint import LONE_ARRAYS, LONE_TOKENS, VerifiedConstraint

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed get the next number."""
    numbers = itertools.count()
    monkeypatch.setattr(rng, "fresh_seed", lambda: next(numbers))


def requests(count: int, **fields: Any) -> list[Request]:
    fields = {"max_tokens": 20, "temperature": 1.0, **fields}
    return [
        make_request(f"r{i}", [i + 1, 2, 3 + i % 2], constrained=i % 2 == 1, **{"seed": i, **fields})
        for i in range(count)
    ]


def assert_naive(made: ModelCore, asked: list[Request], **driven: Any) -> None:
    wanted = {(one.request_id, index): naive(one, index) for one in asked for index in range(one.params.n)}
    outcomes = drive(made.core, driven.get("arrivals", asked))
    assert {key: outcome.token_ids for key, outcome in outcomes.items()} == wanted
    assert made.has_all_blocks


def rejected(made: ModelCore) -> int:
    stats = made.core.stats()
    return stats.drafted_tokens - stats.accepted_tokens


# --- answers --------------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_answers_are_those_without_drafts(kind: Kind, count: int, temperature: float, adaptive: bool) -> None:
    made = ModelCore(kind, noised(0.7), adaptive=adaptive)
    assert_naive(made, requests(count, temperature=temperature))
    counts = made.core.stats().by_drafter
    if not adaptive:  # else it may be off at once
        assert set(counts) == {kind}
        assert 0 < counts[kind].accepted < counts[kind].drafted


@each_kind
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"seed": None},
        {"seed": None, "top_k": 7, "min_p": 0.05},
        {"seed": None, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logit_bias": {7: 2.0}},
        {"temperature": 0.0, "presence_penalty": 0.9},
        {"seed": None, "min_tokens": 6, "stop_ids": tuple(range(9))},
        {"seed": None, "n": 3, "stop_ids": ()},
    ],
    ids=str,
)
def test_a_draft_model_that_equals_the_target_is_rejected_only_where_an_answer_ends(
    kind: Kind, fields: dict[str, Any]
) -> None:
    """What comes after a token that ends an answer is not there to be accepted; nothing else is ever rejected."""
    made = ModelCore(kind)
    asked = requests(6, **{"stop_ids": (), **fields})
    outcomes = drive(made.core, asked)
    stats = made.core.stats()
    assert stats.accepted_tokens > 30
    assert rejected(made) <= sum(outcome.reason != "length" for outcome in outcomes.values())
    num_tokens = sum(len(outcome.token_ids) for outcome in outcomes.values())
    assert stats.steps < num_tokens / 2
    assert made.has_all_blocks


@each_kind
def test_preempted_sequences_go_on_with_right_drafts(kind: Kind) -> None:
    asked = [
        make_request(f"r{i}", [i + 1, 2, 3], max_tokens=20, seed=i, temperature=1.0, stop_ids=()) for i in range(5)
    ]
    made = ModelCore(kind, num_blocks=12)
    assert_naive(made, asked)
    assert made.core.stats().preemptions and rejected(made) == 0 and made.core.stats().accepted_tokens > 10


@each_kind
def test_so_they_do_with_wrong_ones(kind: Kind) -> None:
    made = ModelCore(kind, noised(1.5), num_blocks=11)
    assert_naive(made, requests(6, stop_ids=()))
    assert made.core.stats().preemptions and rejected(made)


@each_kind
def test_long_prompts_in_pieces_and_late_arrivals(kind: Kind) -> None:
    asked = [
        make_request(f"r{i}", [i + 1, *range(2, 40 - 5 * i)], max_tokens=12, seed=i, temperature=1.0, stop_ids=())
        for i in range(5)
    ]
    made = ModelCore(kind, max_num_batched_tokens=9, max_tokens_a_forward=6)
    assert_naive(made, asked, arrivals={step: [one] for step, one in enumerate(asked)})
    assert made.core.stats().accepted_tokens > 10 and rejected(made) == 0


@each_kind
def test_samples_of_one_prompt_draft_for_themselves(kind: Kind) -> None:
    asked = make_request("a", [5, 7, 9], max_tokens=18, temperature=1.0, seed=2, n=4, stop_ids=())
    made = ModelCore(kind)
    assert_naive(made, [asked])
    assert rejected(made) == 0


@each_kind
def test_cached_prompts_are_not_written_over(kind: Kind) -> None:
    """The driver fails a forward that writes into a block that is shared or that the prefix cache finds."""
    made = ModelCore(kind, noised(0.5))
    for _ in range(3):
        assert_naive(made, [make_request(f"r{i}", range(1, 17), max_tokens=9, seed=i, stop_ids=()) for i in range(3)])
    assert made.core.stats().prefix_hit_tokens


# --- retract, cancel ------------------------------------------------------------------------------------------------


@each_kind
def test_a_retract_takes_the_drafts_along(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    retracted: list[Retract] = []
    advance = VerifiedConstraint.advance

    def note(constraint: VerifiedConstraint, ids: Ids[int]) -> Retract | None:
        retract = advance(constraint, ids)
        if retract is not None:
            retracted.append(retract)
        return retract

    monkeypatch.setattr(VerifiedConstraint, "advance", note)
    for shape in (as_it_is, noised(1.0)):
        made = ModelCore(kind, shape, token_bytes=LONE_TOKENS)
        plain = make_core(token_bytes=LONE_TOKENS)
        for seed in range(20):
            constraint = VerifiedConstraint(LONE_ARRAYS, LONE_TOKENS, frozenset({STOP}))
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=30)
            asked = Request("a", (5, 7, 9), params, frozenset({STOP}), constraint)
            wanted = drive(plain, [replace(asked, constraint=constraint.fork())])["a", 0]
            got = drive(made.core, [asked])["a", 0]
            assert (got.token_ids, got.reason) == (wanted.token_ids, wanted.reason)
        assert made.has_all_blocks and made.core.stats().accepted_tokens
        assert made.core.stats().retracts == plain.stats().retracts > 0
    assert len(retracted) > 10


@each_kind
def test_cancel_gives_the_blocks_back(kind: Kind) -> None:
    made = ModelCore(kind)
    asked = requests(4, stop_ids=(), max_tokens=40)
    outcomes = drive(made.core, asked, cancels={3: ["r1"], 4: ["r3", "r0"]})
    assert [outcomes[one.request_id, 0].reason for one in asked[::2]] == ["cancelled", "length"]
    assert outcomes["r2", 0].token_ids == naive(asked[2])
    assert made.has_all_blocks


@each_kind
def test_end_all_leaves_a_drafter_that_goes_on(kind: Kind) -> None:
    made = ModelCore(kind)
    asked = requests(3, stop_ids=())
    for one in asked:
        made.core.add(one)
    for _ in range(3):
        made.core.step()
    made.core.end_all("error", lambda: RuntimeError("over"))
    assert made.has_all_blocks
    assert_naive(made, requests(3, stop_ids=()))


# --- short of room --------------------------------------------------------------------------------------------------


def test_a_draft_model_with_few_blocks_drafts_less() -> None:
    made = ModelCore("model", noised(0.5))
    made.cache.allocate(5, 4)
    assert_naive(made, requests(6, stop_ids=()))
    assert made.core.stats().accepted_tokens


@pytest.mark.parametrize("max_context", [12, 13])
def test_a_draft_model_with_a_short_context_stops_at_its_end(max_context: int) -> None:
    made = ModelCore("model", max_context=max_context)
    assert_naive(made, [make_request("a", [1, 2, 3], max_tokens=30, seed=1, stop_ids=())])
    assert max(int(batch.context_len.max()) for batch in made.draft.batches) == max_context
    assert made.core.stats().accepted_tokens == max_context - 4


def test_a_second_model_computes_a_prompt_that_it_knows_no_second_time() -> None:
    made = ModelCore("model")
    prompt = list(range(1, 30))
    drive(made.core, [make_request("a", prompt, max_tokens=9, seed=1, stop_ids=())])
    made.draft.batches.clear()
    drive(made.core, [make_request("b", prompt, max_tokens=9, seed=2, stop_ids=(), n=3)])
    assert sum(len(batch.ids) for batch in made.draft.batches) < 3 * (1 + 9) + 5
    made.draft.batches.clear()
    drive(made.core, [make_request("c", prompt, max_tokens=9, seed=2, stop_ids=(), cache_salt="other")])
    assert sum(len(batch.ids) for batch in made.draft.batches) >= len(prompt)


@each_kind
def test_a_cheap_draft_model_that_is_right_is_used(kind: Kind) -> None:
    made = ModelCore(kind, adaptive=True)
    made.takes(0.004, 0.0002)
    asked = [make_request("a", [1, 2, 3], max_tokens=60, seed=1, stop_ids=())]
    assert_naive(made, asked)
    assert made.core.stats().steps < 30 and rejected(made) == 0


@each_kind
def test_a_draft_model_that_takes_as_long_as_the_target_is_not_used(kind: Kind) -> None:
    made = ModelCore(kind, adaptive=True)
    made.takes(0.004, 0.004)
    asked = [make_request(f"r{n}", [n, 2, 3], max_tokens=60, seed=1, stop_ids=()) for n in range(1, 3)]
    assert_naive(made, asked)
    assert made.core.stats().drafted_tokens < 30


def test_a_second_model_computes_each_committed_token_once() -> None:
    made = ModelCore("model")
    drive(made.core, [make_request("a", [1, 2, 3], max_tokens=30, seed=1, stop_ids=())])
    positions = Counter(position for batch in made.draft.batches for position in batch.position.tolist())
    assert set(positions.values()) == {1}


# --- broken draft models --------------------------------------------------------------------------------------------


def filled(value: float) -> Any:
    return lambda logits: np.full_like(logits, value)


def one_nan(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    logits = logits.copy()
    logits[..., 7] = np.nan
    return logits


def raising(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    raise OSError("no forward")


BROKEN = {
    "NaN": filled(np.nan), "-inf": filled(-np.inf), "inf": filled(np.inf), "one NaN": one_nan, "raises": raising,
    "no rows": lambda logits: logits[:0],
    "flat": lambda logits: logits.reshape(-1), "narrow": lambda logits: logits[:, :9],
    "none": lambda logits: None, "doubles": lambda logits: logits.astype(np.float64),
}  # fmt: skip


@each_kind
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_draft_model_costs_no_request(kind: Kind, name: str) -> None:
    made = ModelCore(kind, BROKEN[name])
    assert_naive(made, requests(4))
    unseeded = drive(made.core, requests(4, seed=None))
    assert all(outcome.reason in ("stop", "length") for outcome in unseeded.values())
    assert made.has_all_blocks


@each_kind
def test_a_forward_that_fails_inside_a_draft_ends_it_there(kind: Kind) -> None:
    made = ModelCore(kind)

    def fail_third(batch: ForwardBatch) -> None:
        if made.num_drafting % 3 == 0 and made.is_drafting:
            raise OSError("third")

    made.draft.on_forward = fail_third
    assert_naive(made, requests(4, stop_ids=()))
    assert made.core.stats().accepted_tokens > 8


def test_a_draft_model_with_a_wider_head_is_cut_to_the_vocabulary() -> None:
    made = ModelCore("model", lambda logits: np.pad(logits, ((0, 0), (0, 3)), constant_values=99.0))
    assert_naive(made, requests(4))
    assert rejected(made) <= 4


@each_kind
def test_a_drafter_that_never_pays_turns_itself_off(kind: Kind) -> None:
    asked = [make_request(f"r{i}", [i + 1, 2], max_tokens=60, seed=i, temperature=1.0, stop_ids=()) for i in range(8)]
    made = ModelCore(kind, lambda logits: logits[:, ::-1], adaptive=True, num_blocks=256)
    made.takes(0.004, 0.001)
    assert_naive(made, asked)
    first = made.core.stats().drafted_tokens
    again = [replace(one, request_id=f"again {one.request_id}") for one in asked]
    drive(made.core, again)
    assert made.core.stats().drafted_tokens - first < 0.5 * first + 20


# --- vocabulary -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "place"),
    [([b"a", b"c", None], 1), ([b"a", b"b"], 2), ([b"a", b"b", None, b"d"], 3), ([b"a", b"b", b""], 2), ([], 0)],
)
def test_a_draft_model_of_other_tokens_is_refused_by_the_first_that_differs(
    draft: list[bytes | None], place: int
) -> None:
    check_same_vocabulary([b"a", b"b", None], [b"a", b"b", None], "target", "draft")
    with pytest.raises(ModelLoadError, match=rf"draft: .* target: token id {place} is ") as caught:
        check_same_vocabulary([b"a", b"b", None], draft, "target", "draft")
    assert caught.value.path == "draft"


def test_the_second_models_blocks_are_paid_from_the_same_memory() -> None:
    from safegen.engine.config import EngineConfig
    from safegen.engine.core import EngineCore
    from safegen.engine.speculate.draft_backend import WithDraftModel
    from safegen.engine.speculate.draft_cache import OwnCache
    from tests.support.engine_driver import TOKEN_BYTES

    cache, backend = OwnCache(512), FakeBackend()
    core = EngineCore(
        WithDraftModel(backend, FakeBackend(), cache), TOKEN_BYTES, EngineConfig(kv_cache_memory=1000, block_size=4)
    )
    assert core.stats().num_blocks == 1000 // (2 * backend.bytes_per_block(4)) == cache.num_free
