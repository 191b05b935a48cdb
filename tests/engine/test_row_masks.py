"""A backend that takes masks leaves out the logits nobody looks at: the answers are those of one that computes all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safegen.engine.backend import ForwardBatch, RowMasks
from safegen.engine.request import Request
from safegen.errors import EngineError
from safegen.grammars.constraint import MaskRows
from tests.engine.test_core import BrokenConstraint, expected, mixed_requests, tokens
from tests.support.engine_driver import OPEN, STOP, drive, make_core
from tests.support.engine_driver import make_request as request
from tests.support.fake_backend import FAKE_VOCAB, FakeBackend


class SparseBackend(FakeBackend):
    """Computes what the masks ask for. restricted: of every forward, for its sampled rows (None without masks)."""

    takes_masks = True

    def __init__(self) -> None:
        super().__init__()
        self.restricted: list[list[bool] | None] = []

    def forward(self, batch: ForwardBatch, masks: RowMasks | None = None) -> NDArray[np.float32]:
        logits = super().forward(batch).copy()
        self.restricted.append(None if masks is None else masks.restricted.tolist())
        if masks is None:
            return logits
        assert masks.words.shape[0] == masks.restricted.shape[0] == len(logits)
        for row in np.flatnonzero(masks.restricted).tolist():
            legal = MaskRows(masks.words, FAKE_VOCAB).bools(row)
            logits[row, ~legal] = -np.inf
            if legal.sum() == 1:
                logits[row] = -np.inf
        return logits


def test_answers_are_the_same_where_illegal_logits_are_left_out() -> None:
    for seed in (1, 2):
        backend, requests = SparseBackend(), mixed_requests(seed, 24)
        wanted = expected(requests)
        assert tokens(drive(make_core(backend), requests)) == wanted
        assert any(any(rows) for rows in backend.restricted if rows)


def test_no_row_of_a_step_without_constraints_is_restricted() -> None:
    backend = SparseBackend()
    drive(make_core(backend), [request("free", [1, 2], max_tokens=5)])
    assert backend.restricted == [None] * 5


def test_raw_logprobs_are_those_of_the_whole_row() -> None:
    def ask() -> list[Request]:
        return [
            request("a", [3, 4], constrained=True, max_tokens=6, logprobs=2),
            request("b", [5, 6], constrained=True, max_tokens=6),
        ]

    backend = SparseBackend()
    found, wanted = drive(make_core(backend), ask()), drive(make_core(FakeBackend()), ask())
    assert found["a", 0].logprobs == wanted["a", 0].logprobs and len(found["a", 0].logprobs) == 3
    assert backend.restricted[0] == [False, True]


def test_row_whose_fill_failed_is_not_restricted_and_ends_alone() -> None:
    backend = SparseBackend()
    constraint = BrokenConstraint("fill", after_fills=1)
    broken = Request("broken", (1, 2, 3), request("x", [1], max_tokens=8).params, frozenset({STOP}), constraint)
    bound = request("bound", [4, 5], constrained=True, max_tokens=4, logit_bias={OPEN: 50.0})
    outcomes = drive(make_core(backend), [broken, bound])
    finished = outcomes["broken", 0].finished
    assert finished is not None and isinstance(finished.error, EngineError) and finished.finish_reason == "error"
    assert backend.restricted[0] == [False, True]
    assert outcomes["bound", 0].token_ids[:2] == [OPEN, OPEN]
