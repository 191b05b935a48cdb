"""Sampled output with a drafting model has the law of the target, position by position and as a whole: a chi-square
test of the engine's output against the law as the pipeline spells it out. SAFEGEN_FULL=1 takes ten times as many.

(That the verifier's rule is exact is enumerated in test_verify_law.py; here the drafter's q, its random numbers and
what the speculator makes of its drafts are on trial.)
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from safegen.engine import rng
from safegen.engine.logits import History, Law, LogitsPipeline, RowBuffers
from safegen.engine.request import Request
from safegen.engine.speculate import model as model_module
from safegen.grammars.constraint import MaskRows
from tests.support.chi_square import fits
from tests.support.engine_driver import CLOSE, OPEN, drive, make_request
from tests.support.fake_backend import FAKE_VOCAB, prefix_logits
from tests.support.model_drafts import KINDS, Kind, ModelCore, as_it_is, noised

NUM_ANSWERS = 20_000 if os.environ.get("SAFEGEN_FULL") else 1_000
NUM_TOGETHER = 100
NUM_TOKENS = 4
Ids = tuple[int, ...]

CASES: dict[str, dict[str, Any]] = {
    "free": {"top_k": 4},
    "hot, nucleus": {"temperature": 1.4, "top_p": 0.15},
    "penalties": {"top_k": 3, "repetition_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": {7: 1.5, 9: 1.0}},
    "constrained": {"constrained": True, "logit_bias": {OPEN: 1.0, CLOSE: 0.5}},
}


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr(rng, "fresh_seed", lambda: next(numbers))


def request_of(case: str) -> Request:
    stop_ids = (0,) if "constrained" in CASES[case] else ()
    return make_request("", [5, 7, 9], **{"max_tokens": 24, "temperature": 1.0, "stop_ids": stop_ids, **CASES[case]})


def law_of(request: Request) -> dict[Ids, float]:
    """Of the first tokens of the answer, as many as there are up to NUM_TOKENS."""
    pipeline = LogitsPipeline(request.params, request.prompt_ids, request.stop_ids, RowBuffers(FAKE_VOCAB))
    laws, ended = {(): 1.0}, dict[Ids, float]()
    for _ in range(NUM_TOKENS):
        longer = dict[Ids, float]()
        for ids, chance in laws.items():
            constraint = None if request.constraint is None else request.constraint.fork()
            mask = None
            if constraint is not None:
                constraint.advance(ids)
                if constraint.is_complete():
                    ended[ids] = chance
                    continue
                rows = MaskRows.allocate(1, FAKE_VOCAB)
                constraint.fill((), rows)
                mask = rows.words[0]
            logits = prefix_logits([*request.prompt_ids, *ids])
            law = pipeline.target(logits, History(len(ids), Counter(ids)), mask).law
            longer.update({(*ids, int(token)): chance * p for token, p in zip(law.ids, law.probs)})
        laws = longer
    return {**ended, **laws}


def answers(made: ModelCore, case: str, count: int = NUM_ANSWERS) -> Counter[Ids]:
    found: Counter[Ids] = Counter()
    for start in range(0, count, NUM_TOGETHER):
        asked = []
        for number in range(start, start + NUM_TOGETHER):
            base = request_of(case)
            params = replace(base.params, max_tokens=base.params.max_tokens if base.constraint else NUM_TOKENS)
            asked.append(replace(base, request_id=f"r{number}", params=params))
        found.update(tuple(outcome.token_ids[:NUM_TOKENS]) for outcome in drive(made.core, asked).values())
    return found


def assert_law(found: Counter[Ids], law: dict[Ids, float]) -> None:
    assert sum(law.values()) == pytest.approx(1.0)
    assert fits(found, law)
    for place in range(NUM_TOKENS):
        counts, marginal = Counter[int](), Counter[int]()
        for ids, count in found.items():
            counts[ids[place] if place < len(ids) else -1] += count
        for ids, chance in law.items():
            marginal[ids[place] if place < len(ids) else -1] += chance  # type: ignore[assignment]
        assert fits(counts, marginal)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_answers_have_the_targets_law(kind: Kind, case: str, adaptive: bool) -> None:
    made = ModelCore(kind, noised(0.8), adaptive=adaptive, num_blocks=256, max_tokens_a_draft=3)
    assert_law(answers(made, case), law_of(request_of(case)))
    counts = made.core.stats().by_drafter
    assert adaptive or NUM_ANSWERS / 20 < counts[kind].accepted < counts[kind].drafted


def test_so_they_do_when_the_draft_model_is_the_target_itself() -> None:
    made = ModelCore("model", as_it_is, num_blocks=256)
    assert_law(answers(made, "free"), law_of(request_of("free")))


def unlike_q(law: Law, number: float) -> int:
    return int(law.ids[np.argmax(law.probs)])


def test_the_test_tells_a_draft_that_was_not_drawn_from_its_q(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "draw", unlike_q)
    found = answers(ModelCore("model", noised(0.8), num_blocks=256), "free", 2_000)
    assert not fits(found, law_of(request_of("free")))


def test_the_test_tells_drafts_that_are_drawn_with_the_coins_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module._Run, "_number", _number_of_the_coin)
    found = answers(ModelCore("model", noised(0.8), num_blocks=256), "free", 2_000)
    assert not fits(found, law_of(request_of("free")))


def _number_of_the_coin(run: Any) -> float:
    sequence = run._sequence
    place = sequence.num_output_tokens + len(run._prefix) + len(run._ids)
    return rng.uniform(sequence.context.seed, sequence.index, place, sequence.num_retracts, rng.COIN)
