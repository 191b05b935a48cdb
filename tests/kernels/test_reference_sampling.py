"""The twins of the GPU's draws are the engine's own law, number and verifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from safegen.engine import rng
from safegen.engine.logits import History, Law, LogitsPipeline, RowBuffers
from safegen.engine.request import SamplingParams
from safegen.engine.sampler import draw
from safegen.engine.speculate.base import DraftPart
from safegen.engine.speculate.verify import verify
from safegen.kernels.reference import sampling as twin


def test_random_numbers_are_the_engines() -> None:
    for seed, index, position, attempt in ((0, 0, 0, 0), (7, 2, 5, 1), (2**63 + 9, 1, 2**31, 3)):
        for stream in (rng.OUTPUT, rng.COIN, rng.DRAFT):
            expected = rng.uniform(seed, index, position, attempt, stream)
            assert twin.philox_uniform(seed, index, position, attempt | stream << 56) == expected


@pytest.mark.parametrize("seed", range(40))
def test_law_and_draw_are_the_engines(seed: int) -> None:
    random = np.random.default_rng(seed)
    vocab = int(random.choice([1, 5, 64, 200]))
    row = random.standard_normal(vocab, dtype=np.float32) * np.float32(3)
    row = np.round(row) if seed % 2 else row
    legal = random.random(vocab) < random.choice([1.0, 0.5, 0.1])
    legal[int(random.integers(vocab))] = True
    params = SamplingParams(
        temperature=float(random.choice([0.0, 0.5, 1.0, 2.0])), top_k=int(random.choice([0, 1, 3, 50])),
        top_p=float(random.choice([1.0, 0.9, 0.3])), min_p=float(random.choice([0.0, 0.05])),
    )  # fmt: skip
    words = np.packbits(np.pad(legal, (0, -vocab % 32)), bitorder="little").view(np.int32)
    law = LogitsPipeline(params, (), frozenset(), RowBuffers(vocab)).target(row, History(0, {}), words).law
    probs = twin.law(
        torch.from_numpy(row), torch.from_numpy(legal), params.temperature, params.top_k, params.top_p, params.min_p
    )
    assert isinstance(probs, torch.Tensor)
    np.testing.assert_array_equal(probs.nonzero().flatten().numpy(), law.ids)
    np.testing.assert_allclose(probs[probs > 0].numpy(), law.probs, rtol=1e-12)
    for number in (0.0, float(random.random()), 1.0 - 2**-53):
        assert twin.draw(probs, number) == draw(law, number)


class _Rows:
    """`TargetRows` over dense laws."""

    def __init__(self, probs: torch.Tensor, coin: torch.Tensor, uniform: torch.Tensor) -> None:
        self._probs, self._coin, self._uniform = probs, coin, uniform

    def law(self, offset: int) -> Law:
        row = self._probs[offset].double().numpy()
        ids = np.flatnonzero(row)
        return Law(ids, row[ids])

    def draw(self, offset: int) -> int:
        return self.draw_from(self.law(offset), offset)

    def draw_from(self, law: Law, offset: int) -> int:
        return draw(law, float(self._uniform[offset]))

    def coin(self, offset: int) -> float:
        return float(self._coin[offset])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sampled", [False, True])
def test_verification_is_the_engines(seed: int, sampled: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, vocab = 5, 6
    probs, draft_probs = (torch.softmax(torch.randn((rows, vocab), generator=generator), -1) for _ in range(2))
    probs[:, seed % vocab] = 0.0
    coin, uniform = torch.rand((2, rows), generator=generator, dtype=torch.float64)
    drafts = torch.multinomial(draft_probs, 1, generator=generator).flatten().int()
    engine_rows = _Rows(probs, coin, uniform)
    q = draft_probs[:-1].double().numpy() if sampled else None
    part = DraftPart("model", tuple(drafts[:-1].tolist()), q, ((),) * (rows - 1), (1.0,) * (rows - 1))
    drawn = torch.tensor([engine_rows.draw(row) for row in range(rows)], dtype=torch.int32)
    output, counts = twin.verify(
        drawn, drafts, torch.tensor([0, rows]), probs, draft_probs, torch.full((rows,), int(sampled)), coin, uniform
    )
    assert output[: counts[0]].tolist() == list(verify([part], engine_rows))
