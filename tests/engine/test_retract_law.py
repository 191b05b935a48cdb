"""The law of answers that may be taken back, by enumeration: rejection without replacement of the masked law.

Every run of the engine is made once for each way in which its draws can fall, with the product of the probabilities
that it drew from. What the answers add up to is compared with the law computed from its definition, on a language and
a vocabulary small enough to list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from safegen.engine import finish as finish_module
from safegen.engine.logits import Law, LogitsPipeline
from safegen.engine.request import Request, SamplingParams
from tests.support.engine_driver import STOP, drive, make_core
from tests.support.fake_backend import FAKE_VOCAB, prefix_logits
from tests.support.verified_constraint import Texts, VerifiedConstraint, arrays, holds, nodes_of, passes

Ids = tuple[int, ...]
PROMPT = [5, 7]
PIECES = [b"[", b"a", b"b", b"]", b"x", b"x[", b"[a", b"b]", b"a]x", b"(", b")", b"]["]
TOKENS: list[bytes | None] = [None, *PIECES, *[None] * (FAKE_VOCAB - 1 - len(PIECES))]


def enumerate_engine(language: Texts, monkeypatch: pytest.MonkeyPatch, **settings: int) -> tuple[Counter[Ids], int]:
    """Probability of each answer (by tokens; None of an answer that was given up), and how many runs there were."""
    found: Counter[Ids] = Counter()
    scripts: list[list[int]] = [[]]
    num_runs = 0
    monkeypatch.setattr(LogitsPipeline, "plain_settings", lambda self, num_output_tokens: None)  # laws, not tokens
    while scripts:
        script, drawn = scripts.pop(), list[float]()

        def scripted(law: Law, uniform: float, script: list[int] = script, drawn: list[float] = drawn) -> int:
            place = len(drawn)
            if place == len(script):
                scripts.extend([*script, choice] for choice in range(1, len(law.ids)))
                script.append(0)
            drawn.append(float(law.probs[script[place]]))
            return int(law.ids[script[place]])

        monkeypatch.setattr(finish_module, "draw", scripted)
        constraint = VerifiedConstraint(language, TOKENS, frozenset({STOP}))
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=1)
        asked = Request("a", tuple(PROMPT), params, frozenset({STOP}), constraint)
        outcome = drive(make_core(token_bytes=TOKENS, block_size=2, **settings), [asked])["a", 0]
        assert outcome.reason == "stop", outcome.finished
        found[tuple(outcome.token_ids)] += float(np.prod(drawn))
        num_runs += 1
    return found, num_runs


def spell(ids: Ids) -> bytes:
    return b"".join(TOKENS[token_id] or b"" for token_id in ids)


def weight(ids: Ids, token_id: int) -> float:
    return float(np.exp(prefix_logits(PROMPT + list(ids)).astype(np.float64)[token_id]))


def next_tokens(ids: Ids, required: bytes, live: Texts) -> dict[int, float]:
    """The locally renormalised masked law after ids: tokens that some live text that begins with `required` goes on
    with, and the stop id where a text may end."""
    text = spell(ids)
    texts = [one for one in live if one.startswith(required) and one.startswith(text)]
    legal = {number for number, piece in enumerate(TOKENS) if piece and any(t.startswith(text + piece) for t in texts)}
    if text in texts:
        if not legal:
            return {STOP: 1.0}
        legal.add(STOP)
    weights = {token_id: weight(ids, token_id) for token_id in legal}
    return {token_id: each / sum(weights.values()) for token_id, each in weights.items()}


def whole_attempts(live: Texts) -> Counter[Ids]:
    """Sequential sampling from the masked law of `live`, as if nothing were ever checked: probability by tokens."""
    done: Counter[Ids] = Counter()
    open_ids: list[tuple[Ids, float]] = [((), 1.0)]
    while open_ids:
        ids, probability = open_ids.pop()
        for token_id, each in next_tokens(ids, b"", live).items():
            if token_id == STOP:
                done[ids] += probability * each
            else:
                open_ids.append(((*ids, token_id), probability * each))
    return done


def rejection_without_replacement(language: Texts) -> Counter[Ids]:
    """The definition, where the whole text is the node that is checked: a text that fails is rejected and leaves the
    language."""
    law: Counter[Ids] = Counter()
    for ids, probability in whole_attempts(language).items():
        if holds(spell(ids)):
            law[ids] += probability
        else:
            for answer, each in rejection_without_replacement(language - {spell(ids)}).items():
                law[answer] += probability * each
    return law


def nodewise(language: Texts, failed: Texts, ids: Ids, required: bytes) -> Counter[Ids]:
    """The same for nodes inside a text: what is drawn again begins at the token boundary before the node that failed
    (or before its parent, if nothing is left of it), and spells the bytes up to there again."""
    live = frozenset(t for t in language if not any(t[a:b] in failed for a, b in nodes_of(t)))
    law: Counter[Ids] = Counter()
    for token_id, probability in next_tokens(ids, required, live).items():
        for answer, each in after_token(language, failed, ids, required, token_id).items():
            law[answer] += probability * each
    return law


def after_token(language: Texts, failed: Texts, ids: Ids, required: bytes, token_id: int) -> Counter[Ids]:
    if token_id == STOP:
        return Counter({ids: 1.0})
    text, longer = spell(ids), spell((*ids, token_id))
    closed_now = [(a, b) for a, b in nodes_of(longer) if b > len(text) and not passes(longer[a:b])]
    if not closed_now:
        return nodewise(language, failed, (*ids, token_id), required)
    start, end = closed_now[0]
    failed |= {longer[start:end]}
    live = frozenset(t for t in language if not any(t[a:b] in failed for a, b in nodes_of(t)))
    while not any(t.startswith(longer[:start]) for t in live):
        start = longer[:start].rfind(b"(") if b"(" in longer[:start] else 0
    kept = max(count for count in range(len(ids) + 1) if len(spell(ids[:count])) <= start)
    return nodewise(language, failed, ids[:kept], longer[:start])


def assert_same_law(found: Counter[Ids], wanted: Counter[Ids]) -> None:
    assert set(found) == set(wanted)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    for ids, probability in wanted.items():
        assert found[ids] == pytest.approx(probability, abs=1e-9), spell(ids)
        assert holds(spell(ids))


def test_whole_answers_follow_rejection_without_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    language = frozenset(arrays("ab", [1, 2]))
    found, num_runs = enumerate_engine(language, monkeypatch)
    assert num_runs > 100
    assert_same_law(found, rejection_without_replacement(language))
    # it is not the conditional law of right answers, which rejection *with* replacement would give
    right = Counter({ids: each for ids, each in whole_attempts(language).items() if holds(spell(ids))})
    assert any(abs(found[ids] - each / right.total()) > 1e-3 for ids, each in right.items())


NODEWISE: dict[str, Callable[[], Texts]] = {
    "a prefix that tokens share with the node": lambda: frozenset(b"x" + one for one in arrays("ab", [1, 2])),
    "an end that is optional": lambda: frozenset(
        b"[" + items + b"]" + end for items in (b"a", b"aa", b"ba") for end in (b"", b"x")
    ),
    "a parent that nothing is left of": lambda: frozenset([b"x[aa]", b"([bb])", b"([aa][b])", b"b[ab]", b"b[bb]"]),
    "a parent that is checked too": lambda: frozenset(
        b"(" + one + two + b")" for one, two in [*pairwise(arrays("ab", [1])), (b"[a]", b"[a]"), (b"[aa]", b"[b]")]
    ),
}


@pytest.mark.parametrize("name", NODEWISE)
def test_nodes_follow_rejection_without_replacement_from_their_token_boundary(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = NODEWISE[name]()
    found, num_runs = enumerate_engine(language, monkeypatch)
    assert num_runs > 20
    assert_same_law(found, nodewise(language, frozenset(), (), b""))
    assert any(not holds(text) for text in language)
