"""The stream law over all detectors with a bound: random texts of fragments, and every cut of the corpora."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.guards.base import Guard, GuardView
from safegen.guards.pattern_guard import PatternGuard
from safegen.guards.pii import PII
from safegen.guards.secrets import Secrets
from tests.guards.law import assert_stream_law, assert_window_law
from tests.guards.samples import FRAGMENTS, SECRET_FRAGMENTS
from tests.support.suites import corpus_rows

GUARDS: dict[str, tuple[Guard, list[str]]] = {
    "pii": (PII(), FRAGMENTS),
    "pii_some": (PII(types=["EMAIL", "PHONE", "DATE_OF_BIRTH"]), FRAGMENTS),
    "secrets": (Secrets(), SECRET_FRAGMENTS),
}


@pytest.mark.parametrize("name", GUARDS)
def test_what_is_before_the_frontier_is_final_whatever_follows(name: str) -> None:
    guard, fragments = GUARDS[name]

    @settings(max_examples=400 if os.environ.get("SAFEGEN_FULL") else 25, deadline=None)
    @given(st.lists(st.sampled_from(fragments), max_size=9), st.integers(0, 60))
    def check(parts: list[str], begin: int) -> None:
        text = "".join(parts)
        assert_stream_law(guard, text)
        assert_window_law(guard, text, min(begin, len(text)))

    check()


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("stem", ["pii-dev", "pii-adversarial-dev"])
def test_every_cut_of_the_corpora_keeps_the_law(name: str, stem: str) -> None:
    """Every row at full size, some of them else; every cut of each."""
    texts = [row["text"] for row in corpus_rows(stem)]
    for text in texts if os.environ.get("SAFEGEN_FULL") else random.Random(name).sample(texts, 12):
        assert_stream_law(GUARDS[name][0], text)


class _EarlyPII(PII):
    """A mutant: one character too early."""

    def frontier(self, text: str) -> int:
        return min(len(text), super().frontier(text) + 1)


def test_a_frontier_that_is_one_character_early_fails_the_law() -> None:
    with pytest.raises(AssertionError):
        assert_stream_law(_EarlyPII(), "mail jane@example.com or call +1 (329) 988-4927.")


def test_prose_is_held_by_a_word_and_not_by_the_bound() -> None:
    text = "Nothing of this sentence is personal, so a stream of it should run on without long waits."
    for guard in (PII(), Secrets()):
        held = [cut - guard.frontier(text[:cut]) for cut in range(len(text))]
        assert max(held) <= 2 * max(map(len, text.split())), guard


@pytest.mark.parametrize("name", GUARDS)
def test_matches_are_disjoint_and_within_the_bound(name: str) -> None:
    guard, fragments = GUARDS[name]
    assert isinstance(guard, PatternGuard) and guard.max_match is not None
    random_source = random.Random(7)
    for _ in range(30):
        text = "".join(random_source.choices(fragments, k=12))
        matches = sorted(guard.find(GuardView(text)))
        assert all(one.end <= two.start for one, two in zip(matches, matches[1:]))
        assert all(0 < match.end - match.start <= guard.max_match for match in matches)
