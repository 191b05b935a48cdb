"""Drafts of a model on the default model: of itself as a second checkpoint, and of its own first layers. Answers are
those without drafts, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safegen.engine.locate import locate_model
from safegen.errors import RequestError
from safegen.llm import LLM
from safegen.speculation import Speculation
from safegen.types import Choice
from tests.test_speculation import FIXED_TEXT, IS_FULL, ROWS, answers

MAX_TOKENS = 64 if IS_FULL else 24
CONCURRENCY = [1, 4, 8, 16, 32] if IS_FULL else [1, 4, 8]
DRAFTERS = ["model", "self"]


def default_model() -> Path:
    return Path(locate_model(None))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        max_num_seqs=32, speculation=Speculation(("forced", "ngram"), draft_model=default_model(), self_draft=True)
    ) as loaded:
        # Whatever pays: these tests are about answers, and must see drafts.
        loaded._runtime._engine._loop.core._speculator._adaptive = False  # type: ignore[attr-defined]
        loaded._runtime._engine._loop.core._speculator._max_tokens_a_draft = 4  # type: ignore[attr-defined]
        yield loaded


@pytest.fixture(scope="module")
def greedy(llm: LLM) -> list[tuple[str, str, int]]:
    return answers(llm, ROWS, 4, max_tokens=MAX_TOKENS, speculation=False)


def only(drafter: str) -> Speculation:
    return Speculation(drafters=(drafter,))


@pytest.mark.parametrize("num_together", CONCURRENCY)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_answers_are_those_without_drafts(
    llm: LLM, greedy: list[tuple[str, str, int]], drafter: str, num_together: int
) -> None:
    before = llm._runtime._engine.stats().by_drafter  # type: ignore[attr-defined]
    assert answers(llm, ROWS, num_together, max_tokens=MAX_TOKENS, speculation=only(drafter)) == greedy
    after = llm._runtime._engine.stats().by_drafter[drafter]  # type: ignore[attr-defined]
    known = before.get(drafter)
    drafted = after.drafted - (known.drafted if known else 0)
    accepted = after.accepted - (known.accepted if known else 0)
    assert drafted > 50
    if drafter == "model":  # the same model over the same tokens: only what follows an answer's end is not accepted
        assert accepted > 0.9 * drafted


def test_all_drafters_together_leave_greedy_answers_as_they_are(llm: LLM, greedy: list[tuple[str, str, int]]) -> None:
    assert answers(llm, ROWS, 8, max_tokens=MAX_TOKENS) == greedy


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeded_answers_are_those_without_drafts(llm: LLM, drafter: str) -> None:
    rows = ROWS if IS_FULL else ROWS[:8]
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.8, "top_p": 0.95, "seed": 11, "min_p": 0.02}
    wanted = answers(llm, rows, 8, speculation=False, **options)
    assert answers(llm, rows, 4, speculation=only(drafter), **options) == wanted


@pytest.mark.parametrize("drafters", [("model",), ("self",), ("forced", "ngram", "model", "self")], ids="+".join)
@pytest.mark.parametrize("num_together", CONCURRENCY if IS_FULL else [4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_of_one_text_gives_that_text_each_time(
    llm: LLM, drafters: tuple[str, ...], num_together: int, temperature: float
) -> None:
    count = 256 if IS_FULL else num_together
    rows = [(f"Statement {number}", Choice([FIXED_TEXT])) for number in range(count)]
    for start in range(0, count, num_together):
        for result in llm.batch(
            rows[start : start + num_together],
            speculation=Speculation(drafters),
            show_schema=False,
            temperature=temperature,
        ):
            assert (result.status, result.text) == ("ok", FIXED_TEXT)
            assert 0 < result.usage.accepted <= result.usage.drafted


def test_sampled_answers_with_a_draft_model_keep_to_their_type(llm: LLM) -> None:
    for drafter in DRAFTERS:
        for result in llm.batch(ROWS[:8], speculation=only(drafter), temperature=1.0, max_tokens=48):
            assert result.status in ("ok", "truncated")


def test_a_call_can_only_choose_among_what_is_loaded(llm: LLM) -> None:
    for speculation in (only("model"), Speculation((), draft_model=default_model())):
        assert llm.generate("Say hi", max_tokens=6, speculation=speculation).usage.by_drafter.keys() <= {"model"}
    with pytest.raises(RequestError, match="not the one of this LLM"):
        llm.generate("Say hi", speculation=Speculation((), draft_model="other"))
    with LLM(kv_cache_memory=1 << 26) as plain, pytest.raises(RequestError, match="'self' is not loaded"):
        plain.generate("Say hi", speculation=only("self"))
