"""Drafters for tests: one that knows what the fake backend will say, and lies now and then."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ids

from safegen.engine.logits import History, LogitsPipeline, RowBuffers
from safegen.engine.rng import uniform
from safegen.engine.sampler import draw
from safegen.engine.sequence import Sequence
from safegen.engine.speculate.base import Ask, Draft
from safegen.engine.speculate.speculator import Speculator
from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import MaskRows
from tests.support.fake_backend import FAKE_VOCAB, prefix_logits


def coming_tokens(ask: Ask, count: int) -> list[int]:
    """The tokens that the sequence will draw after the prefix, if nothing takes output back."""
    sequence, found = ask.sequence, list(ask.prefix)
    request = sequence.request
    pipeline = LogitsPipeline(request.params, request.prompt_ids, request.stop_ids, RowBuffers(FAKE_VOCAB))
    constraint = None if sequence.constraint is None else sequence.constraint.fork()
    committed = sequence.token_ids(0, sequence.num_tokens)
    output = list(sequence.output_ids(0, sequence.num_output_tokens))
    while len(found) < len(ask.prefix) + count:
        mask = None
        if constraint is not None:
            rows = MaskRows.allocate(1, FAKE_VOCAB)
            constraint.fill((), rows)
            mask = rows.words[0]
        history = History(len(output), Counter(output))
        target = pipeline.target(prefix_logits(committed + found), history, mask)
        place = sequence.num_output_tokens + len(found)
        token_id = draw(target.law, uniform(sequence.context.seed, sequence.index, place, sequence.num_retracts))
        found.append(token_id)
        output.append(token_id)
        if token_id in request.stop_ids:
            break
        try:
            if constraint is not None and constraint.advance([token_id]) is not None:
                break
        except RetractsExhausted:
            break
        if constraint is not None and constraint.is_complete():
            break
    return found[len(ask.prefix) :]


class CheatingDrafter:
    """Proposes what will be drawn; a share of `wrong` tokens are replaced, by illegal ones and stop ids too, and after
    it has stopped it goes on at random."""

    is_costly = False
    is_forced = False

    def __init__(self, seed: int, wrong: float = 0.15, name: str = "cheating") -> None:
        self.name = name
        self.released: list[Sequence] = []
        self._rng = random.Random(seed)
        self._wrong = wrong

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft:
        count = self._rng.randrange(0, ask.room + 3)
        ids = coming_tokens(ask, count)
        while len(ids) < count and self._rng.random() < 0.5:
            ids.append(self._rng.randrange(FAKE_VOCAB))
        ids = [self._rng.randrange(FAKE_VOCAB) if self._rng.random() < self._wrong else token for token in ids]
        return Draft(tuple(ids))

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence)


class FunctionDrafter:
    """Proposes what a function makes of each ask."""

    is_costly = False
    is_forced = False

    def __init__(self, function: Callable[[Ask], Draft], name: str = "function") -> None:
        self.name = name
        self._function = function

    def propose(self, asks: Ids[Ask]) -> Ids[Draft]:
        return [self._function(ask) for ask in asks]

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def speculator_of(function: Callable[[Ask], Draft], max_tokens_a_draft: int = 6) -> Speculator:
    return Speculator([FunctionDrafter(function)], max_tokens_a_draft=max_tokens_a_draft, adaptive=False)


def cheating_speculator(seed: int = 0, wrong: float = 0.15, max_tokens_a_draft: int = 6) -> Speculator:
    return Speculator([CheatingDrafter(seed, wrong)], max_tokens_a_draft=max_tokens_a_draft, adaptive=False)
