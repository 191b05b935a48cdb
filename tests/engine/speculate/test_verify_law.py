"""The verifier's law, by enumeration of every draft, coin and draw: it is the target's, to rounding.

Laws are multiples of 1/N, and those that drafts are sampled from have powers of two over N, so that with the coins
0, 1/N, .. (N-1)/N each acceptance has exactly its probability min(1, p/q). The coins include 0.
"""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from safegen.engine.logits import Law
from safegen.engine.speculate import verify as verify_module
from safegen.engine.speculate.base import DraftPart
from safegen.engine.speculate.verify import RowsEnd, verify
from tests.support.branches import Branch, law_of

Ids = tuple[int, ...]


class Tree:
    """Random p and q after every prefix. num_coins: N. legal: ids that p may give; others have none of it."""

    def __init__(self, seed: int, vocab_size: int, num_coins: int, *, masked_q: bool) -> None:
        self.vocab_size, self.num_coins = vocab_size, num_coins
        self._rng = random.Random(seed)
        self._masked_q = masked_q
        self._p: dict[Ids, list[float]] = {}
        self._q: dict[Ids, list[float]] = {}

    def p(self, prefix: Ids) -> list[float]:
        if prefix not in self._p:
            legal = self._rng.sample(range(self.vocab_size), self._rng.randint(1, self.vocab_size))
            units = Counter(self._rng.choice(legal) for _ in range(self.num_coins))
            self._p[prefix] = [units[token] / self.num_coins for token in range(self.vocab_size)]
        return self._p[prefix]

    def q(self, prefix: Ids) -> list[float]:
        if prefix not in self._q:
            ids = [token for token in range(self.vocab_size) if not self._masked_q or self.p(prefix)[token]]
            parts = [self.num_coins]
            for _ in range(self._rng.randrange(4)):
                largest = max(parts)
                if len(parts) < len(ids) and largest > 1:
                    parts.remove(largest)
                    parts += [largest // 2] * 2
            law = [0.0] * self.vocab_size
            for token, part in zip(self._rng.sample(ids, len(parts)), parts, strict=True):
                law[token] = part / self.num_coins
            self._q[prefix] = law
        return self._q[prefix]


class EnumeratedRows:
    """`TargetRows` after a prefix, in every way that coins and draws can fall."""

    def __init__(self, tree: Tree, prefix: Ids, drafted: Ids, branch: Branch, num_rows: int | None = None) -> None:
        self._tree, self._prefix, self._drafted, self._branch = tree, prefix, drafted, branch
        self._num_rows = len(drafted) + 1 if num_rows is None else num_rows

    def law(self, offset: int) -> Law:
        if offset >= self._num_rows:
            raise RowsEnd
        probs = np.array(self._tree.p(self._prefix + self._drafted[:offset]))
        ids = np.flatnonzero(probs)
        return Law(ids, probs[ids])

    def draw(self, offset: int) -> int:
        return self.draw_from(self.law(offset), offset)

    def draw_from(self, law: Law, offset: int) -> int:
        return int(law.ids[self._branch.choose(law.probs.tolist())])

    def coin(self, offset: int) -> float:
        return self._branch.choose([1 / self._tree.num_coins] * self._tree.num_coins) / self._tree.num_coins


Make = Callable[[Tree, Ids, int, Branch], list[DraftPart]]


def part(ids: Ids, probs: Any = None) -> DraftPart:
    return DraftPart("any", ids, probs, ((0,),) * len(ids), (1.0,) * len(ids))


def one_hot(seed: int) -> Make:
    """Guesses that know nothing of chance: legal ones and illegal ones, at every place."""

    def make(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
        rng = random.Random(f"{seed} {prefix}")
        return [part(tuple(rng.randrange(tree.vocab_size) for _ in range(rng.randint(0, room))))]

    return make


def likeliest(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
    ids: Ids = ()
    while len(ids) < room:
        law = tree.p(prefix + ids)
        ids += (law.index(max(law)),)
    return [part(ids)]


def sampled(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
    ids, laws = list[int](), list[list[float]]()
    for _ in range(room):
        laws.append(tree.q((*prefix, *ids)))
        ids.append(branch.choose(laws[-1]))
    return [part(tuple(ids), np.array(laws).reshape(len(ids), tree.vocab_size))]


def mixed(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
    """A forced token, then sampled ones, then a guess."""
    first = likeliest(tree, prefix, min(room, 1), branch)[0]
    middle = sampled(tree, prefix + first.ids, max(0, room - 2), branch)[0]
    last = likeliest(tree, prefix + first.ids + middle.ids, room - len(first.ids) - len(middle.ids), branch)[0]
    return [first, middle, last]


def sampled_as_one_hot(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
    """What a request with a seed of its own makes of a sampled draft."""
    return [part(each.ids) for each in sampled(tree, prefix, room, branch)]


def cut_at_the_first_illegal(tree: Tree, prefix: Ids, room: int, branch: Branch) -> list[DraftPart]:
    """The trap: a sampled draft that is cut for what it holds, while the others keep their q."""
    [whole] = sampled(tree, prefix, room, branch)
    at, count = prefix, 0
    while count < len(whole.ids) and tree.p(at)[whole.ids[count]]:
        at += (whole.ids[count],)
        count += 1
    return [whole.cut(count)]


KINDS: dict[str, Make] = {
    "one-hot": one_hot(1), "one-hot again": one_hot(2), "likeliest": likeliest, "sampled": sampled, "mixed": mixed,
    "sampled as one-hot": sampled_as_one_hot,
}  # fmt: skip
SIZES = [(2, 4, 4), (3, 3, 4), (4, 3, 4), (6, 4, 2), (6, 2, 8), (5, 1, 16), (6, 1, 32)]  # vocabulary, depth, coins


def output_law(tree: Tree, depth: int, make: Make, num_rows: int | None = None) -> Counter[Ids]:
    """Of the first `depth` tokens, draft after draft."""

    def process(branch: Branch) -> Ids:
        output: Ids = ()
        while len(output) < depth:
            parts = make(tree, output, depth - len(output) - 1, branch)
            drafted = tuple(token for each in parts for token in each.ids)
            decided = tuple(verify(parts, EnumeratedRows(tree, output, drafted, branch, num_rows)))
            assert decided
            output += decided
        return output

    return law_of(process)


def target_law(tree: Tree, depth: int) -> Counter[Ids]:
    found: Counter[Ids] = Counter({(): 1})
    for _ in range(depth):
        found = Counter(
            {(*ids, token): each * p for ids, each in found.items() for token, p in enumerate(tree.p(ids)) if p}
        )
    return found


def distance(tree: Tree, depth: int, make: Make, num_rows: int | None = None) -> float:
    found, wanted = output_law(tree, depth, make, num_rows), target_law(tree, depth)
    return max(abs(found[ids] - wanted[ids]) for ids in {*found, *wanted})


@pytest.mark.parametrize("masked_q", [False, True], ids=["raw q", "masked q"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab_size", "depth", "num_coins"), SIZES)
def test_output_has_the_law_of_the_target(
    vocab_size: int, depth: int, num_coins: int, kind: str, masked_q: bool
) -> None:
    for seed in range(3):
        tree = Tree(seed, vocab_size, num_coins, masked_q=masked_q)
        assert distance(tree, depth, KINDS[kind]) < 1e-12


@pytest.mark.parametrize("num_rows", [1, 2])
def test_rows_that_end_early_leave_the_law_as_it_is(num_rows: int) -> None:
    for seed in range(6):
        tree = Tree(seed, 3, 4, masked_q=False)
        assert distance(tree, 3, sampled, num_rows) < 1e-12
        assert distance(tree, 3, likeliest, num_rows) < 1e-12


def test_a_zero_coin_never_lets_an_illegal_token_pass() -> None:
    for seed in range(20):
        tree = Tree(seed, 4, 8, masked_q=False)
        for output in output_law(tree, 2, sampled):
            assert all(tree.p(output[:place])[token] for place, token in enumerate(output))


def mutant(old: str, new: str) -> Callable[..., int]:
    """`_test` with a change."""
    source = inspect.getsource(verify_module._test)
    assert source.count(old) == 1
    names: dict[str, Any] = dict(vars(verify_module))
    exec(source.replace(old, new), names)
    made: Callable[..., int] = names["_test"]
    return made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("< probability", "<= probability"),
        ("residual(law, probs)", "law"),
        (" * probs[token_id]", ""),
    ],
    ids=["a coin that may be equal", "a rejection that draws from p", "no q in the test"],
)
def test_the_enumeration_tells_a_wrong_rule(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setattr(verify_module, "_test", mutant(old, new))
    assert max(distance(Tree(seed, 4, 8, masked_q=False), 2, sampled) for seed in range(8)) > 1e-3


def test_the_enumeration_tells_a_sampled_draft_that_was_cut_for_what_it_holds() -> None:
    trees = [Tree(seed, 4, 8, masked_q=False) for seed in range(8)]
    assert max(distance(tree, 2, cut_at_the_first_illegal) for tree in trees) > 1e-3


def test_a_zero_coin_tells_a_rule_that_lets_an_illegal_token_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "_test", mutant("< probability", "<= probability"))
    illegal = 0
    for seed in range(20):
        tree = Tree(seed, 4, 8, masked_q=False)
        illegal += sum(
            not all(tree.p(output[:place])[token] for place, token in enumerate(output))
            for output in output_law(tree, 2, sampled)
        )
    assert illegal
