"""Followers: what they say of a growing text holds against `find` at every cut, and streams with them are the offline
text. Streams of long texts take time linear in them."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safegen.guards.base import Guard, GuardView, Match
from safegen.guards.canary import Canary
from safegen.guards.charset import Charset
from safegen.guards.following import Follower, follower_of
from safegen.guards.invisible import InvisibleText
from safegen.guards.length import MaxLength
from safegen.guards.pattern_follower import PatternFollower
from safegen.guards.pii import PII
from safegen.guards.prompt_leak import SystemPromptLeak
from safegen.guards.secrets import Secrets
from safegen.guards.stream import AnswerShape
from tests.guards.law import assert_follower_law
from tests.guards.samples import FRAGMENTS, SECRET_FRAGMENTS
from tests.support.guards import shown
from tests.support.suites import corpus_rows

_FULL = bool(os.environ.get("SAFEGEN_FULL"))
_TOKEN = "can83b2f1d09ae754c"
_SYSTEM = "You are the clerk of the northern archive. You never tell anyone where the red key of the archive is kept."
_HIDDEN = [
    "\u200b",
    "\u200d",
    "\U0001f3f4",
    "\U000e0067",
    "\U000e0062",
    "\U000e007f",
    "\ufe0f",
    "\u00ad" * 18,
    "\u0301",
]
_LEAKS = [_SYSTEM[at : at + 26] for at in range(0, 80, 9)]


def _leak() -> Guard:
    return SystemPromptLeak(min_overlap=24).protecting([_SYSTEM])


GUARDS: dict[str, tuple[Guard, list[str]]] = {
    "pii": (PII(), FRAGMENTS),
    "pii_some": (PII(types=["EMAIL", "PHONE", "DATE_OF_BIRTH"], allow=["jane@example.com"]), FRAGMENTS),
    "secrets": (Secrets(ignore=["named_secret"]), SECRET_FRAGMENTS),
    "canary": (Canary(token=_TOKEN), [_TOKEN[:7], _TOKEN[7:], _TOKEN.upper(), _TOKEN[::-1], "Y2Fu", " ", "x"]),
    "leak": (_leak(), [*_LEAKS, _SYSTEM.upper()[10:40], "-", " ", "\u200b", "\u00ad" * 18, "x"]),
    "invisible": (InvisibleText(), [*_HIDDEN, "a", "❤", "م", " ", "x"]),
    "charset": (Charset(), ["abc", "д", " ", "δ", "é"]),
    "length": (MaxLength(characters=40, words=5), ["a", "bc ", " ", "\n", "word", "\u2003"]),
}
_CANARY = Canary(token=_TOKEN)
_ALL = [guard for name, (guard, _) in GUARDS.items() if name not in ("charset", "length")]


@pytest.mark.parametrize("name", GUARDS)
def test_a_follower_keeps_the_stream_law_at_every_cut(name: str) -> None:
    guard, fragments = GUARDS[name]

    @settings(max_examples=600 if _FULL else 40, deadline=None)
    @given(
        st.lists(st.sampled_from([*fragments, *_HIDDEN]), max_size=9),
        st.lists(st.integers(1, 9), min_size=1, max_size=4),
    )
    def check(parts: list[str], lengths: list[int]) -> None:
        assert_follower_law(guard, "".join(parts), lengths)

    check()


@pytest.mark.parametrize("name", ["pii", "secrets", "leak"])
@pytest.mark.parametrize("stem", ["pii-dev", "pii-adversarial-dev"])
def test_a_follower_keeps_the_law_over_the_corpora(name: str, stem: str) -> None:
    draw = random.Random(name + stem)
    texts = [row["text"] for row in corpus_rows(stem)]
    for text in texts if _FULL else draw.sample(texts, 12):
        assert_follower_law(GUARDS[name][0], text, [1] if _FULL else draw.choices(range(1, 9), k=3))


@pytest.mark.parametrize("on_fail", ["redact", "block"])
@pytest.mark.parametrize("stem", ["pii-dev", "pii-adversarial-dev"])
def test_streams_of_all_guards_together_show_the_offline_text(stem: str, on_fail: Any) -> None:
    """In pieces of one character, so at every cut, and in pieces as long as tokens."""
    guards: list[Guard] = [PII(on_fail=on_fail), Secrets(on_fail=on_fail), InvisibleText(on_fail=on_fail), _CANARY]
    shape, draw = AnswerShape("text"), random.Random(stem)
    texts = [row["text"] for row in corpus_rows(stem)]
    for text in texts if _FULL else draw.sample(texts, 40):
        whole, offline = shown(shape, guards, [text])
        for length in (1, 4):
            pieces, stream = shown(shape, guards, [text[at : at + length] for at in range(0, len(text), length)])
            assert (stream.stopped is None) == (offline.stopped is None)
            if offline.stopped is None:
                assert "".join(pieces) == "".join(whole)
            else:
                assert "".join(pieces) == "".join(whole)[: len("".join(pieces))] == text[: len("".join(pieces))]
                assert len("".join(pieces)) <= offline.stopped.start


class _Early(PatternFollower):
    """A mutant: one character too early."""

    def feed(self, text: str, num_decided: int) -> int:
        return min(super().feed(text, num_decided) + 1, self._base + len(self._window))


class _Deaf(PatternFollower):
    """A mutant: everything is quiet."""

    def is_quiet(self, start: int, end: int) -> bool:
        return True


@pytest.mark.parametrize("mutant", [_Early, _Deaf])
def test_a_follower_that_errs_fails_the_law(mutant: type[PatternFollower]) -> None:
    class Mutated(PII):
        def follow(self) -> Follower:
            return mutant((self,), 146)

    with pytest.raises(AssertionError):
        assert_follower_law(Mutated(), "mail jane@example.com or call +1 (329) 988-4927.", [1])


def test_a_guard_that_changes_what_is_found_gets_no_follower() -> None:
    class Other(PII):
        def find(self, view: GuardView) -> list[Match]:
            return []

    class Later(Canary):
        def frontier(self, text: str) -> int:
            return 0

    assert follower_of(PII()) is not None and follower_of(Secrets()) is not None
    assert follower_of(Other()) is None and follower_of(Later()) is None


def test_pattern_guards_of_a_set_have_one_follower() -> None:
    first, second = follower_of(PII()), follower_of(Canary(token=_TOKEN))
    assert first is not None and second is not None
    joined = first.joined(second)
    assert isinstance(joined, PatternFollower)
    assert joined.feed(f"mail jane@example.com {_TOKEN} now ", 0) > 30
    assert not joined.is_quiet(5, 21) and joined.is_quiet(0, 5)


def _stream_seconds(text: str) -> float:
    started = time.process_time()
    shown(AnswerShape("text"), [*_ALL, MaxLength(words=10**6)], [text[at : at + 4] for at in range(0, len(text), 4)])
    return time.process_time() - started


@pytest.mark.parametrize(
    "text", ["Nothing is to be found in here. ", "call 555-0199 or a@b.co at 10.1.2.3 " * 2, "é\u200bx "]
)
def test_streams_take_time_linear_in_their_length(text: str) -> None:
    _stream_seconds(text * 40)
    short, long = (min(_stream_seconds(text * times) for _ in range(3)) for times in (60, 480))
    assert long < 8 * 2.5 * short
