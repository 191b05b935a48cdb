"""Every output token says where it came from, if that is asked for, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from safegen.engine.origins import Origin
from safegen.engine.request import FinishedEvent, Request, TokensEvent
from safegen.engine.speculate.speculator import Speculator
from safegen.grammars.constraint import Retract
from tests.engine.test_retract import LONG, NESTED, PAIRS, TOKENS, TRIPLES
from tests.support.drafters import cheating_speculator
from tests.support.engine_driver import CLOSE, STOP, TOKEN_BYTES, make_core, make_request
from tests.support.verified_constraint import Texts, VerifiedConstraint

Told = tuple[list[int], list[Origin], FinishedEvent]


def run(request: Request, speculator: Speculator | None = None, tokens: list[bytes | None] = TOKEN_BYTES) -> Told:
    core = make_core(token_bytes=tokens, speculator=speculator)
    core.add(request)
    ids: list[int] = []
    origins: list[Origin] = []
    while True:
        for event in core.step():
            if isinstance(event, TokensEvent):
                ids += event.token_ids
                origins += event.origins
                assert len(event.origins) == (len(event.token_ids) if request.wants_origins else 0)
            else:
                return ids, origins, event


@pytest.mark.parametrize("seed", range(12))
def test_origins_change_no_token_and_what_is_accepted_is_drafted(seed: int) -> None:
    sampling: dict[str, Any] = {"max_tokens": 40, "seed": seed, "temperature": 0.8}
    for constrained in (False, True):
        asked = replace(make_request("r", [5, 6, 7], constrained=constrained, **sampling), wants_origins=True)
        plain = make_request("r", [5, 6, 7], constrained=constrained, **sampling)
        ids, origins, finished = run(asked, cheating_speculator(seed))
        assert (ids, []) == run(plain, cheating_speculator(seed))[:2] and len(origins) == len(ids)
        if not constrained:  # an accepted stop id is no output
            assert finished.usage.accepted - origins.count("drafted") in (0, int(finished.finish_reason == "stop"))
            assert "forced" not in origins
    assert set(run(replace(make_request("r", [5, 6, 7], **sampling), wants_origins=True))[1]) <= {"sampled"}


def test_the_tokens_of_a_forced_close_are_forced() -> None:
    for seed in range(30):
        request = make_request("r", [5, 6], constrained=True, max_tokens=6, seed=seed, temperature=1.0)
        ids, origins, finished = run(replace(request, wants_origins=True))
        num_closing = len(origins) - len("".join("x" if each == "sampled" else " " for each in origins).rstrip())
        if finished.forced_close and num_closing >= 2:
            assert ids[-num_closing:] == [CLOSE] * num_closing
            assert set(origins[:-num_closing]) <= {"sampled"}
            return
    raise AssertionError("no seed came to a close of several tokens")


class Noting(VerifiedConstraint):
    """Notes of each committed token whether it lies in what must be spelled again after a retract."""

    def __init__(self, language: Texts) -> None:
        super().__init__(language, TOKENS, frozenset({STOP}))
        self.bound: list[bool] = []
        self.num_taken_back = 0

    def advance(self, ids: Sequence[int]) -> Retract | None:
        left = self.forced()
        retract = super().advance(ids)
        self.bound.append(bool(left) and left.startswith(TOKENS[ids[0]] or b""))
        if retract is not None:
            self.num_taken_back += 1
            del self.bound[retract.kept_tokens :]
        return retract


def test_what_is_taken_back_takes_its_origins_along() -> None:
    num_forced = 0
    for language in (TRIPLES, PAIRS, NESTED, LONG):
        num_taken_back = 0
        for seed in range(12):
            for speculator in (None, cheating_speculator(seed)):
                constraint = Noting(language)
                request = make_request("r", [5, 6], max_tokens=40, seed=seed, temperature=1.0)
                request = replace(request, constraint=constraint, wants_origins=True)
                ids, origins, finished = run(request, speculator, TOKENS)
                assert len(ids) == len(origins) and finished.finish_reason == "stop"
                assert [origin == "forced" for origin in origins] == constraint.bound
                num_taken_back += constraint.num_taken_back
                num_forced += origins.count("forced")
        assert num_taken_back
    assert num_forced
