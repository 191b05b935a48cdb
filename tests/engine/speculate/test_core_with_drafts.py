"""The promises of the engine's core and of retracts hold with drafts pending everywhere: the same tests again, over a
drafter that guesses right mostly, and wrong, illegal, too long and past the end now and then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine import test_core, test_retract
from tests.support import engine_driver
from tests.support.drafters import cheating_speculator

REPEATED: list[Any] = [
    test_core.test_blocks_of_a_failed_forward_are_not_found_by_later_requests,
    test_core.test_budget_aware_close_gives_a_whole_answer,
    test_core.test_budget_below_the_shortest_answer_is_cut_as_length,
    test_core.test_constrained_rows_never_hold_an_illegal_token_however_the_logits_lie,
    test_core.test_context_end_cuts_max_tokens,
    test_core.test_end_all_answers_everybody_and_leaves_an_empty_engine,
    test_core.test_fork_failure_ends_all_samples_of_its_request_alone,
    test_core.test_ids_past_the_tokenizer_are_never_sampled,
    test_core.test_logprobs_come_raw_and_constrained_for_each_token,
    test_core.test_max_tokens_ends_as_length,
    test_core.test_min_tokens_holds_back_stop_ids_and_stop_strings,
    test_core.test_more_samples_than_run_at_once_wait_their_turn,
    test_core.test_random_arrivals_cancels_and_settings_keep_every_answer,
    test_core.test_stop_id_ends_the_output_and_is_not_part_of_it,
    test_retract.test_budget_aware_close_gives_an_answer_that_passes_however_often_it_goes_back,
    test_retract.test_logprobs_and_penalties_are_those_of_the_text_that_stays,
    test_retract.test_nothing_left_to_try_ends_without_the_failed_text,
]
globals().update({function.__name__: function for function in REPEATED})
globals()["test_retracts_at_random"] = test_retract.test_random_arrivals_cancels_and_settings_keep_every_answer
EngineCore = engine_driver.EngineCore


@pytest.fixture(autouse=True, scope="module")
def drafts() -> Iterator[list[Any]]:
    """Every core that is made gets a drafter of its own."""
    made: list[Any] = []

    class DraftingCore(EngineCore):
        def __init__(self, *args: Any, **options: Any) -> None:
            options["speculator"] = cheating_speculator(len(made))
            super().__init__(*args, **options)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_driver, "EngineCore", DraftingCore)
        yield made


@pytest.mark.parametrize("name", test_core.SETTINGS)
def test_every_setting_gives_what_the_naive_loop_gives(name: str, drafts: list[Any]) -> None:
    num_before = len(drafts)
    for seed in range(6):
        requests = test_core.mixed_requests(seed, 12)
        wanted = test_core.expected(requests)
        outcomes = engine_driver.drive(engine_driver.make_core(**test_core.SETTINGS[name]), requests)
        assert test_core.tokens(outcomes) == wanted
    if name.startswith("preempting"):
        assert sum(core.stats().preemptions for core in drafts[num_before:]) > 3


@pytest.mark.parametrize("name", test_retract.SETTINGS)
def test_every_setting_takes_back_what_the_naive_loop_takes_back(name: str, drafts: list[Any]) -> None:
    num_before = len(drafts)
    for seed in range(5):
        requests = test_retract.mixed_requests(seed, 18)
        core = test_retract.core_of(**test_retract.SETTINGS[name])
        outcomes = engine_driver.drive(core, [test_retract.fresh(one) for one in requests])
        assert test_retract.assert_as_naive(requests, outcomes) >= 10
    if name.startswith("preempting"):
        assert sum(core.stats().preemptions for core in drafts[num_before:]) > 3


def test_the_tests_above_have_verified_drafts(drafts: list[Any]) -> None:
    stats = [core.stats() for core in drafts]
    drafted, accepted = sum(one.drafted_tokens for one in stats), sum(one.accepted_tokens for one in stats)
    assert drafted > 2000
    assert 0.3 * drafted < accepted < 0.95 * drafted
