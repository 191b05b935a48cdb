"""The logits pipeline against a plain reference, the draw against enumeration, the generator against numpy's."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from safegen.engine.logits import EmptyMask, History, Law, LogitsPipeline, NonFiniteLogits, RowBuffers, Target
from safegen.engine.request import SamplingParams
from safegen.engine.rng import philox4x64, uniform
from safegen.engine.sampler import draw, token_logprobs
from safegen.grammars.constraint import MaskRows

VOCAB = 70


def mask_of(legal: set[int]) -> NDArray[np.int32]:
    rows = MaskRows.allocate(1, VOCAB)
    words = rows.words.view(np.uint32)
    for token in legal:
        words[0, token // 32] |= np.uint32(1 << (token % 32))
    first: NDArray[np.int32] = rows.words[0]
    return first


def run(
    row: NDArray[np.float32],
    params: SamplingParams,
    *,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    stops: frozenset[int] = frozenset(),
    legal: set[int] | None = None,
) -> Target:
    pipeline = LogitsPipeline(params, prompt, stops, RowBuffers(len(row)))
    return pipeline.target(row, History(len(output), Counter(output)), None if legal is None else mask_of(legal))


def reference_law(
    row: NDArray[np.float32],
    params: SamplingParams,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    stops: frozenset[int],
    legal: set[int] | None,
) -> dict[int, float]:
    """The documented order, one token at a time, without an array in sight."""
    scores = {token: float(value) for token, value in enumerate(row)}
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in scores:
        if token in prompt or token in output:
            value = scores[token]
            scores[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty * (token in output)
    allowed = set(scores) if legal is None else set(legal)
    if len(output) < params.min_tokens and allowed - stops:
        allowed -= stops
    scores = {token: scores[token] for token in allowed}
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if params.temperature == 0:
        return {ranked[0]: 1.0}
    ranked = ranked[: params.top_k] if params.top_k else ranked
    best = scores[ranked[0]]
    weights = {token: math.exp((scores[token] - best) / params.temperature) for token in ranked}
    total, so_far, kept = sum(weights.values()), 0.0, []
    for token in ranked:
        kept.append(token)
        so_far += weights[token]
        if params.top_p < 1 and so_far >= params.top_p * total:
            break
    kept = [token for token in kept if weights[token] >= params.min_p]
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


rows = st.integers(0, 2**32).map(
    lambda seed: (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)
)
tokens = st.integers(0, VOCAB - 1)
unsigned_words = st.integers(0, 2**64 - 1)


@settings(max_examples=150, deadline=None)
@given(
    row=rows,
    prompt=st.lists(tokens, max_size=6).map(tuple),
    output=st.lists(tokens, max_size=6).map(tuple),
    stops=st.frozensets(tokens, max_size=3),
    legal=st.one_of(st.none(), st.sets(tokens, min_size=1)),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.3, 1.0, 2.5]),
            "top_k": st.integers(1, VOCAB + 5),
            "top_p": st.sampled_from([0.05, 0.5, 0.9]),
            "min_p": st.sampled_from([0.01, 0.2, 1.0]),
            "min_tokens": st.integers(1, 8),
            "repetition_penalty": st.sampled_from([0.7, 1.6]),
            "presence_penalty": st.sampled_from([-1.5, 0.5]),
            "frequency_penalty": st.sampled_from([-0.5, 1.5]),
            "logit_bias": st.dictionaries(tokens, st.sampled_from([-3.0, 2.0, 8.0]), max_size=4),
        },
    ),
)
def test_pipeline_is_the_documented_order(
    row: NDArray[np.float32],
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    stops: frozenset[int],
    legal: set[int] | None,
    fields: dict[str, Any],
) -> None:
    params = SamplingParams(**fields)
    law = run(row, params, prompt=prompt, output=output, stops=stops, legal=legal).law
    wanted = reference_law(row, params, prompt, output, stops, legal)
    assert law.ids.tolist() == sorted(wanted)
    assert law.probs == pytest.approx([wanted[token] for token in sorted(wanted)], rel=1e-5)
    assert law.probs.dtype == np.float64 and law.probs.sum() == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(rows, st.one_of(st.none(), st.sets(tokens, min_size=1)))
def test_greedy_fast_path_chooses_what_the_full_pipeline_chooses(
    row: NDArray[np.float32], legal: set[int] | None
) -> None:
    fast = run(row, SamplingParams(), legal=legal)
    full = run(row, SamplingParams(logprobs=0), legal=legal)
    assert full.ids is not None and (legal is None) <= (fast.ids is None)
    assert fast.law.ids.tolist() == full.law.ids.tolist()


def test_row_is_left_as_it_was() -> None:
    row = np.arange(VOCAB, dtype=np.float32)
    run(row, SamplingParams(temperature=1.0, logit_bias={3: 9.0}, presence_penalty=1.0), output=(4,), legal={3, 4})
    assert np.array_equal(row, np.arange(VOCAB, dtype=np.float32))


def test_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    assert run(row, SamplingParams()).law.ids.tolist() == [0]
    assert run(row, SamplingParams(), legal={31, 40, 69}).law.ids.tolist() == [31]
    assert run(row, SamplingParams(temperature=1.0, top_k=3)).law.ids.tolist() == [0, 1, 2]
    assert run(row, SamplingParams(temperature=1.0, top_p=0.04)).law.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 6.0])
@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.97, 0.99999])
def test_nucleus_of_a_large_vocabulary_is_that_of_the_full_sort(spread: float, top_p: float) -> None:
    row = (np.random.default_rng(5).standard_normal(5000) * spread).astype(np.float32)
    law = run(row, SamplingParams(temperature=1.0, top_p=top_p)).law
    probs = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-probs, kind="stable")
    count = int(np.searchsorted(np.cumsum(probs[order]), top_p * probs.sum())) + 1
    assert law.ids.tolist() == sorted(order[:count].tolist())


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e30, 1.7e308])
def test_extreme_temperatures_give_a_law(temperature: float) -> None:
    row = np.linspace(-5, 5, VOCAB, dtype=np.float32)
    law = run(row, SamplingParams(temperature=temperature)).law
    assert law.ids.size == (1 if temperature < 1 else VOCAB)
    assert law.probs.sum() == pytest.approx(1.0)


# --- legality -------------------------------------------------------------------------------------------------------


def test_mask_has_the_last_word_over_bias_and_penalties() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    params = SamplingParams(logit_bias={5: 1e30}, presence_penalty=-2.0, temperature=1.0)
    assert run(row, params, output=(5, 5), legal={31, 63}).law.ids.tolist() == [31, 63]


def test_min_tokens_masks_stop_ids_until_they_are_due() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    row[7] = 9.0
    params = SamplingParams(min_tokens=2)
    assert run(row, params, stops=frozenset({7}), output=(3,)).law.ids.tolist() == [0]
    assert run(row, params, stops=frozenset({7}), output=(3, 4)).law.ids.tolist() == [7]


def test_constraint_wins_where_min_tokens_leaves_nothing() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    params = SamplingParams(min_tokens=9)
    assert run(row, params, stops=frozenset({7}), legal={7}).law.ids.tolist() == [7]
    assert run(row, params, stops=frozenset({7}), legal={7, 9}).law.ids.tolist() == [9]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_empty_mask_is_a_named_error(temperature: float) -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    with pytest.raises(EmptyMask, match="mask is empty"):
        run(row, SamplingParams(temperature=temperature), legal=set())
    with pytest.raises(EmptyMask, match="logit_bias"):
        run(row, SamplingParams(temperature=temperature, logit_bias={3: -math.inf}), legal={3})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
def test_non_finite_logits_are_a_named_error(bad: float, params: SamplingParams) -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    row[4] = bad
    with pytest.raises(NonFiniteLogits):
        run(row, params)
    assert run(row, params, legal={3}).law.ids.tolist() == [3]


# --- draw -----------------------------------------------------------------------------------------------------------


def test_draw_is_the_inverse_of_the_cumulative_law() -> None:
    law = Law(np.array([2, 5, 9]), np.array([0.25, 0.5, 0.25]))
    grid = [(number + 0.5) / 1000 for number in range(1000)]
    assert Counter(draw(law, u) for u in grid) == {2: 250, 5: 500, 9: 250}
    assert [draw(law, u) for u in (0.0, 0.25, 0.75, math.nextafter(1.0, 0.0))] == [2, 5, 9, 9]
    assert [draw(law, math.nextafter(u, 0.0)) for u in (0.25, 0.75)] == [2, 5]


@settings(max_examples=60, deadline=None)
@given(rows, st.sets(tokens, min_size=1), st.sampled_from([0.0, 0.5, math.nextafter(1.0, 0.0)]))
def test_illegal_token_is_never_drawn_not_even_at_the_ends(row: NDArray[np.float32], legal: set[int], u: float) -> None:
    assert draw(run(row, SamplingParams(temperature=1.0), legal=legal).law, u) in legal


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 2000))
def test_draw_over_blocks_is_the_draw_over_the_whole_law(seed: int, num_ids: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 2**20, num_ids)  # sums of integers are exact, in any order
    law = Law(np.sort(rng.choice(10_000, num_ids, replace=False)), weights.astype(np.float64))
    total = int(weights.sum())
    for number in [0, total - 1, *rng.integers(0, total, 20).tolist()]:
        expected = int(law.ids[np.searchsorted(np.cumsum(weights), number, side="right")])
        assert draw(law, (number + 0.25) / total) == expected


def test_draws_follow_the_law() -> None:
    row = np.array([0.0, 1.0, 2.0, -1.0], dtype=np.float32)
    law = (
        LogitsPipeline(SamplingParams(temperature=1.0), (1,), frozenset(), RowBuffers(4))
        .target(row, History(0, {}), None)
        .law
    )
    count = 20_000
    seen = Counter(draw(law, uniform(11, 0, position)) for position in range(count))
    for token, prob in zip(law.ids.tolist(), law.probs.tolist()):
        assert abs(seen[token] - count * prob) < 5 * math.sqrt(count * prob * (1 - prob))


# --- random numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counter", [(0, 0, 0, 0), (7, 3, 1, 0), (2**64 - 2, 2**64 - 1, 5, 2**63)])
@pytest.mark.parametrize("key", [(0, 0), (2**64 - 1, 12345), (42, 0)])
def test_philox_is_numpys(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    # numpy counts up before it draws
    oracle = np.random.Philox(counter=np.array(counter, dtype=np.uint64), key=np.array(key, dtype=np.uint64))
    ahead = (counter[0] + 1, *counter[1:])
    assert list(philox4x64(ahead, key)) == oracle.random_raw(4).tolist()


def test_uniforms_differ_by_every_coordinate_and_repeat_exactly() -> None:
    base = uniform(1, 2, 3, 4)
    assert uniform(1, 2, 3, 4) == base
    others = {uniform(2, 2, 3, 4), uniform(1, 3, 3, 4), uniform(1, 2, 4, 4), uniform(1, 2, 3, 5)}
    assert len(others) == 4 and base not in others
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


@given(unsigned_words, unsigned_words, unsigned_words, unsigned_words)
def test_uniform_is_the_upper_bits_of_philox(seed: int, index: int, position: int, attempt: int) -> None:
    word = philox4x64((position, index, attempt, 0), (seed, 0))[0]
    assert uniform(seed, index, position, attempt) == (word >> 11) * 2.0**-53


def test_uniforms_are_uniform() -> None:
    values = np.array([uniform(seed, 0, position) for seed in range(20) for position in range(500)])
    assert values.min() >= 0 and values.max() < 1
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert (((counts - 500) ** 2) / 500).sum() < 50  # chi-square, 19 degrees of freedom: p > 0.0001


# --- logprobs -------------------------------------------------------------------------------------------------------


def ids_of(entries: tuple[tuple[int, float], ...]) -> list[int]:
    return [token for token, _ in entries]


def values_of(entries: tuple[tuple[int, float], ...]) -> list[float]:
    return [value for _, value in entries]


def test_logprobs_of_a_greedy_constrained_row() -> None:
    row = np.array([3.0, 2.0, 1.0, 0.0], dtype=np.float32)
    pipeline = LogitsPipeline(SamplingParams(logprobs=2, logit_bias={2: 0.5}), (1,), frozenset(), RowBuffers(4))
    rows_of_four = MaskRows.allocate(1, 4)
    rows_of_four.words[0, 0] = 0b0110
    found = token_logprobs(row, pipeline.target(row, History(0, {}), rows_of_four.words[0]), 1, 2)
    total = math.log(sum(math.exp(value) for value in row))
    assert found.raw == pytest.approx(2.0 - total)
    assert ids_of(found.top_raw) == [0, 1]
    assert values_of(found.top_raw) == pytest.approx([3.0 - total, 2.0 - total])
    masked = math.log(math.exp(2.0) + math.exp(1.5))
    assert found.constrained == pytest.approx(2.0 - masked)
    assert ids_of(found.top_constrained) == [1, 2]
    assert values_of(found.top_constrained) == pytest.approx([2.0 - masked, 1.5 - masked])


def test_logprobs_of_a_sampled_row_are_those_of_the_law_it_was_drawn_from() -> None:
    row = np.array([3.0, 2.0, 1.0, 0.0], dtype=np.float32)
    params = SamplingParams(temperature=0.5, top_k=2, logprobs=4)
    target = LogitsPipeline(params, (1,), frozenset(), RowBuffers(4)).target(row, History(0, {}), None)
    found = token_logprobs(row, target, 0, 4)
    share = math.exp(6.0) / (math.exp(6.0) + math.exp(4.0))
    assert ids_of(found.top_constrained) == [0, 1]
    assert values_of(found.top_constrained) == pytest.approx([math.log(share), math.log(1 - share)])
    assert len(found.top_raw) == 4
    single = LogitsPipeline(SamplingParams(temperature=0.5, top_k=1, logprobs=1), (1,), frozenset(), RowBuffers(4))
    assert token_logprobs(row, single.target(row, History(0, {}), None), 0, 1).constrained == 0.0
