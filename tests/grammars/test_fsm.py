"""`Regex(fsm=True)`: the table from outlines-core's index is the same constraint as the native machine's. And the index
as an oracle: two determinisers that share no code agree on every row."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from outlines_core import Index
from outlines_core import Vocabulary as OutlinesVocabulary

from safegen import Grammar, JsonSchema, Limits, Regex, RequestError, Think, explain, matches
from safegen.errors import GrammarError
from safegen.grammars import fsm
from safegen.grammars.constraint import Constraint, ConstraintViolation, MaskRows
from safegen.grammars.matcher import NativeConstraint
from safegen.grammars.options import Limits as GrammarLimits
from safegen.grammars.regex import compile_regex
from safegen.grammars.vocabulary import Vocabulary
from tests.support.regex_generation import ATOMS, CLASSES, UNICODE_ATOMS, random_pattern
from tests.support.sdk_fakes import make_llm
from tests.support.small_vocabulary import small_vocabulary

VOCABULARY = small_vocabulary()
STOP = VOCABULARY.size - 1
LIMITS = GrammarLimits(max_fsm_states=400)
PATTERNS = [r"a(bc)?", r"(a|b)*abb", r"\d{4}-\d{2}", r"(?:ab){2,5}c?", r"[^é]{1,3}", r".{0,4}", r"(?:é|😀)+", r"",
            r"^ab$", r"(?i)aB+", r"[a-é]*-", r"a{2,}?b??", r"\u{1F600}|[\p{Lu}0]{2}", r"a|ab|abc"]  # fmt: skip


def pair(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> tuple[fsm.FsmProgram, NativeConstraint]:
    program = compile_regex(pattern)
    return fsm.compile_fsm(pattern, program, LIMITS), NativeConstraint(program, vocabulary)


def row(constraint: Constraint) -> np.ndarray[Any, Any]:
    rows = MaskRows.allocate(1, VOCABULARY.size)
    constraint.fill([], rows)
    return rows.bools(0)


def walk_together(table: Constraint, native: Constraint, rng: random.Random, steps: int) -> None:
    """Every method agrees along a random legal walk."""
    for _ in range(steps):
        legal = row(native)
        assert np.array_equal(row(table), legal)
        assert (table.can_end(), table.is_complete()) == (native.can_end(), native.is_complete())
        assert table.forced() == native.forced() and table.settled() == native.settled()
        chosen = int(rng.choice(np.flatnonzero(legal)))
        table.advance([chosen])
        native.advance([chosen])
        if chosen == STOP:
            assert np.array_equal(row(table), row(native)) and table.is_complete() and native.is_complete()
            return


@pytest.mark.parametrize("pattern", PATTERNS)
def test_table_is_the_native_constraint(pattern: str) -> None:
    program, native = pair(pattern)
    for seed in range(8):
        walk_together(program.constraint(VOCABULARY), native.fork(), random.Random(seed), 12)


def test_index_agrees_with_the_native_machine_on_random_regexes() -> None:
    """The oracle: every state's row is compared while a table is made, and random walks are compared beyond that."""
    rng, compared, states = random.Random(20), 0, 0
    while compared < 120:
        atoms = rng.choice([ATOMS, ATOMS + CLASSES, [*ATOMS, *UNICODE_ATOMS]])
        pattern = random_pattern(rng, 4, atoms=atoms, looks=[], anchors=[])
        try:
            program, native = pair(pattern)
            table = program.table(VOCABULARY)
        except GrammarError as error:
            assert re.search("matches no text|max_fsm_states|cannot read|cannot spell", str(error)), (pattern, error)
            continue
        compared, states = compared + 1, states + table.num_states
        walk_together(fsm.FsmConstraint(table), native, rng, 10)
    assert states > 800


def test_a_difference_between_the_machines_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = pair("a(b|c)d")
    monkeypatch.setattr(fsm, "plain_syntax", lambda tree: r"a[bcx]d" if tree is program.tree else r"\x{10ffff}")
    with pytest.raises(GrammarError, match="differ after b'a'"):
        program.table(VOCABULARY)


def test_bare_index_would_lose_texts_that_go_on_after_an_end() -> None:
    """Why the end mark is there. When this fails, outlines-core has changed, and the mark can go."""
    index = Index("a(?:bc)?", OutlinesVocabulary(3, {b"a": [0], b"b": [1], b"c": [2]}))
    after_a = index.get_next_state(index.get_initial_state(), 0)
    assert index.get_next_state(after_a, 1) is None
    table = pair("a(?:bc)?")[0].constraint(VOCABULARY)
    table.advance(list(b"ab"))
    assert table.forced() == b"c"


def test_drafts_are_filled_up_to_the_first_illegal_one() -> None:
    program, native = pair("(ab)+c?")
    table, ids = program.constraint(VOCABULARY), VOCABULARY.token_bytes.index
    ab, c = ids(b"ab"), ids(b"c")
    for draft in ([ab, ab, c, STOP], [ab, c, STOP, STOP], [c, ab], [ab, c, ab], [], [ab, 9999 % VOCABULARY.size]):
        ours, theirs = (MaskRows.allocate(len(draft) + 1, VOCABULARY.size) for _ in range(2))
        ours.words[:] = -1
        assert table.fill(draft, ours) == native.fill(draft, theirs)
        assert np.array_equal(ours.words, theirs.words), draft


def test_illegal_tokens_change_nothing() -> None:
    table = pair("ab")[0].constraint(VOCABULARY)
    before = row(table)
    for ids in ([ord("x")], [ord("a"), ord("a")], [STOP], [VOCABULARY.size - 3]):
        with pytest.raises(ConstraintViolation):
            table.advance(ids)
        assert np.array_equal(row(table), before) and table.settled() == 0


def test_fork_is_independent_and_completion_is_the_shortest() -> None:
    table = pair("a{3,}|bc")[0].constraint(VOCABULARY)
    copied = table.fork()
    copied.advance([ord("a")])
    assert (table.settled(), copied.settled()) == (0, 1)
    assert [VOCABULARY.token_bytes[i] for i in table.shortest_completion()] == [b"bc"]
    closing = copied.shortest_completion()
    copied.advance(closing)
    assert copied.can_end() and copied.shortest_completion() == ()


def test_rows_are_live_over_a_vocabulary_that_cannot_spell_everything() -> None:
    tokens: list[bytes | None] = [b"a", b"b", b"x", b"xy", b"bx", None]
    vocabulary = Vocabulary(tokens, [5])
    pattern = "a(b|y)|[yz]|bx"
    table = fsm.compile_fsm(pattern, compile_regex(pattern), LIMITS).table(vocabulary)
    assert set(table.transitions.texts) == {b"", b"a", b"b", b"bx"}  # "bx" stands for "ab"; no token is "y" alone
    with pytest.raises(GrammarError, match="cannot index"):
        fsm.compile_fsm("xz", compile_regex("xz"), LIMITS).table(vocabulary)


def test_dense_table_holds_every_transition() -> None:
    table = pair("(a|b)*abb")[0].table(VOCABULARY)
    dense = table.dense()
    assert dense.shape == (table.num_states, VOCABULARY.size) and dense.dtype == np.int32
    for state in range(table.num_states):
        legal = MaskRows(table.masks, VOCABULARY.size).bools(state)
        legal[STOP] = False
        assert np.array_equal(dense[state] >= 0, legal)
        for token in np.flatnonzero(legal):
            assert table.transitions.next_state(state, int(token)) == dense[state, token]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[a-z]{500}", "more than 128 states"),
        ("(a|b)*a(a|b){24}", "more than 128 states"),
        ("[^]*", "needs a character that the regex cannot read"),
        (r"(?=a)\w+", "no look-aheads"),
        (r"a\bb?", "no look-aheads"),
        ("(^a|b)c", "no look-aheads"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        matches(Regex(pattern, fsm=True), "x")
    assert "eave fsm out" in str(caught.value)


def test_option_is_checked_and_has_no_place_inside_reasoning() -> None:
    with pytest.raises(RequestError, match="fsm is True or False"):
        Regex("a", fsm="yes")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="leave fsm=True out"):
        Think(Regex("a", fsm=True))
    assert matches(Regex("a(bc)?", fsm=True), "abc") and explain(Regex("a(bc)?", fsm=True), "ad").byte == 1
    assert Regex("a", fsm=True) != Regex("a")


def test_answers_of_an_llm_are_the_same_with_and_without_a_table() -> None:
    pattern = r"\d{3}-[a-f]{2,4}"
    with make_llm() as llm:
        options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 32}
        for seed in range(6):
            plain = llm.generate("x", Regex(pattern), seed=seed, **options)
            table = llm.generate("x", Regex(pattern, fsm=True), seed=seed, **options)
            assert plain.status == "ok" and (table.text, table.status) == (plain.text, plain.status)
        assert llm.generate("x", JsonSchema({"type": "null"})).value is None
        assert llm.generate("x", Grammar('start: "ab"')).text == "ab"


def test_limit_of_states_is_settable() -> None:
    spec = Regex("[a-z]{300}", fsm=True)
    assert matches(spec, "a" * 300, limits=Limits(max_fsm_states=400))
