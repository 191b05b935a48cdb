"""The masks of bans are exact: token by token what the language says, nothing that completes a ban, nothing too few.

Every text over a toy alphabet is tried against a scan of the finished text (`plain_never`), and every mask of a walk
against the program's own language, byte by byte.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from safegen.grammars.bans import Bans
from safegen.grammars.constraint import MaskRows
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.vocabulary import Vocabulary
from safegen.guards import Never
from safegen.output_type import compile_type
from safegen.types import Choice, JsonSchema, Regex, Think
from tests.grammars.walking import TOKENS, VOCABULARY
from tests.support.plain_never import holds_ban

IS_FULL = os.environ.get("SAFEGEN_FULL") == "1"


def bans_of(*guards: Never) -> Bans:
    found = Bans.of(guard.ban for guard in guards)
    assert found is not None
    return found


TOY = ("a", "b", "ab", "B", "\ufb00", "f", "\u200b", "é", "e\u0301", " ", "ba", "с", "c")
CASES: list[tuple[list[str], str, bool]] = [
    (["ab"], "exact", False),
    (["aba", "b b"], "case", False),
    (["ff", "eb"], "compat", False),
    (["ab", "baa"], "compat", True),
    (["cab", "ca"], "skeleton", False),
    (["a", "b b"], "case", True),
]


@pytest.mark.parametrize(("phrases", "fold", "word"), CASES)
def test_every_toy_text_is_reachable_exactly_when_a_scan_finds_no_ban(
    phrases: list[str], fold: Any, word: bool
) -> None:
    tokens: list[bytes | None] = [*(piece.encode() for piece in TOY), None]
    single = sorted({bytes([byte]) for piece in TOY for byte in piece.encode()} - set(tokens))
    vocabulary = Vocabulary([*tokens[:-1], *single, None], [len(tokens) - 1 + len(single)])
    program = compile_type(None, bans=bans_of(Never(phrases=phrases, fold=fold, word=word))).program
    assert program is not None
    rows = MaskRows.allocate(1, vocabulary.size)
    stop = next(iter(vocabulary.stop_ids))
    length = 3 if IS_FULL else 2

    def visit(constraint: NativeConstraint, text: str, left: int) -> int:
        constraint.fill((), rows)
        row = rows.bools(0)
        # A text may stop where it holds no ban, and a token is legal where some legal text goes on so.
        assert bool(row[stop]) == (not holds_ban(text, phrases, fold, word)), repr(text)
        seen = 1
        for token, piece in enumerate(TOY):
            longer = text + piece
            could_be = not holds_ban(longer, phrases, fold, word) or (
                word and not holds_ban(longer + "x", phrases, fold, word)
            )
            assert bool(row[token]) == could_be, (text, piece)
            if row[token] and left:
                fork = constraint.fork()
                fork.advance([token])
                seen += visit(fork, longer, left - 1)
        return seen

    assert visit(NativeConstraint(program, vocabulary), "", length) > 100


SPECS: list[Any] = [
    None,
    JsonSchema({"type": "string"}),
    JsonSchema({"type": "string", "maxLength": 5}),
    JsonSchema({"type": "string", "minLength": 2, "pattern": "^[a-d ]*$"}),
    JsonSchema({"type": "object"}),
    JsonSchema({"type": "object", "properties": {"aa": {"type": "string"}, "q": {"enum": ["ab", "a", "bb", 1]}}}),
    JsonSchema({"type": "array", "items": {"type": ["string", "null"]}}),
    JsonSchema({"type": "object", "additionalProperties": {"type": "string", "maxLength": 30}, "minProperties": 1}),
    Regex("[ab]{1,6}c?"),
    Choice(["a", "abc", "b", "ba"]),
    Think(Choice(["a", "b"])),
]
GUARDS = [
    [Never(phrases=["ab", "é"], fold="case")],
    [Never(phrases=["ab"], fold="exact"), Never(phrases=["baa"], fold="compat", word=True)],
    [Never(phrases=["aa a", "abé"], fold="compat", word=True)],
    [Never(regexes=["a.b|2+"], fold="case"), Never(phrases=["ba"])],
]


@pytest.mark.parametrize("guards", GUARDS, ids=range(len(GUARDS)))
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: repr(spec)[:60])
def test_every_mask_of_a_walk_is_what_the_language_says(spec: Any, guards: Sequence[Never]) -> None:
    program = compile_type(spec, bans=bans_of(*guards)).program
    assert program is not None
    rng = random.Random(repr(spec))
    rows = MaskRows.allocate(1, VOCABULARY.size)
    likely = [token for token, piece in enumerate(TOKENS) if piece and set(piece) <= set(b'ab \xc3\xa9\\u0016"')]
    for _ in range(12 if IS_FULL else 1):
        constraint = NativeConstraint(program, VOCABULARY)
        for _ in range(rng.randint(1, 14)):
            constraint.fill((), rows)
            row = rows.bools(0)
            text = constraint.text()
            for token, piece in enumerate(TOKENS):
                if piece is None:
                    assert bool(row[token]) == program.matches(text)
                else:
                    legal = program.longest_prefix(text + piece) == len(text + piece)
                    assert bool(row[token]) == legal, (text, piece)
            legal_tokens = [token for token in range(len(TOKENS) - 1) if row[token]]
            if not legal_tokens:
                break
            wanted = [token for token in likely if row[token]]
            constraint.advance([rng.choice(wanted if wanted and rng.random() < 0.7 else legal_tokens)])


def test_masks_do_not_depend_on_the_order_in_which_states_are_met() -> None:
    """A mask is found by its difference to another one, and comes out the same when it is the first."""
    guard = Never(phrases=["abab", "ba b", "aébb"], fold="compat")
    spec = JsonSchema({"type": "string"})
    rows = MaskRows.allocate(2, VOCABULARY.size)
    texts = [
        b'"' + "".join(parts).encode() for parts in itertools.product(("a", "b", " ", "é"), repeat=3 if IS_FULL else 2)
    ]
    program = compile_type(spec, bans=bans_of(guard)).program
    assert program is not None
    for text in texts:
        fresh = compile_type(spec, bans=bans_of(guard)).program
        assert fresh is not None
        for row, each in enumerate((program, fresh)):
            constraint = NativeConstraint(each, VOCABULARY)
            constraint.advance([*text])
            constraint.fill((), MaskRows(rows.words[row : row + 1], rows.vocab_size))
        assert (rows.words[0] == rows.words[1]).all(), text
