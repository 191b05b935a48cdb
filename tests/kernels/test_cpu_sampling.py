"""The native draw against the Python law: the same id, unless the uniform number lies on a boundary of the law."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from safegen import _native
from safegen.engine.logits import EmptyMask, History, Law, LogitsPipeline, NonFiniteLogits, RowBuffers
from safegen.engine.request import SamplingParams
from safegen.engine.sampler import draw
from safegen.grammars.constraint import MaskRows
from safegen.kernels.sampling import Draw, DrawFault, SampleSettings, draw_tokens

GREEDY = SampleSettings(0.0, 0, 1.0, 0.0)
LAST_UNIFORM = math.nextafter(1.0, 0.0)
INF = math.inf


@pytest.fixture(params=_native.cpu_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.cpu_isa()
    _native.cpu_set_isa(request.param)
    yield request.param
    _native.cpu_set_isa(before)


def settings_of(params: SamplingParams) -> SampleSettings:
    return SampleSettings(params.temperature, params.top_k, params.top_p, params.min_p)


def masks_of(legal: list[NDArray[np.bool_]]) -> NDArray[np.int32]:
    rows = MaskRows.allocate(len(legal), legal[0].size)
    for words, bools in zip(rows.words, legal):
        packed = np.packbits(bools, bitorder="little")
        words.view(np.uint8)[: packed.size] = packed
    return rows.words


def law_of(row: NDArray[np.float32], params: SamplingParams, mask: NDArray[np.int32] | None) -> Law:
    return LogitsPipeline(params, (), frozenset(), RowBuffers(row.size)).target(row, History(0, {}), mask).law


def distance_to_boundary(law: Law, uniform: float) -> float:
    return float(np.abs(np.cumsum(law.probs) / law.probs.sum() - uniform).min())


def random_row(rng: np.random.Generator, vocab: int) -> NDArray[np.float32]:
    """Rows as models give them, rows with many ties, rows with -inf, flat ones."""
    row = rng.standard_normal(vocab, dtype=np.float32) * np.float32(rng.choice([0.1, 1.0, 4.0]))
    kind = rng.integers(4)
    if kind == 1:
        row = np.round(row)
    elif kind == 2:
        row[rng.random(vocab) < 0.3] = -np.inf
        row[int(rng.integers(vocab))] = 2.0
    elif kind == 3 and rng.random() < 0.5:
        row[:] = 1.5
    return row.astype(np.float32)


def random_params(rng: np.random.Generator, vocab: int) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
        top_k=int(rng.choice([0, 0, 1, 5, 64, 65, vocab, vocab + 1])),
        top_p=float(rng.choice([1.0, 1.0, 0.05, 0.5, 0.9, 0.999])),
        min_p=float(rng.choice([0.0, 0.0, 1e-4, 0.1, 1.0])),
    )


@pytest.mark.parametrize("vocab", [1, 31, 32, 63, 64, 70, 129, 1000, 4160])
def test_draw_is_that_of_the_law(isa: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    num_draws = 120 if vocab > 1000 else 300
    logits = np.stack([random_row(rng, vocab) for _ in range(num_draws)])
    share = rng.choice([1.0, 0.9, 0.3, 0.03, 0.0], num_draws)
    legal = [(rng.random(vocab) < share[i]) & ((share[i] > 0) | (vocab < 3)) for i in range(num_draws)]
    for row, bools in zip(logits, legal):
        bools[int(row.argmax())] |= not np.isfinite(row[bools].max(initial=-np.inf))
    words = masks_of(legal)
    params = [random_params(rng, vocab) for _ in range(num_draws)]
    draws = [
        Draw(settings_of(params[i]), i, None if i % 3 == 0 else i, float(rng.choice([0.0, LAST_UNIFORM, rng.random()])))
        for i in range(num_draws)
    ]
    ids, faults = draw_tokens(logits, vocab, words, draws)
    assert not faults
    for i, asked in enumerate(draws):
        law = law_of(logits[i], params[i], None if asked.mask_row is None else words[i])
        if ids[i] != draw(law, asked.uniform):
            assert ids[i] in law.ids and distance_to_boundary(law, asked.uniform) < 1e-12, (i, params[i], asked)


def test_draw_over_a_real_vocabulary_is_that_of_the_law(isa: str) -> None:
    rng, vocab = np.random.default_rng(5), 49152
    logits = rng.standard_normal((8, vocab + 64), dtype=np.float32) * np.float32(3)  # rows longer than the vocabulary
    logits[:, vocab:] = 100.0
    for fields in ({}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.01}, {"top_k": 2000}):
        params = SamplingParams(temperature=0.8, **fields)
        draws = [Draw(settings_of(params), row, None, float(rng.random())) for row in range(8)]
        ids, faults = draw_tokens(logits, vocab, None, draws)
        laws = [law_of(row[:vocab], params, None) for row in logits]
        assert not faults and ids == [draw(law, asked.uniform) for law, asked in zip(laws, draws)]


def test_a_draw_does_not_depend_on_the_instruction_set_or_the_company() -> None:
    rng, vocab = np.random.default_rng(6), 5000
    logits = rng.standard_normal((16, vocab), dtype=np.float32)
    params = [SamplingParams(temperature=1.0, top_p=float(rng.choice([1.0, 0.7]))) for _ in range(16)]
    draws = [Draw(settings_of(params[i]), i, None, float(rng.random())) for i in range(16)]
    wanted = [draw_tokens(logits, vocab, None, [each])[0][0] for each in draws]
    before = _native.cpu_isa()
    for name in _native.cpu_isas():
        _native.cpu_set_isa(name)
        assert draw_tokens(logits, vocab, None, draws)[0] == wanted
    _native.cpu_set_isa(before)


def test_ties_go_to_the_lowest_legal_id(isa: str) -> None:
    vocab = 200
    logits = np.zeros((1, vocab), dtype=np.float32)
    legal = np.zeros(vocab, dtype=np.bool_)
    legal[[67, 130, 199]] = True
    words = masks_of([legal])
    second = SampleSettings(1.0, 2, 1.0, 0.0)
    half = SampleSettings(1.0, 0, 0.5, 0.0)
    draws = [Draw(GREEDY, 0, None, 0.0), Draw(GREEDY, 0, 0, 0.0), Draw(second, 0, 0, LAST_UNIFORM)]
    draws += [Draw(half, 0, 0, LAST_UNIFORM), Draw(half, 0, None, LAST_UNIFORM)]
    assert draw_tokens(logits, vocab, words, draws) == ([0, 67, 130, 130, 99], {})


def test_the_logit_of_a_single_legal_id_is_not_read(isa: str) -> None:
    vocab = 100
    logits = np.full((1, vocab), np.nan, dtype=np.float32)
    legal = np.zeros(vocab, dtype=np.bool_)
    legal[97] = True
    draws = [Draw(GREEDY, 0, 0, 0.0), Draw(SampleSettings(1.0, 0, 0.9, 0.1), 0, 0, 0.5)]
    assert draw_tokens(logits, vocab, masks_of([legal]), draws) == ([97, 97], {})


@pytest.mark.parametrize(
    ("value", "kind", "error"),
    [
        (math.nan, "non-finite", NonFiniteLogits),
        (INF, "non-finite", NonFiniteLogits),
        (-INF, "all forbidden", EmptyMask),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failures_are_those_of_the_law_and_stay_in_their_row(
    isa: str, value: float, kind: str, error: type[Exception], temperature: float
) -> None:
    vocab = 80
    logits = np.ones((2, vocab), dtype=np.float32)
    if value == -INF:
        logits[0] = value
    logits[0, 69] = value
    settings = SampleSettings(temperature, 0, 1.0, 0.0)
    ids, faults = draw_tokens(logits, vocab, None, [Draw(settings, 0, None, 0.0), Draw(settings, 1, None, 0.0)])
    assert list(faults) == [0] and faults[0].kind == kind and ids[1] == 0
    assert faults[0].score == value or math.isnan(value)
    with pytest.raises(error):
        law_of(logits[0], SamplingParams(temperature=temperature), None)


def test_broken_logits_of_forbidden_ids_do_no_harm(isa: str) -> None:
    vocab = 80
    logits = np.ones((1, vocab), dtype=np.float32)
    logits[0, [3, 40]] = [np.nan, np.inf]
    legal = np.ones(vocab, dtype=np.bool_)
    legal[[0, 3, 40]] = False
    assert draw_tokens(logits, vocab, masks_of([legal]), [Draw(GREEDY, 0, 0, 0.0)]) == ([1], {})


def test_empty_mask_is_a_fault(isa: str) -> None:
    words = masks_of([np.zeros(40, dtype=np.bool_)])
    _, faults = draw_tokens(np.zeros((1, 40), dtype=np.float32), 40, words, [Draw(GREEDY, 0, 0, 0.0)])
    assert faults == {0: DrawFault("empty mask", 0.0)}


def maxima_of(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each 64 scores; NaN where one of them is."""
    padded = np.pad(logits, ((0, 0), (0, -logits.shape[1] % 64)), constant_values=-np.inf)
    return np.max(padded.reshape(len(logits), -1, 64), axis=2)


@pytest.mark.parametrize("extra", [0, 1, 64, 100])
@pytest.mark.parametrize("vocab", [1, 63, 64, 70, 129, 1000, 4160])
def test_known_maxima_change_no_draw(isa: str, vocab: int, extra: int) -> None:
    """extra: logits past the vocabulary, higher than any, which no draw may take."""
    rng = np.random.default_rng(vocab)
    logits = np.stack([np.append(random_row(rng, vocab), np.full(extra, 99.0)) for _ in range(60)]).astype(np.float32)
    logits[::7, int(rng.integers(vocab))] = [np.nan, np.inf, -np.inf] * 3
    share = rng.choice([1.0, 0.9, 0.3, 0.03, 0.0], 60)
    words = masks_of([rng.random(vocab) < each for each in share])
    draws = [
        Draw(GREEDY if i % 4 else settings_of(random_params(rng, vocab)), i, i if i % 3 else None, rng.random())
        for i in range(60)
    ]
    plain = draw_tokens(logits, vocab, words, draws)
    known = draw_tokens(logits, vocab, words, draws, maxima_of(logits))
    assert known[0] == plain[0]
    assert plain[1] and repr(known[1]) == repr(plain[1])


def test_maxima_that_do_not_fit_are_refused() -> None:
    logits, asked = np.zeros((2, 130), np.float32), [Draw(GREEDY, 0, None, 0.0)]
    for shape in ((1, 3), (2, 2)):
        with pytest.raises(ValueError, match="maxima"):
            draw_tokens(logits, 130, None, asked, np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("logits", "vocab", "words", "asked", "message"),
    [
        (np.zeros((1, 32), np.float32), 33, None, Draw(GREEDY, 0, None, 0.0), "vocab_size: 33"),
        (np.zeros((1, 32), np.float32), 32, None, Draw(GREEDY, 1, None, 0.0), "no row 1"),
        (np.zeros((1, 32), np.float32), 32, None, Draw(GREEDY, 0, 0, 0.0), "there are no masks"),
        (np.zeros((1, 32), np.float32), 32, np.zeros((1, 1), np.int32), Draw(GREEDY, 0, 1, 0.0), "no row 1"),
        (np.zeros((1, 32), np.float32), 32, np.zeros((1, 2), np.int32), Draw(GREEDY, 0, 0, 0.0), "1 words a row"),
        (np.zeros((1, 32), np.float32), 32, None, Draw(GREEDY, 0, None, 1.0), "uniform"),
        (np.zeros((32, 2), np.float32).T, 32, None, Draw(GREEDY, 0, None, 0.0), "contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    logits: NDArray[np.float32], vocab: int, words: NDArray[np.int32] | None, asked: Draw, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw_tokens(logits, vocab, words, [asked])


@pytest.mark.parametrize("forbidden", [5.0, 2.0, INF, -INF, math.nan], ids=str)
@pytest.mark.parametrize("vocab", [70, 4160])
def test_greedy_rows_are_not_moved_by_what_the_mask_forbids(isa: str, vocab: int, forbidden: float) -> None:
    rng = np.random.default_rng(vocab)
    row = np.minimum(rng.standard_normal(vocab), 1.9).astype(np.float32)
    legal = rng.random(vocab) < 0.8
    first, second = np.flatnonzero(legal)[[-9, -2]]
    row[[first, second]] = 2.0
    row[~legal] = np.float32(forbidden)
    for expected in (first, second):
        ids, faults = draw_tokens(row[None], vocab, masks_of([legal]), [Draw(GREEDY, 0, 0, 0.0)])
        assert ids == [expected] and not faults
        row[first] = -1.0
