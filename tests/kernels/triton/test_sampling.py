"""Masks, draws and verification, interpreted, against their twins in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from safegen.kernels.api import RowSettings
from safegen.kernels.reference import sampling as twin
from safegen.kernels.triton.mask import apply_mask
from safegen.kernels.triton.rng import philox_uniform
from safegen.kernels.triton.sampling import sample
from safegen.kernels.triton.verify import verify
from tests.kernels.triton.cases import guarded, randn

NO_MASK = torch.zeros((0, 0), dtype=torch.int32)


def masks(legal: Tensor) -> Tensor:
    """bool [rows, vocab] -> packed words; the bits past the vocabulary are set, which must not matter."""
    rows, vocab = legal.shape
    bits = np.ones((rows, -(-vocab // 32) * 32), dtype=np.bool_)
    bits[:, :vocab] = legal.numpy()
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


def settings(rows: int, **values: list[float]) -> RowSettings:
    """Plain sampling at temperature 1, row by row; `values` are repeated over the rows."""

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        given = values.get(name, [default])
        return torch.tensor([given[row % len(given)] for row in range(rows)], dtype=dtype)

    counter = {name: column(name, 0, torch.int64) for name in ("seed", "index", "attempt")}
    return RowSettings(
        column("temperature", 1.0, torch.float64), column("top_k", 0, torch.int32), column("top_p", 1.0, torch.float64),
        column("min_p", 0.0, torch.float64), position=torch.arange(rows), **counter,
    )  # fmt: skip


@triton.jit
def uniforms_kernel(seed, index, position, attempt, out):
    row = tl.program_id(0)
    number = philox_uniform(tl.load(seed + row), tl.load(index + row), tl.load(position + row), tl.load(attempt + row))
    tl.store(out + row, number)


def test_random_numbers_are_those_of_numpys_philox() -> None:
    generator = np.random.default_rng(0)
    words = generator.integers(-(2**63), 2**63, (4, 20))
    words[:, 0], words[:, 1] = 0, -1
    seed, index, position, attempt = (torch.from_numpy(each.copy()) for each in words)
    out = torch.empty(20, dtype=torch.float64)
    uniforms_kernel[(20,)](seed, index, position, attempt, out)
    for row, counter in enumerate(words.T.tolist()):
        s, i, p, a = (number % 2**64 for number in counter)
        assert out[row] == twin.philox_uniform(s, i, p, a)
        if p:  # numpy counts up before its first word
            numbers = np.random.Philox(counter=np.array([p - 1, i, a, 0], np.uint64), key=np.array([s, 0], np.uint64))
            assert out[row] == (int(numbers.random_raw()) >> 11) * 2.0**-53


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("vocab", "width"), [(1, 1), (31, 40), (64, 64), (2049, 2112)])
def test_masks_close_what_they_forbid_and_the_padding(dtype: torch.dtype, vocab: int, width: int) -> None:
    legal = torch.rand(2, vocab, generator=torch.Generator().manual_seed(1)) < 0.5
    logits = guarded(randn(7, width, dtype=dtype))
    beside = logits._base
    assert beside is not None
    mask_rows = torch.tensor([0, -1, 1, 1, 0, -1, 0], dtype=torch.int32)
    expected = logits.clone()
    twin.apply_mask(expected, masks(legal), mask_rows, vocab)
    apply_mask(logits, masks(legal), mask_rows, vocab)
    assert torch.equal(logits, expected)
    assert beside[:2].isnan().all() and beside[-2:].isnan().all() and beside[:, width:].isnan().all()


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="33 ids need 2 words"):
        apply_mask(randn(1, 64), masks(torch.ones(1, 32, dtype=torch.bool)), torch.zeros(1, dtype=torch.int32), 33)


def compare(logits: Tensor, words: Tensor, mask_rows: Tensor, asked: RowSettings, vocab: int) -> None:
    """The same faults; the same law within fp32; the same token unless u lies within 1e-5 of a boundary."""
    tokens, faults, probs = sample(logits, words, mask_rows, asked, vocab, with_probs=True)
    expected, expected_faults, law = twin.sample(logits, words, mask_rows, asked, vocab, with_probs=True)
    assert probs is not None and law is not None
    assert torch.equal(faults, expected_faults)
    for row in (faults == 0).nonzero().flatten().tolist():
        torch.testing.assert_close(probs[row], law[row], rtol=1e-4, atol=1e-7)
        if tokens[row] != expected[row]:
            counter = (int(each[row]) for each in (asked.seed, asked.index, asked.position, asked.attempt))
            distance = (law[row].double().cumsum(0) - twin.philox_uniform(*counter)).abs().min()
            assert distance < 1e-5 and law[row, tokens[row]] > 0, (row, tokens[row], expected[row])


@pytest.mark.parametrize("vocab", [33, *(pytest.param(n, marks=pytest.mark.wide) for n in (1, 31, 300, 4100))])
@pytest.mark.parametrize("ties", [False, True])
def test_draws_follow_the_law(vocab: int, ties: bool) -> None:
    rows = 17 if vocab < 1000 else 5
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn((rows, vocab + 5), generator=generator) * 3
    logits = guarded(logits.round() if ties else logits)
    logits[:, vocab:] = 100.0
    legal = torch.rand((5, vocab), generator=generator) < torch.tensor([1.0, 0.8, 0.3, 0.05, 0.0])[:, None]
    mask_rows = torch.tensor([row % 6 - 1 for row in range(rows)], dtype=torch.int32)
    asked = settings(
        rows, temperature=[1.0, 0.7, 0.0, 2.0, 1e-6], top_k=[0, 1, 5, 64, 0, 40, 0], top_p=[1.0, 0.9, 0.5, 1.0, 0.05],
        min_p=[0.0, 0.0, 0.1], seed=[5, -7, 2**62], attempt=[0, 1 << 56],
    )  # fmt: skip
    compare(logits, masks(legal), mask_rows, asked, vocab)


def test_ties_at_the_edge_go_to_the_lowest_legal_ids() -> None:
    """All scores equal: top-k and the nucleus keep the first ids, and the largest number draws the last of them."""
    vocab = 200
    logits = torch.zeros(4, vocab)
    logits[3, 0], logits[3, 1] = -0.0, 0.0
    asked = settings(4, top_k=[2, 0, 0, 1], top_p=[1.0, 0.5, 1.0, 1.0], temperature=[1.0, 1.0, 0.0, 1.0])
    _, faults, probs = sample(logits, NO_MASK, torch.full((4,), -1, dtype=torch.int32), asked, vocab, with_probs=True)
    assert probs is not None and not faults.any()
    for row, kept in enumerate((2, 100, 1, 1)):
        assert torch.equal(probs[row] > 0, torch.arange(vocab) < kept), row


def test_faults_are_those_of_the_law_and_stay_in_their_row() -> None:
    vocab = 70
    logits = torch.ones(7, vocab)
    logits[0, 3], logits[1, 3], logits[2], logits[3, 3] = torch.nan, torch.inf, -torch.inf, torch.nan
    logits[5] = torch.nan
    legal = torch.ones(3, vocab, dtype=torch.bool)
    legal[0, 3], legal[1] = False, False
    legal[2] = torch.arange(vocab) == 66
    mask_rows = torch.tensor([-1, -1, -1, 0, 1, 2, -1], dtype=torch.int32)
    for temperature in (0.0, 1.0):
        asked = settings(7, temperature=[temperature])
        tokens, faults, _ = sample(logits, masks(legal), mask_rows, asked, vocab)
        assert faults.tolist() == [3, 3, 2, 0, 1, 0, 0] and tokens[5] == 66
        compare(logits, masks(legal), mask_rows, asked, vocab)


def test_a_draw_does_not_depend_on_its_company() -> None:
    logits, no_rows = randn(9, 130), torch.full((9,), -1, dtype=torch.int32)
    asked = settings(9, top_p=[0.9, 1.0], seed=[3])
    tokens, _, probs = sample(logits, NO_MASK, no_rows, asked, 130, with_probs=True)
    assert probs is not None
    for row in range(9):
        own = RowSettings(*(getattr(asked, name)[row : row + 1] for name in RowSettings.__slots__))
        token, _, lone = sample(logits[row : row + 1], NO_MASK, no_rows[:1], own, 130, with_probs=True)
        assert lone is not None and token[0] == tokens[row] and torch.equal(lone[0], probs[row])


def random_drafts(seed: int, vocab: int, lengths: list[int]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = sum(lengths)
    probs, draft_probs = (torch.softmax(torch.randn((rows, vocab), generator=generator) * 2, -1) for _ in range(2))
    probs[:, ::3] = 0.0
    uniform, coin = torch.rand((2, rows), generator=generator, dtype=torch.float64)
    drawn = torch.tensor([twin.draw(p.double(), float(u)) for p, u in zip(probs, uniform)], dtype=torch.int32)
    drafts = torch.multinomial(draft_probs, 1, generator=generator).flatten().int()
    agrees = torch.rand(rows, generator=generator) < 0.6
    is_sampled = (torch.rand(rows, generator=generator) < 0.5).int()
    drafts = torch.where(agrees, drawn, drafts).int()
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return {
        "drawn": drawn, "drafts": drafts, "query_start": starts, "probs": probs, "draft_probs": draft_probs,
        "is_sampled": is_sampled, "coin": coin, "uniform": uniform,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("vocab", [7, 300])
def test_verification_equals_its_twin(seed: int, vocab: int) -> None:
    case = random_drafts(seed, vocab, [1, 4, 0, 6, 2, 0, 9, 1])
    output, counts = verify(**case)
    expected, expected_counts = twin.verify(**case)
    assert torch.equal(counts, expected_counts)
    for sequence, (first, count) in enumerate(zip(case["query_start"].tolist(), counts.tolist())):
        assert torch.equal(output[first : first + count], expected[first : first + count]), sequence


def test_a_zero_coin_never_passes_a_token_that_the_target_forbids() -> None:
    case = random_drafts(0, 9, [2])
    case["is_sampled"][:] = 1
    case["drafts"][:], case["coin"][:] = 3, 0.0  # p(3) is 0
    output, counts = verify(**case)
    assert counts.tolist() == [1] and case["probs"][0, output[0]] > 0


def test_where_nothing_is_left_of_the_residual_the_target_itself_is_drawn_from() -> None:
    case = random_drafts(0, 9, [2])
    case["draft_probs"][0] = case["probs"][0]
    case["is_sampled"][:], case["coin"][:], case["drafts"][:] = 1, math.nextafter(1.0, 0.0), 0  # p(0) = q(0) = 0
    output, counts = verify(**case)
    assert counts.tolist() == [1] and output[0] == twin.draw(case["probs"][0].double(), float(case["uniform"][0]))


def test_output_of_verified_drafts_has_the_targets_law() -> None:
    """Exactly, by enumeration: a sampled draft passes for two of three coins (p(2) / q(2) = 2/3), and the residual
    (0.4, 0.1, 0, 0) is cut where four of five uniform numbers lie below. Each output weighs what p gives it."""
    p, q = torch.tensor([0.5, 0.3, 0.2, 0.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    coins, uniforms = (torch.arange(3) + 0.5).double() / 3, (torch.arange(5) + 0.5).double() / 5
    coin, uniform = (each.flatten() for each in torch.meshgrid(coins, uniforms, indexing="ij"))
    rows = 2 * len(coin)
    got = torch.zeros(4, dtype=torch.float64)
    for draft in range(4):
        output, counts = verify(
            drawn=torch.full((rows,), 3, dtype=torch.int32), drafts=torch.full((rows,), draft, dtype=torch.int32),
            query_start=torch.arange(0, rows + 1, 2, dtype=torch.int32), probs=p.repeat(rows, 1),
            draft_probs=q.repeat(rows, 1), is_sampled=torch.ones(rows, dtype=torch.int32),
            coin=coin.repeat_interleave(2), uniform=uniform.repeat_interleave(2),
        )  # fmt: skip
        got += q[draft] * torch.bincount(output[::2], minlength=4) / len(coin)
        assert torch.equal(counts == 2, output[::2] == draft)
    torch.testing.assert_close(got, p.double(), rtol=0.0, atol=1e-7)
