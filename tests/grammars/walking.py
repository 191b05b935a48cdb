"""Random legal walks over a program, with what every state of one must hold: the promise of liveness.

In each state some token is legal; stop ids are legal exactly where the text can end; the shortest completion is legal
and ends; `forced` is how every completion starts; what is settled stays. A token that makes a verified node fail takes
text back, which counts as a step like any other. `NoCompletion` is allowed only where the program may verify.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from safegen._native import LimitExceeded, Program
from safegen.errors import RetractsExhausted
from safegen.grammars.constraint import MaskRows, NoCompletion
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary

_PIECES = (
    '{"', '":', '","', '"}', '"]', '},{"', "]}", "[[", "[]", "{}", '["', "],[", 'a"', '"a', '"b', "ab", "ba", "aa",
    "true", "false", "null", "00", "10", "12", "1,", "0,", "-1", ".5", ".0", "1.", "e1", "E+", "\\u", '\\"', "\\u00",
    "61", "\\n", "  ", " \n", '" :', ", ", ': "', "é", "éa", "aé", '\\"q', "2024-", "-02-", "T1", ":3", "1.1.", "::",
    "a@b", ".c", "http:", "//", "-4", "P1", "1D", "(?:", "[a", "]*", "=a", "(?=", "+ ", "a+", "b?",
)  # fmt: skip
TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in _PIECES), None]
STOP = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, [STOP])
_USUAL = frozenset(range(0x20, 0x7F)) | {0xC3, 0xA9, 0x0A}


def text_of(ids: Iterable[int], tokens: list[bytes | None] | None = None) -> bytes:
    texts = tokens or TOKENS
    return b"".join(texts[token] or b"" for token in ids)


@dataclass(slots=True)
class WalkStats:
    """states: those checked. retracts: tokens that took text back. unclosed: states without a completion at hand.
    exhausted: walks that ended because every value of a verified node had failed. stuck: those given up because none at
    hand passes, as where some key must be one of two million."""

    walks: int = 0
    states: int = 0
    retracts: int = 0
    unclosed: int = 0
    exhausted: int = 0
    stuck: int = 0


class Walker:
    """Walks over one program. may_verify: whether it holds nodes that are judged when they close."""

    def __init__(
        self,
        program: Program,
        rng: random.Random,
        stats: WalkStats,
        *,
        may_verify: bool,
        vocabulary: Vocabulary = VOCABULARY,
    ) -> None:
        self.program = program
        self.rng = rng
        self.stats = stats
        self.may_verify = may_verify
        self.vocabulary = vocabulary
        self.rows = MaskRows.allocate(1, vocabulary.size)
        (self.stop,) = vocabulary.stop_ids

    def walk(self, length: int, judge: Callable[[bytes], bool] | None = None) -> bytes:
        """`length` random tokens, then the shortest way out. judge: is asked about the whole text. Returns the text;
        empty, too, where no value of a verified node was found."""
        self.stats.walks += 1
        constraint = NativeConstraint(self.program, self.vocabulary)
        settled = 0
        try:
            for _ in range(length):
                legal = self.check(constraint)
                if constraint.is_complete() or (constraint.can_end() and self.rng.random() < 0.05):
                    break
                self.advance(constraint, [self.choose(legal)])
                assert constraint.settled() >= settled, constraint.text()
                settled = constraint.settled()
            self.close(constraint)
        except RetractsExhausted:
            assert self.may_verify, constraint.text()
            self.stats.exhausted += 1
            return b""
        text = constraint.text()
        if not constraint.can_end():
            return b""
        assert self.program.matches(text), text
        assert judge is None or judge(text), text
        return text

    def check(self, constraint: NativeConstraint) -> list[int]:
        """The promises in one state. Returns the legal tokens, stop ids left out."""
        self.stats.states += 1
        text = constraint.text()
        assert constraint.fill((), self.rows) == 0
        legal: list[int] = np.flatnonzero(self.rows.bools(0)).tolist()
        assert legal, f"no token is legal after {text!r}"
        assert (self.stop in legal) == constraint.can_end(), text
        assert not constraint.is_complete() or legal == [self.stop], text
        self.check_completion(constraint)
        return [token for token in legal if token != self.stop]

    def check_completion(self, constraint: NativeConstraint) -> None:
        text, twin = constraint.text(), constraint.fork()
        try:
            rest = constraint.shortest_completion()
        except NoCompletion as error:
            if "max_states" in str(error) or "a fixed limit" in str(error):
                raise LimitExceeded(str(error)) from error
            assert self.may_verify, text
            self.stats.unclosed += 1
            return
        written = text_of(rest, self.vocabulary.token_bytes)  # type: ignore[arg-type]
        assert constraint.can_end() == (rest == ()), text
        assert constraint.can_end() or written.startswith(constraint.forced()), text
        assert twin.advance(rest) is None, (text, written)
        assert twin.can_end(), (text, written)

    def choose(self, legal: list[int]) -> int:
        """Often a token of several bytes or a usual character: a uniform draw would spell rubbish inside strings."""
        texts = self.vocabulary.token_bytes
        usual = [token for token in legal if len(texts[token] or b"") > 1 or (texts[token] or b"?")[0] in _USUAL]
        return self.rng.choice(usual if usual and self.rng.random() < 0.9 else legal)

    def advance(self, constraint: NativeConstraint, ids: list[int]) -> bool:
        """Whether the tokens stayed."""
        before, settled = constraint.text(), constraint.settled()
        retract = constraint.advance(ids)
        if retract is None:
            return True
        self.stats.retracts += 1
        assert self.may_verify, before
        assert retract.kept_tokens >= settled, before
        assert before.startswith(constraint.text()) or constraint.text().startswith(before), before
        assert constraint.forced().startswith(retract.forced_prefix), before
        return False

    def close(self, constraint: NativeConstraint) -> None:
        """By shortest completions; where none is at hand, by legal tokens until there is one."""
        for _ in range(60):
            try:
                assert self.advance(constraint, list(constraint.shortest_completion())), constraint.text()
            except NoCompletion:
                self.advance(constraint, [self.choose(self.check(constraint))])
            else:
                break
        else:
            assert self.may_verify, f"no way out of {constraint.text()!r}"
            self.stats.stuck += 1
