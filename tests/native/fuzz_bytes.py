"""What a matcher is fed: changed answers, random tokens and drafts, ids that do not exist; on a shelf of programs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from safegen._native import LimitExceeded, Program
from safegen.errors import RetractsExhausted, SchemaError
from safegen.grammars import library
from safegen.grammars.constraint import ConstraintViolation, MaskRows, NoCompletion
from safegen.grammars.json_schema import compile_json_schema
from safegen.grammars.lark_grammar import compile_grammar
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits, SchemaOptions
from safegen.grammars.regex import compile_regex
from tests.grammars.walking import STOP, TOKENS, VOCABULARY, Walker, WalkStats

NUM_SCHEMAS = 60
PATTERNS = (
    r"(?:[a-z0-9]+\.)+[a-z]{2,3}",
    r"^(?=.*\d)(?!.*\s)\S{4,12}$",
    r"\p{L}{1,40}é?",
    "(?:a?){30}a{30}",
    r"[^\n]*",
)
IDS = (0, 1, 255, 256, STOP - 1, STOP, STOP + 1, 2**31 - 1, 2**32 - 1)


class BytePrograms:
    """A shelf of programs, with a text of each to start from."""

    def __init__(self, rng: random.Random, schemas: Sequence[str], limits: Limits) -> None:
        self.rng = rng
        self.programs: list[Program] = [compile_regex(pattern, limits) for pattern in PATTERNS]
        self.programs += [compile_grammar(library.load(name)).program for name in library.names()]
        options = [SchemaOptions("flexible", "any", "any", "known"), SchemaOptions(formats="known")]
        while len(self.programs) < NUM_SCHEMAS + len(PATTERNS) + len(library.names()):
            try:
                self.programs.append(compile_json_schema(rng.choice(schemas), rng.choice(options), limits).program)
            except SchemaError:
                continue

    def step(self, path: Path, outcomes: Counter[str]) -> None:
        number = self.rng.randrange(len(self.programs))
        program = self.programs[number]
        try:
            text = Walker(program, self.rng, WalkStats(), may_verify=True).walk(self.rng.randrange(12))
        except LimitExceeded:
            outcomes["limit"] += 1
            return
        for _ in range(4):
            changed = self._changed(text)
            path.write_text(json.dumps([number, changed.decode("latin-1")]))
            self._match(program, changed, outcomes)
            self._feed(program, changed, outcomes)

    def _changed(self, text: bytes) -> bytes:
        rng = self.rng
        for _ in range(rng.randrange(4)):
            at, other = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)
            low, high = min(at, other), max(at, other)
            piece = rng.choice(
                (b"", rng.randbytes(3), text[low:high] * rng.choice((1, 2, 30)), TOKENS[rng.randrange(STOP)])
            )
            text = text[:low] + (piece or b"") + text[rng.choice((low, high)) :]
        return text[:4000]

    def _match(self, program: Program, text: bytes, outcomes: Counter[str]) -> None:
        """Verdict, longest live beginning and what may follow it agree with one another."""
        try:
            length, verdict = program.longest_prefix(text), program.matches(text)
            follow = program.expected(text[:length])
        except LimitExceeded:
            outcomes["limit"] += 1
            return
        outcomes["matched" if verdict else "rejected"] += 1
        assert not verdict or length == len(text)
        assert length == len(text) or text[length] not in follow

    def _feed(self, program: Program, text: bytes, outcomes: Counter[str]) -> None:
        """Random drafts, true ones and false ones, and token after token of the text."""
        rng = self.rng
        constraint = NativeConstraint(program, VOCABULARY, cache_bytes=rng.choice((1 << 12, 64 << 20)))
        try:
            for start in range(0, min(len(text), 60), 6):
                draft = [*text[start : start + rng.randrange(7)], *rng.sample(IDS, rng.randrange(3))]
                rows = MaskRows.allocate(len(draft) + 1, VOCABULARY.size)
                legal = constraint.fill(draft, rows)
                assert np.array_equal(rows.words[legal + 1 :], np.zeros_like(rows.words[legal + 1 :]))
                constraint.fork().advance(draft[:legal])
                constraint.forced()
                constraint.advance([*text[start : start + 6], *rng.sample(IDS, rng.random() < 0.05)])
                outcomes["fed"] += 1
            constraint.advance(constraint.shortest_completion())
        except (ConstraintViolation, NoCompletion, RetractsExhausted, LimitExceeded, TypeError) as error:
            outcomes[type(error).__name__] += 1
